"""Who may call without a cluster: a worker by its own token, as long as its row is there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from stepfence.core.errors import Code, Refused
from stepfence.core.fencing import HolderFact
from stepfence.local.gate import LocalGate
from stepfence.local.workers import TABLES, WorkerRow, Workers, token_hash
from stepfence.ports import Caller, RunKey, WorkerIdentity
from stepfence.stores.sqlite import Database
from stepfence.testing.builders import claimed, new_run, seconds
from stepfence.testing.clock import FakeClock

BEARER = "0123456789abcdef"
ROW = WorkerRow("pod-1-uid", RunKey("support", "refund"), "uid-1", "refund-1", 1, token_hash(BEARER), 30, seconds(0))
CALLER = Caller("support", ROW.pod, ROW.uid)


@pytest.fixture
async def workers(tmp_path: Path) -> AsyncIterator[Workers]:
    database = Database(tmp_path / "state.db", TABLES)
    made = Workers(database)
    await made.add(ROW)
    await made.add(replace(ROW, uid="pod-2-uid", job="refund-2", number=2, token=token_hash("another")))
    yield made
    await database.close()


async def test_a_token_names_its_own_worker(workers: Workers) -> None:
    gate = LocalGate(workers, FakeClock())
    assert await gate.identify(BEARER) == CALLER
    assert await gate.worker_of(CALLER) == WorkerIdentity("refund", "uid-1", "refund-1")


@pytest.mark.parametrize("bearer", ["", "wrong", token_hash(BEARER), BEARER.upper()])
async def test_another_token_is_refused_and_what_is_stored_is_none(bearer: str, workers: Workers) -> None:
    with pytest.raises(Refused) as refused:
        await LocalGate(workers, FakeClock()).identify(bearer)
    assert refused.value.code is Code.UNAUTHENTICATED
    assert bearer == "" or bearer not in str(refused.value)


async def test_a_worker_that_is_not_known_belongs_to_no_run(workers: Workers) -> None:
    assert await LocalGate(workers, FakeClock()).worker_of(replace(CALLER, pod_uid="pod-3-uid")) is None


async def test_a_holder_lives_until_its_end_is_recorded(workers: Workers) -> None:
    gate, run = LocalGate(workers, FakeClock()), claimed(new_run())
    assert await gate.holder(run) is HolderFact.ALIVE
    await workers.note_end(ROW.uid, seconds(5), "")
    assert await gate.holder(run) is HolderFact.OVER
    await workers.forget(ROW.uid)
    assert await gate.holder(run) is HolderFact.OVER


async def test_a_holder_that_was_told_to_go_is_over_only_when_neither_grace_nor_lease_is_left(workers: Workers) -> None:
    clock, run = FakeClock(), claimed(new_run())
    gate = LocalGate(workers, clock)
    await workers.dismiss(ROW.uid, seconds(30))
    clock.advance(50)
    await gate.renew(run, CALLER)
    clock.advance(59)
    assert await gate.holder(run) is HolderFact.ALIVE
    clock.advance(2)
    assert await gate.holder(run) is HolderFact.OVER
