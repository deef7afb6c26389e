"""One state file, opened: stores, workers and the use cases over them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stepfence.app import Applier
from stepfence.app.system import SystemClock, SystemIds
from stepfence.core.words import Settings
from stepfence.local.witness import Witness
from stepfence.local.workers import TABLES, Workers
from stepfence.stores.sqlite import Database, SqliteRecordStore, SqliteRunStore

__all__ = ["Lock", "State", "command_for", "default_path", "opened"]


@dataclass(frozen=True, slots=True)
class State:
    """What is in the file, and the one writer of runs. `folder`: what workers keep in files while they live, and their logs."""

    path: Path
    settings: Settings
    database: Database
    runs: SqliteRunStore
    records: SqliteRecordStore
    workers: Workers
    applier: Applier
    clock: SystemClock
    witness: Witness

    @property
    def folder(self) -> Path:
        """Where workers' files are."""
        return self.path.with_name(self.path.name + ".workers")

    def worker_folder(self, uid: str) -> Path:
        """Where one worker's token, state and log are."""
        return self.folder / uid


def default_path(environ: Mapping[str, str]) -> Path:
    """Return where the state is unless `--state` says otherwise (XDG base directories)."""
    home = environ.get("XDG_STATE_HOME") or ""
    base = Path(home) if Path(home).is_absolute() else Path.home() / ".local" / "state"
    return base / "stepfence" / "local.db"


@contextlib.asynccontextmanager
async def opened(path: Path, *, command: str, check: bool = True) -> AsyncIterator[State]:
    """Open a state file, made when there is none. `command`: how its user begins a command line, as questions show it.

    `check`: whether it must be the newest copy of itself, as all must who change runs. Raises `OlderCopy` when it is not, `OSError`.
    """
    path = _made(path)
    settings, clock, witness = Settings(command=command), SystemClock(), Witness(path)
    database = Database(path, TABLES, committed=witness.note)
    runs = SqliteRunStore(database, settings)
    try:
        if check:
            await database.write(witness.check)
        applier = Applier(runs, clock, SystemIds(), settings)
        yield State(path, settings, database, runs, SqliteRecordStore(database, clock.now), Workers(database), applier, clock, witness)
    finally:
        await database.close()


def _made(path: Path) -> Path:
    path = Path(os.path.realpath(path))  # by whichever link it is named: what stands beside it is one for all
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):
        # Payloads and results are for its user alone; SQLite gives its own files the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    return path


def command_for(path: Path, environ: Mapping[str, str]) -> str:
    """Return how a command line for that state file begins."""
    return "stepfence local" if path == default_path(environ) else f"stepfence local --state {shlex.quote(str(path))}"


class Lock:
    """Who starts workers and serves them: one process a state file, for as long as it lives, however it dies."""

    def __init__(self, state: Path) -> None:
        self._path = state.with_name(state.name + ".lock")
        self._handle: int | None = None

    def take(self) -> bool:
        """Try to become the one; True when this process is."""
        if self._handle is not None:
            return True
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        self._handle = handle
        return True

    def leave(self) -> None:
        """Let another process take over."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
