"""A worker that no keeper took on, because the disk was full or there were too many processes, holds up neither its run nor the end."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from stepfence.local.runner import Runner
from stepfence.local.state import opened
from stepfence.local.workers import WorkerRow
from stepfence.ports import RunKey

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
