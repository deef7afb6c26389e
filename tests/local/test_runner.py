"""A worker that no keeper took on, because the disk was full or there were too many processes, holds up neither its run nor the end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from stepfence.local.runner import Runner
from stepfence.local.state import opened
from stepfence.local.workers import WorkerRow
from stepfence.ports import RecordKind, RunKey
from stepfence.stores.sqlite import SqliteRecordStore

KEY = RunKey("support", "refund")
NOW = datetime(2026, 1, 2, tzinfo=UTC)


async def test_the_end_of_a_worker_without_a_keeper_is_believed_when_two_looks_found_nothing_of_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "state.db", command="stepfence local") as state:
        runner = Runner(state, "http://127.0.0.1:1")
        await state.workers.add(WorkerRow("uid-1", KEY, "run-uid", "refund-1", 1, "token-1", 5, NOW))
        died = "UPDATE workers SET keeper_pid = 1, keeper_start = 'another boot'"
        await state.database.write(lambda connection: connection.execute(died))
        await runner.watch_keepers()
        assert [row.uid for row in await state.workers.living()] == ["uid-1"]
        await runner.watch_keepers()
        assert await state.workers.living() == []
        await runner.close()


async def test_a_worker_whose_keeper_never_took_it_on_has_ended(tmp_path: Path) -> None:
    async with opened(tmp_path / "state.db", command="stepfence local") as state:
        runner = Runner(state, "http://127.0.0.1:1")
        await state.workers.add(WorkerRow("uid-1", KEY, "run-uid", "refund-1", 1, "token-1", 5, NOW))
        await runner.watch_keepers()
        assert await state.workers.living() == []
        row = await state.workers.by_uid("uid-1")
        assert row is not None
        assert (row.exit_code, row.message) == (None, "its keeper could not be started")
        await runner.close()


async def test_records_that_no_run_refers_to_are_swept_on_the_way_and_not_all_the_time(tmp_path: Path) -> None:
    async with opened(tmp_path / "state.db", command="stepfence local") as state:
        run = (await state.runs.create({"metadata": {"name": KEY.name, "namespace": KEY.namespace}, "spec": {"template": {}}})).run
        past = SqliteRecordStore(state.database, lambda: state.clock.now() - timedelta(hours=1))
        await past.put(run, RecordKind.PAYLOAD, '"x"', "sha256:" + "0" * 64)
        await state.records.put(run, RecordKind.PAYLOAD, '"y"', "sha256:" + "1" * 64)
        await state.records.spend(run)
        runner = Runner(state, "http://127.0.0.1:1")
        for _ in range(3):
            await runner._sweep()
        assert len([record async for record in state.records.bodies()]) == 2
        runner._sweep_at = float("-inf")
        await runner._sweep()
        assert [record.name[-16:] async for record in state.records.bodies()] == ["1" * 16]
        assert await state.records.spend(run) == run.uid
        await runner.close()
