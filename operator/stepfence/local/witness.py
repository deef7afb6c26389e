"""What was recorded last, remembered beside the state file, so that an older copy of it is told from the newest one (I11).

A state file that went back in time does not know what was done since, and would do it again. The witness is a line in a file of its own:
which history it speaks of, and the last revision that was stored. A revision is written after its commit and never before, and is not
forced to the disk: it may lag behind what is stored, which misses an older copy at worst, and is never ahead of it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import uuid
import zlib
from pathlib import Path
from typing import NamedTuple

import structlog

from stepfence.core.errors import Code, Refused
from stepfence.stores.sqlite import last_revision

__all__ = ["OlderCopy", "Witness"]

_LOG = structlog.get_logger(__name__)
_BYTES = 128
_TRIES = 100
_SETTING = "history"


class _Seen(NamedTuple):
    history: str
    revision: int


class OlderCopy(Refused):
    """The file is not the newest copy of itself. `how` says what shows it and what follows, without what to do about it."""

    def __init__(self, shown: str) -> None:
        self.how = f"the state file was put back from an older copy: {shown}. What was done since is not in it and would be done again"
        what_to_do = (
            "put the newest one back; or go on with `run --accept-older-state`: every run that is not over then waits for an answer"
        )
        super().__init__(Code.HELD, f"{self.how}: {what_to_do}")


class Witness:
    """Beside one state file. `note` does nothing before `check` or `begin_anew` took effect."""

    def __init__(self, state: Path) -> None:
        self._path = state.with_name(state.name + ".seen")
        self._history: str | None = None
        self._warned = False

    def check(self, connection: sqlite3.Connection) -> None:
        """Compare the file with what was recorded last; a new file, and one that nothing is remembered of, begins here.

        To be called within a transaction that holds the write lock. Raises `OlderCopy` when the file is not the newest.
        """
        history, seen, stored = _history(connection), self._read(), last_revision(connection)
        if history is None and not stored:
            self.leave_behind(connection)
            self.begin_anew(connection)
        elif history is None and seen is None:
            # Of before there were witnesses. Noted by the commit: one that is killed on the way leaves none that speaks against the file.
            self._history = self.leave_behind(connection)
        elif seen is None:
            self.begin_anew(connection)
        elif seen.history != history:
            raise OlderCopy(f"another one was in use here, up to revision {seen.revision}; this one holds {stored}")
        elif seen.revision > stored:
            raise OlderCopy(f"revision {seen.revision} was stored, it holds {stored}")
        else:
            self._history = history

    def leave_behind(self, connection: sqlite3.Connection) -> str:
        """Make this file one of its own: until `begin_anew` any witness speaks against it, and after that against every other copy."""
        history = uuid.uuid4().hex
        connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (_SETTING, history))
        return history

    def begin_anew(self, connection: sqlite3.Connection) -> None:
        """Make this file the newest one. Within a transaction, as `check`."""
        self._history = _history(connection)
        # Before the commit: whoever opens the file next must not meet it beside what was remembered of another one.
        self.note(last_revision(connection))

    def note(self, revision: int) -> None:
        """Remember what was stored. What is on the disk counts whether this succeeds or not: it is only warned of."""
        if self._history is None:
            return
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with contextlib.closing(os.fdopen(handle, "wb", buffering=0)) as file:
                file.write(_encode(_Seen(self._history, revision)))
        except OSError as error:
            if not self._warned:
                _LOG.warning("an older copy of the state file would not be noticed", file=str(self._path), error=str(error))
            self._warned = True

    def _read(self) -> _Seen | None:
        for _ in range(_TRIES):  # a read may meet half of a write; what a power cut left half is no witness
            try:
                text = self._path.read_bytes()
            except FileNotFoundError:
                return None
            if (seen := _decode(text)) is not None:
                return seen
        return None


def _history(connection: sqlite3.Connection) -> str | None:
    row = connection.execute("SELECT value FROM settings WHERE name = ?", (_SETTING,)).fetchone()
    return None if row is None else str(row[0])


def _encode(seen: _Seen) -> bytes:
    text = f"{seen.history} {seen.revision}"
    return f"{text} {zlib.crc32(text.encode()):08x}".ljust(_BYTES - 1).encode() + b"\n"


def _decode(line: bytes) -> _Seen | None:
    words = line.decode("ascii", "replace").split()
    if len(words) != 3 or not words[1].isdecimal():
        return None
    seen = _Seen(words[0], int(words[1]))
    return seen if _encode(seen) == line else None
