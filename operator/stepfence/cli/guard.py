"""What a command leaves running, and its end.

A command leads a session. All that it starts is in there, unless it makes one of its own (`setsid`, a daemon): also what a shell with job
control or `timeout` puts into other process groups.

Run as a program of its own, this ends a command whose `stepfence exec` was killed: nobody would end it at its deadline, and it could still
send after "no" counts (R1). The program ends with its input: a session to end, then `done` when there is nothing to end any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

__all__ = ["guarded", "running", "send_signal"]

_DONE = b"done"
_PAUSE = 0.05
_LAST_TRIES = 200
_GONE = frozenset({"Z", "X"})


@contextlib.asynccontextmanager
async def guarded() -> AsyncIterator[Callable[[], None]]:
    """Run a guard around a block; yield what a command calls in its own process before it becomes the command (`preexec_fn`).

    The command must lead a session. A block that is left by an exception leaves nothing running. Raises `OSError` when the guard cannot be
    started.
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
        _tell(writer, _DONE)
    finally:
        os.close(writer)
        await process.wait()


def running(session: int) -> bool:
    """Whether anything runs in a session. What has ended and is not reaped yet does not."""
    found = list(_found(session))
    if found:
        return any(runs for _, runs in found)
    # Nothing is there, or nothing can be seen: it belongs to somebody else, or there is no /proc.
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def send_signal(session: int, number: int) -> None:
    """Send a signal to all that runs in a session."""
    for group in {session, *(group for group, runs in _found(session) if runs)}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def _found(session: int) -> Iterator[tuple[int, bool]]:
    """The processes of a session: the group of each, and whether it runs (see proc(5))."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, group, its_session, *more = stat.read_text(errors="replace").rpartition(")")[2].split()
        except (OSError, ValueError):
            continue  # it is gone
        if its_session == str(session):
            # Of a process whose first thread has ended, others may go on.
            threads = int(more[13])
            yield int(group), state not in _GONE or threads > 1


async def _start(told: int) -> Process:
    """Start the guard, apart from the script's process group and from its input and output."""
    own = [sys.executable, "-I", "-S", str(Path(__file__))]
    return await asyncio.create_subprocess_exec(*own, stdin=told, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)


def _tell(writer: int, word: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(writer, word)


def _main() -> None:
    told = sys.stdin.buffer.read().split()  # until the last who could write is gone
    if not told or told[-1] == _DONE:
        return
    session = int(told[0])
    for _ in range(_LAST_TRIES):
        send_signal(session, signal.SIGKILL)
        if not running(session):
            return
        time.sleep(_PAUSE)


if __name__ == "__main__":
    _main()
