"""What every store of records must do; see `contract`."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from stepfence.app.budget import BudgetedRecordStore, ByteBudget
from stepfence.core.canonical import canonical, digest
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Run
from stepfence.core.words import Settings
from stepfence.ports import BodyRecord, RecordKind, RunKey
from stepfence.testing import FakeClock
from tests.stores.contract import Backend, fresh, new

GRACE = Settings().orphan_grace
TEXT = canonical({"text": "body"})


async def put(backend: Backend, run: Run | None = None) -> tuple[Run, str]:
    """Put the same body, into a new run unless one is given."""
    run = run or (await backend.store.load(await new(backend))).run
    return run, await backend.records.put(run, RecordKind.RESULT, TEXT, digest(TEXT))


async def bodies_of(backend: Backend, run: Run) -> list[BodyRecord]:
    return [record async for record in backend.records.bodies() if record.run_uid == run.uid]


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

    async def test_a_body_that_is_put_again_is_young_again_and_the_same(self, backend: Backend) -> None:
        run, name = await put(backend)
        assert await backend.records.keep(run, name)
        (first,) = await bodies_of(backend, run)
        backend.later(GRACE)
        assert not await backend.records.keep(run, name)
        assert (await bodies_of(backend, run))[0] == first
        await put(backend, run)
        assert await backend.records.keep(run, name)
        (again,) = await bodies_of(backend, run)
        assert (again.name, again.key, again.run_uid) == (name, RunKey(run.namespace, run.name), run.uid)
        assert again.mark != first.mark
        assert again.put_at >= first.put_at + timedelta(seconds=GRACE - 60)
        assert await backend.records.get(run, name) == TEXT

    async def test_a_record_that_is_not_there_is_not_kept(self, backend: Backend) -> None:
        run = (await backend.store.load(await new(backend))).run
        assert not await backend.records.keep(run, f"{run.uid}-0000000000000000")

    async def test_a_name_that_holds_another_body_is_refused(self, backend: Backend) -> None:
        run, name = await put(backend)
        other = canonical("another")
        with pytest.raises(Refused) as refused:
            await backend.records.put(run, RecordKind.RESULT, other, digest(TEXT)[:23] + digest(other)[23:])
        assert refused.value.code is Code.STORE_CONFLICT
        assert await backend.records.get(run, name) == TEXT

    async def test_a_record_is_removed_as_it_was_seen_and_once(self, backend: Backend) -> None:
        run, name = await put(backend)
        (seen,) = await bodies_of(backend, run)
        assert await backend.records.remove(seen)
        assert not await backend.records.remove(seen)
        with pytest.raises(Refused):
            await backend.records.get(run, name)
        assert await bodies_of(backend, run) == []

    async def test_a_record_that_was_put_again_since_it_was_seen_is_not_removed(self, backend: Backend) -> None:
        run, name = await put(backend)
        (seen,) = await bodies_of(backend, run)
        backend.later(GRACE)
        await put(backend, run)
        assert not await backend.records.remove(seen)
        assert await backend.records.get(run, name) == TEXT

    async def test_one_that_was_removed_and_put_again_since_it_was_seen_is_not_removed(self, backend: Backend) -> None:
        run, name = await put(backend)
        (seen,) = await bodies_of(backend, run)
        assert await backend.records.remove(seen)
        backend.later(1)
        await put(backend, run)
        assert not await backend.records.remove(seen)
        assert await backend.records.get(run, name) == TEXT

    async def test_bodies_are_listed_by_run_and_a_spent_identity_is_none(self, backend: Backend) -> None:
        runs = [(await backend.store.load(await new(backend))).run for _ in range(3)]
        for number in range(3):
            for run in runs:
                text = canonical(f"{run.uid} {number}")
                await backend.records.put(run, RecordKind.PAYLOAD, text, digest(text))
        for run in runs:
            await backend.records.spend(run)
        listed = [record.run_uid async for record in backend.records.bodies() if record.run_uid in {run.uid for run in runs}]
        assert len(listed) == 9
        assert [uid for number, uid in enumerate(listed) if number % 3 == 0] == sorted({run.uid for run in runs}, key=listed.index)
        assert all(listed.count(run.uid) == 3 for run in runs)

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
