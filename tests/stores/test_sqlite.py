"""The SQLite stores keep the contract, and a writer that is killed leaves nothing half-written."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from stepfence.core.errors import Code, Conflict, Refused, Unknown
from stepfence.core.model import Run
from stepfence.ports import RunKey, Write
from stepfence.stores.merge import merge
from stepfence.stores.sqlite import Database, SqliteRecordStore, SqliteRunStore
from stepfence.testing import FakeClock
from tests.stores.contract import PLAN, Driver, LostReplyContract, RunStoreContract, UnknownFieldsContract
from tests.stores.contract_records import RecordStoreContract
from tests.stores.line import Line, RemoteRecords, RemoteRuns

ROOT = Path(__file__).parents[2]
KEY = RunKey("default", "run")
SECONDS = 30.0


def manifest(name: str = "run", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"template": {}, "plan": {"steps": PLAN}, **spec}}


class SqliteBackend:
    def __init__(self, database: Database) -> None:
        self._line = Line()
        self._store = SqliteRunStore(database)
        self.store = RemoteRuns(self._store, self._line)
        self._clock = FakeClock()
        self.records = RemoteRecords(SqliteRecordStore(database, self._clock.now), self._line)

    def later(self, seconds: float) -> None:
        self._clock.advance(seconds)

    async def create(self, name: str, **spec: Any) -> RunKey:
        return (await self._store.create({"metadata": {"name": name, "namespace": "default"}, "spec": {"template": {}, **spec}})).key

    async def patch_spec(self, key: RunKey, changes: Mapping[str, Any]) -> None:
        await self._store.edit(key, lambda document: merge(document, {"spec": changes}))

    async def patch_status(self, key: RunKey, changes: Mapping[str, Any]) -> None:
        stored = await self._store.load(key)
        await self._store.save(Write(stored, stored.run, {**stored.raw, **changes}))

    async def delete(self, key: RunKey) -> None:
        await self._store.delete(key)

    async def document(self, key: RunKey) -> dict[str, Any]:
        return await self._store.document(key)

    def lose_replies(self) -> None:
        self._line.replies = False

    def lose_calls(self) -> None:
        self._line.calls = False

    def heal(self) -> None:
        self._line.replies = self._line.calls = True


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(tmp_path / "state.db")
    yield database
    await database.close()


@pytest.fixture
async def backend(database: Database) -> SqliteBackend:
    return SqliteBackend(database)


class TestRuns(RunStoreContract):
    pass


class TestLostReplies(LostReplyContract):
    pass


class TestUnknownFields(UnknownFieldsContract):
    pass


class TestRecords(RecordStoreContract):
    pass


async def test_every_write_is_on_the_disk_when_it_returns(database: Database) -> None:
    def pragmas(connection: sqlite3.Connection) -> list[Any]:
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]

    assert await database.read(pragmas) == ["wal", 2]


async def test_another_process_sees_what_was_written(database: Database, tmp_path: Path) -> None:
    await SqliteRunStore(database).create(manifest())
    other = Database(tmp_path / "state.db")
    stored = await SqliteRunStore(other).load(KEY)
    version = await other.data_version()
    await SqliteRunStore(database).edit(KEY, lambda document: merge(document, {"spec": {"suspend": True}}))
    assert await other.data_version() != version
    with pytest.raises(Conflict):
        await SqliteRunStore(other).save(Write(stored, stored.run, stored.raw))
    await other.close()


async def test_a_write_that_raises_leaves_nothing_and_no_lock(database: Database, tmp_path: Path) -> None:
    store = SqliteRunStore(database)
    await store.create(manifest())
    before = await store.document(KEY)

    def refuse(document: dict[str, Any]) -> dict[str, Any]:
        raise Refused(Code.BAD_REQUEST, "no")

    with pytest.raises(Refused):
        await store.edit(KEY, refuse)
    assert await store.document(KEY) == before
    await store.edit(KEY, lambda document: merge(document, {"spec": {"suspend": True}}))
    assert (await store.document(KEY))["metadata"]["generation"] == 2


async def test_a_name_is_taken_once(database: Database) -> None:
    await SqliteRunStore(database).create(manifest())
    with pytest.raises(Conflict):
        await SqliteRunStore(database).create(manifest())


async def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    newer = Database(path)
    with pytest.raises(Unknown, match="newer version"):
        await SqliteRunStore(newer).load(KEY)
    await newer.close()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    connection.close()


async def test_a_file_of_before_records_had_a_time_is_brought_up_and_its_bodies_stay(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    first = Database(path)
    run = (await SqliteRunStore(first).create(manifest())).run
    name = await SqliteRecordStore(first).put(run, "Result", '"x"', "sha256:" + "0" * 64)
    await first.close()
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE records DROP COLUMN put_at")
    connection.execute("PRAGMA user_version=1")
    connection.commit()
    connection.close()
    for _ in range(2):
        database = Database(path)
        records = SqliteRecordStore(database)
        assert await records.get(run, name) == '"x"'
        assert [record.put_at.year async for record in records.bodies()] == [1970]
        await database.close()
    assert not await _young(path, run, name)
    database = Database(path)
    await SqliteRecordStore(database).put(run, "Result", '"x"', "sha256:" + "0" * 64)
    await database.close()
    assert await _young(path, run, name)


async def _young(path: Path, run: Run, name: str) -> bool:
    database = Database(path)
    try:
        return await SqliteRecordStore(database).keep(run, name)
    finally:
        await database.close()


async def test_what_is_no_database_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_text("this is no database, whatever its name says" * 100)
    database = Database(path)
    with pytest.raises(Unknown, match="not a database"):
        await SqliteRunStore(database).load(KEY)
    await database.close()


@pytest.mark.parametrize("writes", [1, 7, 40])
async def test_a_writer_killed_at_any_write_leaves_a_whole_run(writes: int, tmp_path: Path) -> None:
    """The writer says each write that returned; what it said is there afterwards, and at most the one in its hands beside it."""
    path = tmp_path / "state.db"
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.stores.sqlite_writer", str(path), cwd=ROOT, env=environ, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    said = {}
    async with asyncio.timeout(SECONDS):
        for _ in range(writes):
            said = json.loads(await process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    rest = (await process.communicate())[0].splitlines()
    said = json.loads(rest[-1]) if rest and rest[-1].endswith(b"}") else said
    database = Database(path)
    stored = await SqliteRunStore(database).load(KEY)
    assert stored.run.version - said["version"] in (0, 1)
    assert stored.raw["version"] == stored.run.version
    assert await database.read(lambda c: c.execute("PRAGMA integrity_check").fetchone()[0]) == "ok"
    again = await Driver(SqliteRunStore(database), "heir").claim(KEY, "claim-heir")
    assert again.run.token == stored.run.token + 1
    await database.close()
