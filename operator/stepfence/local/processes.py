"""Processes as the kernel tells of them: which one lives, signals that reach only the one meant, and who bears a worker's mark."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from stepfence.local import keeper
from stepfence.local.keeper import start_of

__all__ = ["MARK", "alive", "end_marked", "ended", "marks", "send", "start_keeper"]

# In the environment of a worker and of everything that it starts.
MARK = "STEPFENCE_POD_UID"


def alive(pid: int, start: str) -> bool:
    """Whether that very process runs."""
    return start_of(pid) == start


def send(pid: int, start: str, number: signal.Signals) -> bool:
    """Signal that very process, never a later one of its number; return whether it was there."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(pid, start):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def end_marked(uid: str) -> bool:
    """Kill every process that bears a worker's mark; return whether there was none: only then all of it has ended."""
    mark, found = f"{MARK}={uid}".encode(), 0
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            handle = os.pidfd_open(int(path.parent.name))  # before it is read: a later process of its number is another
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found += 1
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
    return found == 0


def marks() -> set[str]:
    """Return the marks of all workers of which a process lives, as far as this user may see."""
    mark, found = f"{MARK}=".encode(), set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            found |= {word.removeprefix(mark).decode(errors="replace") for word in path.read_bytes().split(b"\0") if word.startswith(mark)}
    return found


async def ended(child: int) -> None:
    """Wait for the end of a child of this process, which is then still to be reaped."""
    handle, seen = os.pidfd_open(child), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(handle, seen.set)
    try:
        await seen.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def start_keeper(arguments: list[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a keeper, apart from this process's terminal and signals; it outlives this process. Raises `OSError`."""
    null = subprocess.DEVNULL
    # Its arguments are UTF-8, whatever the locale.
    own = [sys.executable, "-X", "utf8", "-I", "-S", str(Path(keeper.__file__))]
    return subprocess.Popen([*own, *arguments], env=dict(environ), stdin=null, stdout=null, stderr=null, start_new_session=True)
