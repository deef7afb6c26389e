"""The table of workers: who was started, under which number, and how each ended. Keepers write the ends, whoever runs meanwhile."""

from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stepfence.core.world import JobFact, PodFact
from stepfence.ports import RunKey
from stepfence.schema.times import format_time, parse_time
from stepfence.stores.sqlite import Database

__all__ = ["TABLES", "WorkerRow", "Workers", "token_hash"]

TABLES = """
CREATE TABLE IF NOT EXISTS workers (
    uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, run TEXT NOT NULL, run_uid TEXT NOT NULL, job TEXT NOT NULL, number INTEGER NOT NULL,
    token TEXT NOT NULL UNIQUE, grace INTEGER NOT NULL, created_at TEXT NOT NULL, keeper_pid INTEGER, keeper_start TEXT, pid INTEGER,
    pid_start TEXT, lease_at TEXT, deletion_at TEXT, ended_at TEXT, exit_code INTEGER, message TEXT NOT NULL DEFAULT '',
    UNIQUE (run_uid, job)
);
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_ORPHAN = "run_uid NOT IN (SELECT uid FROM runs)"


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker. `keeper` and `process`: number and start of a process, once they run. `grace` in seconds."""

    uid: str
    key: RunKey
    run_uid: str
    job: str
    number: int
    token: str
    grace: int
    created_at: datetime
    keeper: tuple[int, str] | None = None
    process: tuple[int, str] | None = None
    lease_at: datetime | None = None
    deletion_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    message: str = ""

    @property
    def pod(self) -> str:
        """The name that takes the place of a pod's."""
        return f"{self.job}-{self.uid[:5]}"

    def pod_fact(self) -> PodFact:
        """Return the worker as a decision sees it: its end is confirmed, for its keeper saw everything of it end."""
        ended = self.ended_at is not None
        return PodFact(
            name=self.pod,
            uid=self.uid,
            job=self.job,
            created_at=self.created_at,
            terminal=ended,
            confirmed=ended,
            deletion_at=self.deletion_at,
            exit_code=self.exit_code,
            message=self.message,
        )

    def job_fact(self) -> JobFact:
        """Return the Job that it would be of."""
        return JobFact(self.job, self.number, uid=self.uid, started_at=self.created_at, done=self.ended_at is not None)


def token_hash(bearer: str) -> str:
    """Return what is kept of a worker's token."""
    return hashlib.sha256(bearer.encode()).hexdigest()


class Workers:
    """The table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, row: WorkerRow) -> bool:
        """Record a worker before its keeper is started; False when that Job has its worker already."""
        sql = (
            "INSERT OR IGNORE INTO workers (uid, namespace, run, run_uid, job, number, token, grace, created_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        values = (row.uid, *row.key, row.run_uid, row.job, row.number, row.token, row.grace, format_time(row.created_at))
        return await self._change(sql, values)

    async def of_run(self, run_uid: str) -> list[WorkerRow]:
        """Return the workers of a run, by number."""
        return await self._rows("WHERE run_uid = ? ORDER BY number", run_uid)

    async def living(self) -> list[WorkerRow]:
        """Return all workers whose end is not recorded."""
        return await self._rows("WHERE ended_at IS NULL ORDER BY created_at")

    async def orphans(self) -> list[WorkerRow]:
        """Return the workers of runs that are gone."""
        return await self._rows(f"WHERE {_ORPHAN} ORDER BY created_at")

    async def uids(self) -> set[str]:
        """Return the uids of all workers."""
        return {row.uid for row in await self._rows("")}

    async def by_token(self, token: str) -> WorkerRow | None:
        """Return the worker whose token has that hash."""
        return next(iter(await self._rows("WHERE token = ?", token)), None)

    async def by_uid(self, uid: str) -> WorkerRow | None:
        """Return the worker with that uid."""
        return next(iter(await self._rows("WHERE uid = ?", uid)), None)

    async def renew(self, uid: str, now: datetime) -> None:
        """Note a sign of life."""
        await self._change("UPDATE workers SET lease_at = ? WHERE uid = ?", (format_time(now), uid))

    async def dismiss(self, uid: str, until: datetime) -> None:
        """Record, once, that a worker was told to go and when its grace has passed."""
        sql = "UPDATE workers SET deletion_at = ? WHERE uid = ? AND deletion_at IS NULL AND ended_at IS NULL"
        await self._change(sql, (format_time(until), uid))

    async def note_end(self, uid: str, now: datetime, message: str) -> None:
        """Record the end of a worker whose keeper can no longer do it. What the keeper recorded stays."""
        sql = "UPDATE workers SET ended_at = ?, message = ? WHERE uid = ? AND ended_at IS NULL"
        await self._change(sql, (format_time(now), message, uid))

    async def take_back_unstarted(self, *, orphans: bool = False) -> None:
        """Forget workers that no keeper took on, all or of runs that are gone: one that comes late finds nothing, and starts nothing."""
        sql = "DELETE FROM workers WHERE keeper_pid IS NULL AND ended_at IS NULL"
        await self._change(f"{sql} AND {_ORPHAN}" if orphans else sql, ())

    async def forget(self, uid: str) -> None:
        """Remove a worker that has ended."""
        await self._change("DELETE FROM workers WHERE uid = ? AND ended_at IS NOT NULL", (uid,))

    async def setting(self, name: str) -> str | None:
        """Return a remembered value."""
        query = "SELECT value FROM settings WHERE name = ?"
        row = await self._database.read(lambda connection: connection.execute(query, (name,)).fetchone())
        return None if row is None else str(row["value"])

    async def remember(self, name: str, value: str) -> None:
        """Remember a value."""
        await self._change("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    async def _change(self, sql: str, values: tuple[Any, ...]) -> bool:
        return await self._database.write(lambda connection: connection.execute(sql, values).rowcount > 0)

    async def _rows(self, where: str, *values: Any) -> list[WorkerRow]:
        query = f"SELECT * FROM workers {where}"  # noqa: S608  (constants of this module)
        return await self._database.read(lambda connection: [_worker(row) for row in connection.execute(query, values)])


def _worker(row: sqlite3.Row) -> WorkerRow:
    return WorkerRow(
        uid=row["uid"],
        key=RunKey(row["namespace"], row["run"]),
        run_uid=row["run_uid"],
        job=row["job"],
        number=row["number"],
        token=row["token"],
        grace=row["grace"],
        created_at=parse_time(row["created_at"]),
        keeper=None if row["keeper_pid"] is None else (row["keeper_pid"], row["keeper_start"]),
        process=None if row["pid"] is None else (row["pid"], row["pid_start"] or ""),
        lease_at=_time(row["lease_at"]),
        deletion_at=_time(row["deletion_at"]),
        ended_at=_time(row["ended_at"]),
        exit_code=row["exit_code"],
        message=row["message"],
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else parse_time(text)
