"""Ends a command whose `stepfence exec` was killed: nobody would end it at its deadline, and it could still send after "no" counts (R1).

Run as a program of its own, which ends with its input: a process group to end, then `done` when there is nothing to end any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path

__all__ = ["guarded"]

_DONE = b"done"


@contextlib.asynccontextmanager
async def guarded() -> AsyncIterator[Callable[[], None]]:
    """Run a guard around a block; yield what a command calls in its own process before it becomes the command (`preexec_fn`).

    The command must lead a process group. Raises `OSError` when the guard cannot be started.
    """
    reader, writer = os.pipe()
    try:
        process = await _start(reader)
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    try:
        # By the command itself, so that there is no moment at which it runs and nobody knows of it.
        yield lambda: _tell(writer, b"%d " % os.getpid())
    finally:
        _tell(writer, _DONE)
        os.close(writer)
        await process.wait()


async def _start(told: int) -> Process:
    """Start the guard, apart from the script's process group and from its input and output."""
    own = [sys.executable, "-I", "-S", str(Path(__file__))]
    return await asyncio.create_subprocess_exec(*own, stdin=told, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)


def _tell(writer: int, word: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(writer, word)


def _main() -> None:
    told = sys.stdin.buffer.read().split()  # until the last who could write is gone
    if told and told[-1] != _DONE:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(told[0]), signal.SIGKILL)


if __name__ == "__main__":
    _main()
