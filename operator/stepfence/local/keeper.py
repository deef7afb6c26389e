"""The keeper of one worker: starts it, ends it when told to, and records its end, whatever becomes of `stepfence local` meanwhile.

Run as a program of its own, with nothing but the standard library: `keeper.py STATE UID GRACE LOG FOLDER PRESTOP -- COMMAND…`.

It starts nothing unless the worker's row is there and has no keeper yet: so a worker is started at most once, however often it is tried,
and what was taken back is never started. It is the reaper of all that the worker leaves behind: when the worker's own process has
ended, the rest is killed, and only then its end is recorded. When the keeper itself is killed, the kernel kills the worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

__all__ = ["NOT_STARTED", "start_of"]

NOT_STARTED = 3
_BUSY_SECONDS = 60.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LONGEST_WAIT = 3600.0
_STARTED: list[subprocess.Popen[bytes]] = []
_HEARD = (signal.SIGTERM, signal.SIGCHLD)


def start_of(pid: int) -> str | None:
    """Return what tells a process from a later one of the same number: boot and start time. None when there is none that runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None if fields[0] in "ZX" else f"{boot}/{fields[19]}"


class _Row:
    def __init__(self, path: str, uid: str) -> None:
        self._connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        self._connection.execute("PRAGMA synchronous=FULL")
        self._uid = uid

    def take(self) -> bool:
        """Become the worker's keeper; False when it has one, had one, or is not wanted any more."""
        sql = "UPDATE workers SET keeper_pid = ?, keeper_start = ? WHERE uid = ? AND keeper_pid IS NULL AND ended_at IS NULL"
        return self._connection.execute(sql, (os.getpid(), start_of(os.getpid()), self._uid)).rowcount == 1

    def started(self, pid: int) -> None:
        self._connection.execute("UPDATE workers SET pid = ?, pid_start = ? WHERE uid = ?", (pid, start_of(pid), self._uid))

    def ended(self, code: int, message: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        sql = "UPDATE workers SET ended_at = ?, exit_code = ?, message = ? WHERE uid = ? AND ended_at IS NULL"
        self._connection.execute(sql, (now, code, message, self._uid))


def main(argv: list[str]) -> int:
    """Keep one worker to its end."""
    state, uid, grace, log, folder, prestop, _, *command = argv
    libc = ctypes.CDLL(None, use_errno=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    row = _Row(state, uid)
    if not row.take():
        return NOT_STARTED
    with Path(log).open("ab") as output:
        try:
            pid = _start(command, folder, output.fileno(), libc)
        except OSError as error:
            row.ended(127, f"{command[0]}: {error.strerror}")
            return 0
        row.started(pid)
        code = _keep(pid, float(grace), json.loads(prestop), folder, output.fileno(), libc)
    _end_the_rest()
    row.ended(code, "")
    return 0


def _start(command: list[str], folder: str, output: int, libc: ctypes.CDLL) -> int:
    keeper = os.getpid()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)

    null = subprocess.DEVNULL
    options = {"cwd": folder, "stdin": null, "stdout": output, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=prepare, **options)  # type: ignore[call-overload]  # noqa: PLW1509
    # Kept, because one that is forgotten reaps its process, and the exit code with it: here all are reaped by number.
    _STARTED.append(process)
    return int(process.pid)


def _keep(worker: int, grace: float, prestop: list[str], folder: str, output: int, libc: ctypes.CDLL) -> int:
    """Wait for the worker's end and return its exit code. Told to go, it gets its preStop command, SIGTERM, and after its grace SIGKILL."""
    hook, deadline = 0, None
    while True:
        for pid, status in _reaped():
            if pid == worker:
                return _exit_code(status)
            if pid == hook:
                _send(worker, signal.SIGTERM)
        now = time.monotonic()
        wait = _LONGEST_WAIT
        if deadline is not None:
            wait = min(1.0, deadline - now)
            if wait <= 0:
                # Its end may still take a while: one in the middle of a system call dies after it.
                os.killpg(worker, signal.SIGKILL)
                wait = 1.0
        told = signal.sigtimedwait(_HEARD, wait)
        if told is None or told.si_signo != signal.SIGTERM or deadline is not None:
            continue
        deadline = time.monotonic() + grace
        try:
            hook = _start(prestop, folder, output, libc) if prestop else 0
        except OSError as error:
            os.write(output, f"stepfence local: preStop {prestop[0]}: {error.strerror}\n".encode())
            hook = 0
        if not hook:
            _send(worker, signal.SIGTERM)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _reaped() -> list[tuple[int, int]]:
    found = []
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(ended)
    return found


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end_the_rest() -> None:
    """Kill and reap whatever the worker left, until there is nothing: what it started is reparented to this process."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in _children():
                _send(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def _children() -> list[int]:
    mine = f"{os.getpid()}"
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if path.read_text().rpartition(")")[2].split()[1] == mine:
                found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
