"""What every store of records must do; see `contract`."""

from __future__ import annotations

import asyncio

import pytest

from stepfence.app.budget import BudgetedRecordStore, ByteBudget
from stepfence.core.canonical import canonical, digest
from stepfence.core.errors import Code, Refused
from stepfence.core.words import Settings
from stepfence.ports import RecordKind
from stepfence.testing import FakeClock
from tests.stores.contract import Backend, fresh, new


class RecordStoreContract:
    async def test_a_body_is_written_once_and_read_back(self, backend: Backend) -> None:
        run = (await backend.store.load(await new(backend))).run
        text = canonical({"text": 'ä"\\', "n": [1, 2.5, None, True]})
        names = [await backend.records.put(run, kind, text, digest(text)) for kind in (RecordKind.PAYLOAD, RecordKind.RESULT)]
        assert names[0] == names[1]
        assert await backend.records.get(run, names[0]) == text

    async def test_a_body_of_256_kib_fits(self, backend: Backend) -> None:
        run = (await backend.store.load(await new(backend))).run
        text = canonical("x" * (256 * 1024 - 2))
        assert len(text) == Settings().record_bytes
        name = await backend.records.put(run, RecordKind.RESULT, text, digest(text))
        assert await backend.records.get(run, name) == text

    async def test_a_record_that_is_not_there_is_not_found(self, backend: Backend) -> None:
        run = (await backend.store.load(await new(backend))).run
        with pytest.raises(Refused) as refused:
            await backend.records.get(run, f"{run.uid}-0000000000000000")
        assert refused.value.code is Code.NOT_FOUND

    async def test_another_runs_record_is_not_found(self, backend: Backend) -> None:
        mine, theirs = [(await backend.store.load(await new(backend))).run for _ in range(2)]
        text = canonical("theirs")
        name = await backend.records.put(theirs, RecordKind.RESULT, text, digest(text))
        with pytest.raises(Refused) as refused:
            await backend.records.get(mine, name)
        assert refused.value.code is Code.NOT_FOUND

    async def test_an_identity_is_spent_once_and_for_ever(self, backend: Backend) -> None:
        identity = f"refund-{fresh()}"
        first_key, second_key = await new(backend, runID=identity), await new(backend, runID=identity)
        first, second = [(await backend.store.load(key)).run for key in (first_key, second_key)]
        assert await backend.records.spend(first) == first.uid
        assert await backend.records.spend(first) == first.uid
        assert await backend.records.spend(second) == first.uid
        await backend.delete(first_key)
        assert await backend.records.spend(second) == first.uid

    async def test_runs_without_an_identity_of_their_own_do_not_meet(self, backend: Backend) -> None:
        for key in (await new(backend), await new(backend)):
            run = (await backend.store.load(key)).run
            assert await backend.records.spend(run) == run.uid

    async def test_of_two_that_spend_at_once_one_owns_it(self, backend: Backend) -> None:
        identity = f"refund-{fresh()}"
        runs = [(await backend.store.load(await new(backend, runID=identity))).run for _ in range(2)]
        owners = await asyncio.gather(*(backend.records.spend(run) for run in runs))
        assert owners[0] == owners[1]
        assert owners[0] in {run.uid for run in runs}

    async def test_it_is_the_same_under_a_budget(self, backend: Backend) -> None:
        records = BudgetedRecordStore(backend.records, ByteBudget(FakeClock()))
        run = (await backend.store.load(await new(backend))).run
        text = canonical("budgeted")
        name = await records.put(run, RecordKind.RESULT, text, digest(text))
        assert await records.get(run, name) == text
        assert await records.spend(run) == run.uid
