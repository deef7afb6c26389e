"""Runs, records and identities in one SQLite file: a write is there, whole and on the disk, or it is not there at all.

WAL with `synchronous=FULL`; every write is one transaction that holds the write lock from its start, so that what it read is still true
when it writes. Several processes may use the file at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from stepfence.core.errors import Code, Conflict, Refused, Unknown
from stepfence.core.model import Run
from stepfence.core.words import Settings
from stepfence.ports import BodyRecord, RunKey, Stored, Write
from stepfence.schema import IDENTITY_ANNOTATION, decode, identity_record_name, record_name
from stepfence.stores.age import is_young

__all__ = ["Database", "SqliteRecordStore", "SqliteRunStore", "last_revision"]

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
Document = dict[str, Any]

_VERSION = 2
# How long one call waits for another process's transaction, in seconds.
_BUSY_SECONDS = 10.0
_TABLES = """
CREATE TABLE IF NOT EXISTS revisions (last INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
    namespace TEXT NOT NULL, name TEXT NOT NULL, uid TEXT NOT NULL, revision INTEGER NOT NULL, token INTEGER NOT NULL,
    object TEXT NOT NULL, status TEXT NOT NULL, PRIMARY KEY (namespace, name)
);
CREATE TABLE IF NOT EXISTS records (
    namespace TEXT NOT NULL, name TEXT NOT NULL, run_uid TEXT NOT NULL, kind TEXT NOT NULL, digest TEXT NOT NULL, text TEXT NOT NULL,
    put_at REAL NOT NULL DEFAULT 0, PRIMARY KEY (namespace, name)
);
CREATE TABLE IF NOT EXISTS identities (namespace TEXT NOT NULL, name TEXT NOT NULL, uid TEXT NOT NULL, PRIMARY KEY (namespace, name));
"""
# What a file of an older version lacks, by that version.
_CHANGES = {1: "ALTER TABLE records ADD COLUMN put_at REAL NOT NULL DEFAULT 0"}
_PUT = """
INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace, name) DO UPDATE SET put_at = max(excluded.put_at, records.put_at + 1e-6) WHERE records.digest = excluded.digest
"""


class Database:
    """The file, worked on by one thread of its own, so that no call blocks the loop.

    `tables`: more SQL that makes tables. `committed` is told the last revision, in that thread, after each write; it must not raise.
    """

    def __init__(self, path: Path, tables: str = "", *, committed: Callable[[int], None] = lambda _: None) -> None:
        self.path = path
        self._tables, self._committed = _TABLES + tables, committed
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sqlite")
        self._open: sqlite3.Connection | None = None

    async def read(self, work: Work[T]) -> T:
        """Do some reading. Raises `Unknown` when the file cannot be used, and what `work` raises."""
        return await self._in_thread(work)

    async def write(self, work: Work[T]) -> T:
        """Do some work in one transaction, stored when this returns. Raises `Unknown`, and what `work` raises: then nothing is stored."""

        def transact(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN IMMEDIATE")
            try:
                answer = work(connection)
                revision = last_revision(connection)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            self._committed(revision)
            return answer

        return await self._in_thread(transact)

    async def data_version(self) -> int:
        """Return a number that changes when another connection has written."""
        return await self.read(lambda connection: int(connection.execute("PRAGMA data_version").fetchone()[0]))

    async def close(self) -> None:
        """Close the file; what is being done is finished first."""
        await asyncio.get_running_loop().run_in_executor(self._pool, self._shut)
        self._pool.shutdown()

    async def _in_thread(self, work: Work[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._use, work)

    def _use(self, work: Work[T]) -> T:
        try:
            if self._open is None:
                self._open = self._connect()
            return work(self._open)
        except sqlite3.Error as error:
            raise Unknown(f"{self.path}: {error}") from error

    def _shut(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _connect(self) -> sqlite3.Connection:
        # Transactions are begun by hand: the module's own begin late, with a read that another process may overtake.
        with contextlib.ExitStack() as stack:
            connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            stack.callback(connection.close)
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("BEGIN IMMEDIATE")
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found > _VERSION:
                raise Unknown(f"{self.path}: written by a newer version of Stepfence ({found}, this one knows {_VERSION})")
            if found in _CHANGES:
                connection.execute(_CHANGES[found])
            for statement in filter(str.strip, self._tables.split(";")):
                connection.execute(statement)
            if connection.execute("SELECT count(*) FROM revisions").fetchone()[0] == 0:
                connection.execute("INSERT INTO revisions VALUES (0)")
            if found != _VERSION:  # else every opening would be a write
                connection.execute(f"PRAGMA user_version={_VERSION}")
            connection.execute("COMMIT")
            stack.pop_all()
        return connection


class SqliteRunStore:
    """Holds whole AgentRun documents, the same as the API server does."""

    def __init__(self, database: Database, settings: Settings | None = None) -> None:
        self._database, self._settings = database, settings or Settings()

    async def create(self, manifest: Mapping[str, Any]) -> Stored:
        """Store a new AgentRun as the API server would: uid, generation, times, status. Raises `Conflict` when the name is taken."""
        metadata = {"namespace": "default", **manifest.get("metadata", {})}
        key = RunKey(metadata["namespace"], metadata["name"])
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata |= {"generation": 1, "creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        document = {**manifest, "metadata": metadata}
        document.pop("status", None)

        def work(connection: sqlite3.Connection) -> Stored:
            if _find(connection, key) is not None:
                raise Conflict(f"{key} exists")
            values = (*key, metadata["uid"], _next_revision(connection), 0, json.dumps(document), json.dumps({"observedGeneration": -1}))
            connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            return self._stored(key, _row(connection, key))

        return await self._database.write(work)

    async def edit(self, key: RunKey, change: Callable[[Document], Document]) -> Stored:
        """Replace the object by what `change` makes of it (its status stays), in one transaction.

        The generation counts changes of the spec. Raises `Refused(NOT_FOUND)`, and what `change` raises.
        """

        def work(connection: sqlite3.Connection) -> Stored:
            row = _row(connection, key)
            before = json.loads(row["object"])
            after = change({**before, "status": json.loads(row["status"])})
            after.pop("status", None)
            if after == before:
                return self._stored(key, row)
            if after.get("spec") != before.get("spec"):
                after["metadata"] = {**after["metadata"], "generation": before["metadata"]["generation"] + 1}
            update = "UPDATE runs SET object = ?, revision = ? WHERE namespace = ? AND name = ?"
            connection.execute(update, (json.dumps(after), _next_revision(connection), *key))
            return self._stored(key, _row(connection, key))

        return await self._database.write(work)

    async def mark(self, key: RunKey, uid: str) -> None:
        """Mark the object with its own uid (I11)."""

        def change(document: Document) -> Document:
            metadata = document["metadata"]
            if metadata["uid"] != uid:
                raise Refused(Code.NOT_FOUND, f"AgentRun {key.namespace}/{key.name} is another one now")
            annotations = {**(metadata.get("annotations") or {}), IDENTITY_ANNOTATION: uid}
            return {**document, "metadata": {**metadata, "annotations": annotations}}

        await self.edit(key, change)

    async def delete(self, key: RunKey, *, allow: Callable[[Run], None] = lambda _: None) -> None:
        """Remove a run. Raises `Refused(NOT_FOUND)`, and what `allow` raises of the run as it is then."""

        def work(connection: sqlite3.Connection) -> None:
            allow(self._stored(key, _row(connection, key)).run)
            connection.execute("DELETE FROM runs WHERE namespace = ? AND name = ?", key)
            _next_revision(connection)  # a change as any other: a copy of before it is an older one

        await self._database.write(work)

    async def document(self, key: RunKey) -> Document:
        """Return the whole object, as `kubectl get -o json` shows it. Raises `Refused(NOT_FOUND)`."""
        return await self._database.read(lambda connection: _document(_row(connection, key)))

    async def documents(self) -> list[Document]:
        """Return all objects, by namespace and name."""
        query = "SELECT * FROM runs ORDER BY namespace, name"
        return await self._database.read(lambda connection: [_document(row) for row in connection.execute(query)])

    async def names(self) -> list[tuple[RunKey, str]]:
        """Return name and uid of every object, by namespace and name, without reading what it says."""
        query = "SELECT namespace, name, uid FROM runs ORDER BY namespace, name"
        rows = await self._database.read(lambda connection: connection.execute(query).fetchall())
        return [(RunKey(row["namespace"], row["name"]), row["uid"]) for row in rows]

    async def load(self, key: RunKey) -> Stored:
        """See `RunStore.load`."""
        return await self._database.read(lambda connection: self._stored(key, _row(connection, key)))

    async def save(self, write: Write) -> Stored:
        """See `RunStore.save`."""
        key, before = write.before.key, write.before
        status = json.dumps(write.status)

        def work(connection: sqlite3.Connection) -> Stored:
            row = _row(connection, key)
            if row["uid"] != before.run.uid:
                raise Refused(Code.NOT_FOUND, f"AgentRun {key.namespace}/{key.name} is another one now")
            if str(row["revision"]) != before.revision or row["token"] != before.run.token:
                raise Conflict(f"{key} moved on")
            update = "UPDATE runs SET status = ?, token = ?, revision = ? WHERE namespace = ? AND name = ?"
            connection.execute(update, (status, write.status.get("fencingToken", 0), _next_revision(connection), *key))
            return self._stored(key, _row(connection, key))

        return await self._database.write(work)

    def _stored(self, key: RunKey, row: sqlite3.Row) -> Stored:
        document = _document(row)
        status = document.pop("status")
        run = decode({**document, "status": status}, self._settings)
        return Stored(key, run, str(row["revision"]), status, len(row["object"]))


class SqliteRecordStore:
    """Write-once bodies and spent identities beside the runs."""

    def __init__(self, database: Database, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._database, self._now = database, now

    async def put(self, run: Run, kind: str, text: str, digest: str) -> str:
        """See `RecordStore.put`."""
        name = record_name(run.uid, digest)
        values = (run.namespace, name, run.uid, kind, digest, text, self._now().timestamp())
        if await self._database.write(lambda connection: connection.execute(_PUT, values).rowcount) == 0:
            raise Refused(Code.STORE_CONFLICT, f"record {name} already holds another body")
        return name

    async def keep(self, run: Run, name: str) -> bool:
        """See `RecordStore.keep`."""
        query = "SELECT put_at FROM records WHERE namespace = ? AND name = ?"
        row = await self._database.read(lambda connection: connection.execute(query, (run.namespace, name)).fetchone())
        return row is not None and is_young(_moment(row["put_at"]), self._now())

    async def get(self, run: Run, name: str) -> str:
        """See `RecordStore.get`."""
        query = "SELECT text FROM records WHERE namespace = ? AND name = ? AND run_uid = ?"
        row = await self._database.read(lambda connection: connection.execute(query, (run.namespace, name, run.uid)).fetchone())
        if row is None:
            raise Refused(Code.NOT_FOUND, f"there is no record {name} of this run")
        return str(row["text"])

    async def spend(self, run: Run) -> str:
        """See `RecordStore.spend`."""
        name = identity_record_name(run.identity)

        def work(connection: sqlite3.Connection) -> str:
            connection.execute("INSERT OR IGNORE INTO identities VALUES (?, ?, ?)", (run.namespace, name, run.uid))
            query = "SELECT uid FROM identities WHERE namespace = ? AND name = ?"
            return str(connection.execute(query, (run.namespace, name)).fetchone()["uid"])

        return await self._database.write(work)

    async def collect(self) -> None:
        """Remove the bodies of runs that are gone. Spent identities stay."""
        query = "DELETE FROM records WHERE run_uid NOT IN (SELECT uid FROM runs)"
        await self._database.write(lambda connection: connection.execute(query))

    async def bodies(self) -> AsyncIterator[BodyRecord]:
        """See `SweepStore.bodies`."""
        columns = "records.namespace, records.name, run_uid, put_at, runs.name AS run"
        query = f"SELECT {columns} FROM records JOIN runs ON run_uid = uid ORDER BY run_uid, records.name"  # noqa: S608  (our own names)
        for row in await self._database.read(lambda connection: connection.execute(query).fetchall()):
            key, put_at = RunKey(row["namespace"], row["run"]), row["put_at"]
            yield BodyRecord(key, row["run_uid"], row["name"], _moment(put_at), repr(put_at))

    async def remove(self, record: BodyRecord) -> bool:
        """See `SweepStore.remove`."""
        query, values = "DELETE FROM records WHERE namespace = ? AND name = ? AND put_at = ?", (record.key.namespace, record.name)
        gone = await self._database.write(lambda connection: connection.execute(query, (*values, float(record.mark))).rowcount)
        return gone == 1


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _find(connection: sqlite3.Connection, key: RunKey) -> sqlite3.Row | None:
    row: sqlite3.Row | None = connection.execute("SELECT * FROM runs WHERE namespace = ? AND name = ?", key).fetchone()
    return row


def _row(connection: sqlite3.Connection, key: RunKey) -> sqlite3.Row:
    row = _find(connection, key)
    if row is None:
        raise Refused(Code.NOT_FOUND, f"there is no AgentRun {key.namespace}/{key.name}")
    return row


def _document(row: sqlite3.Row) -> Document:
    document: Document = json.loads(row["object"])
    document["metadata"]["resourceVersion"] = str(row["revision"])
    document["status"] = json.loads(row["status"])
    return document


def _next_revision(connection: sqlite3.Connection) -> int:
    """One count for all runs: a name that is used again never has an old revision again."""
    connection.execute("UPDATE revisions SET last = last + 1")
    return last_revision(connection)


def last_revision(connection: sqlite3.Connection) -> int:
    """Return how many changes of runs the file has seen, as of this connection's transaction."""
    return int(connection.execute("SELECT last FROM revisions").fetchone()[0])
