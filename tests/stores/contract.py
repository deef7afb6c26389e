"""What every store of runs and records must do: one suite, run on memory here and on a real API server under e2e/contract.

A module that runs it defines the fixture `backend` and imports the classes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import pytest

from stepfence.app import Applier
from stepfence.app.apply import Applied, Edit
from stepfence.core import fencing, ledger, lifecycle, reports
from stepfence.core.canonical import Json, canonical, digest
from stepfence.core.errors import Code, Conflict, Refused, Unknown
from stepfence.core.fencing import Claim, HolderFact
from stepfence.core.model import Run
from stepfence.core.words import At, Settings, State
from stepfence.ports import RecordKind, RunKey, RunStore, Stored, Write
from stepfence.testing import FakeClock, FakeIds
from stepfence.testing.builders import body
from tests.stores.line import Records

T = TypeVar("T")
PLAN = [{"id": "lookup", "action": "Read"}, {"id": "refund", "action": "Payment"}]


class Backend(Protocol):
    """One store under test, and the hands of others who write the same objects."""

    @property
    def store(self) -> RunStore: ...

    @property
    def records(self) -> Records: ...

    def later(self, seconds: float) -> None:
        """Move the clock of the records on."""
        ...

    async def create(self, name: str, **spec: Any) -> RunKey:
        """Apply a new AgentRun with that spec."""
        ...

    async def patch_spec(self, key: RunKey, changes: Mapping[str, Any]) -> None:
        """Merge into the spec, as a person does."""
        ...

    async def patch_status(self, key: RunKey, changes: Mapping[str, Any]) -> None:
        """Merge into the status, as another controller or a newer version does."""
        ...

    async def delete(self, key: RunKey) -> None: ...

    async def document(self, key: RunKey) -> dict[str, Any]:
        """The whole object as stored."""
        ...

    def lose_replies(self) -> None:
        """From now on a write takes effect and its reply is lost."""
        ...

    def lose_calls(self) -> None:
        """From now on nothing reaches the store."""
        ...

    def heal(self) -> None: ...


_NAMES = itertools.count(1)


class Driver:
    """A writer with its own memory of what it saw, as each gateway has."""

    def __init__(self, store: RunStore, name: str = "driver") -> None:
        self.applier = Applier(store, FakeClock(), FakeIds(name), Settings())
        self.pod = name

    async def accept(self, key: RunKey) -> Stored:
        return (await self.apply(key, lambda run, at: (lifecycle.accept(run, at), None))).stored

    async def claim(self, key: RunKey, request: str = "claim-1") -> Stored:
        def edit(run: Run, at: At) -> tuple[Run, bool]:
            return fencing.claim(run, Claim(self.pod, f"{self.pod}-uid", request, 60), HolderFact.OVER, at)

        return (await self.apply(key, edit)).stored

    async def begin(self, key: RunKey, step: str, token: int, request: str = "begin-1", payload: Any = None) -> Stored:
        call = ledger.Begin(step, token, f"{self.pod}-uid", request, body(payload))
        return (await self.apply(key, lambda run, at: ledger.begin(run, call, at))).stored

    async def complete(self, key: RunKey, step: str, token: int, result: Any = None, attempt: int = 1) -> Stored:
        report = reports.Report(step, attempt, token, f"{self.pod}-uid")
        return (await self.apply(key, lambda run, at: reports.complete(run, report, body(result), at))).stored

    async def apply(self, key: RunKey, edit: Edit[T]) -> Applied[T]:
        return await self.applier.apply(key, edit)


def fresh() -> int:
    """A number that no other test has."""
    return next(_NAMES)


async def new(backend: Backend, **spec: Any) -> RunKey:
    return await backend.create(f"run-{fresh()}", **{"plan": {"steps": PLAN}, **spec})


async def claimed(backend: Backend, driver: Driver, **spec: Any) -> Stored:
    key = await new(backend, **spec)
    await driver.accept(key)
    return await driver.claim(key)


def write_of(stored: Stored, change: Callable[[Run], Run] = lambda run: run, **status: Any) -> Write:
    """A write straight at the store, with one field changed in the status."""
    run = change(replace(stored.run, version=stored.run.version + 1))
    document = {**stored.raw, "version": run.version, "fencingToken": run.token, **status}
    return Write(stored, run, document, 0)


class RunStoreContract:
    async def test_a_new_run_is_read_as_it_was_applied(self, backend: Backend) -> None:
        key = await new(backend, input={"order": "4711"}, runID="refund-1")
        stored = await backend.store.load(key)
        assert stored.key == key
        assert (stored.run.version, stored.run.token, stored.run.observed_generation) == (0, 0, -1)
        assert (stored.run.spec.input, stored.run.spec.run_id) == ('{"order":"4711"}', "refund-1")
        assert [step.id for step in stored.run.spec.steps or ()] == ["lookup", "refund"]
        assert stored.run.uid
        assert stored.revision
        assert stored.base_bytes > len('{"order":"4711"}')

    async def test_a_run_that_is_not_there_is_not_found(self, backend: Backend) -> None:
        with pytest.raises(Refused) as refused:
            await backend.store.load(RunKey("default", "nowhere"))
        assert refused.value.code is Code.NOT_FOUND

    async def test_a_write_answers_what_a_read_would(self, backend: Backend) -> None:
        driver = Driver(backend.store)
        stored = await claimed(backend, driver)
        written = await driver.begin(stored.key, "refund", 1, payload={"n": 1.5, "text": 'ä"\\\n', "none": None})
        read = await backend.store.load(stored.key)
        assert read == written
        assert read.raw == written.raw
        assert written.revision != stored.revision
        assert written.run.ledger["refund"].state is State.IN_FLIGHT
        assert written.run.ledger["refund"].payload == body({"n": 1.5, "text": 'ä"\\\n', "none": None})

    async def test_one_read_serves_all_writes_of_one_writer(self, backend: Backend) -> None:
        class Counting:
            loads = saves = 0

            async def load(self, key: RunKey) -> Stored:
                self.loads += 1
                return await backend.store.load(key)

            async def save(self, write: Write) -> Stored:
                self.saves += 1
                return await backend.store.save(write)

        store = Counting()
        driver = Driver(store)
        stored = await claimed(backend, driver)
        for step in ("lookup", "refund"):
            await driver.begin(stored.key, step, 1)
            await driver.complete(stored.key, step, 1)
        assert (store.loads, store.saves) == (1, 6)

    async def test_a_write_under_an_old_version_is_a_conflict_and_changes_nothing(self, backend: Backend) -> None:
        key = await new(backend)
        stale = await backend.store.load(key)
        current = await backend.store.save(write_of(stale, phase="Running"))
        with pytest.raises(Conflict):
            await backend.store.save(write_of(stale, phase="Held"))
        assert (await backend.store.load(key)) == current

    async def test_a_write_after_a_change_of_the_spec_is_a_conflict(self, backend: Backend) -> None:
        key = await new(backend)
        stale = await backend.store.load(key)
        await backend.patch_spec(key, {"suspend": True})
        with pytest.raises(Conflict):
            await backend.store.save(write_of(stale, phase="Running"))
        fresh = await backend.store.load(key)
        assert (fresh.run.spec.suspend, fresh.raw.get("phase") == "Running") == (True, False)

    async def test_a_write_under_an_old_token_is_a_conflict(self, backend: Backend) -> None:
        first, second = Driver(backend.store, "first"), Driver(backend.store, "second")
        stale = await claimed(backend, first)
        current = await second.claim(stale.key, "claim-2")
        assert (stale.run.token, current.run.token) == (1, 2)
        with pytest.raises(Conflict):
            await backend.store.save(write_of(stale, phase="Held"))
        assert (await backend.store.load(stale.key)) == current

    async def test_a_writer_that_was_fenced_out_learns_it_when_it_decides_again(self, backend: Backend) -> None:
        first, second = Driver(backend.store, "first"), Driver(backend.store, "second")
        stale = await claimed(backend, first)
        await second.claim(stale.key, "claim-2")
        with pytest.raises(Refused) as refused:
            await first.begin(stale.key, "refund", 1)
        assert refused.value.code is Code.FENCED
        assert first.applier.conflicts == 1

    async def test_of_writers_at_once_each_gets_its_turn_and_none_is_lost(self, backend: Backend) -> None:
        key = await new(backend)
        await Driver(backend.store).accept(key)
        drivers = [Driver(backend.store, f"pod-{number}") for number in range(4)]
        taken = await asyncio.gather(*(driver.claim(key, driver.pod) for driver in drivers))
        assert sorted(stored.run.token for stored in taken) == [1, 2, 3, 4]
        assert (await backend.store.load(key)).run.version == 5

    async def test_a_write_to_a_run_that_was_deleted_is_not_found(self, backend: Backend) -> None:
        key = await new(backend)
        stored = await backend.store.load(key)
        await backend.delete(key)
        with pytest.raises(Refused) as refused:
            await backend.store.save(write_of(stored))
        assert refused.value.code is Code.NOT_FOUND

    async def test_a_write_to_a_run_that_was_made_again_is_not_found_and_leaves_the_new_one_alone(self, backend: Backend) -> None:
        key = await new(backend)
        old = await backend.store.load(key)
        await backend.delete(key)
        await backend.create(key.name, plan={"steps": PLAN})
        new_one = await backend.store.load(key)
        with pytest.raises(Refused) as refused:
            await backend.store.save(write_of(old, phase="Running"))
        assert refused.value.code is Code.NOT_FOUND
        assert (await backend.store.load(key)) == new_one

    async def test_a_write_touches_the_status_alone(self, backend: Backend) -> None:
        driver = Driver(backend.store)
        key = await new(backend, input={"order": "4711"})
        before = await backend.document(key)
        await driver.accept(key)
        after = await backend.document(key)
        assert after["spec"] == before["spec"]
        for name in ("generation", "labels", "annotations", "uid"):
            assert after["metadata"].get(name) == before["metadata"].get(name)

    async def test_a_large_ledger_comes_back_as_it_was_written(self, backend: Backend) -> None:
        driver = Driver(backend.store)
        steps = [{"id": f"step-{number}", "action": "Read"} for number in range(20)]
        stored = await claimed(backend, driver, plan={"steps": steps})
        result: Json = {"text": 'ß"' * 200}
        for step in steps:
            await driver.begin(stored.key, step["id"], 1)
            await driver.complete(stored.key, step["id"], 1, result)
        read = await backend.store.load(stored.key)
        assert read == driver.applier.known(stored.key)
        assert read.run.ledger["step-19"].result == body(result)
        assert all(entry.state is State.DONE for entry in read.run.ledger.values())


class LostReplyContract:
    async def test_a_lost_reply_is_unknown_and_a_read_shows_the_write(self, backend: Backend) -> None:
        stored = await backend.store.load(await new(backend))
        backend.lose_replies()
        with pytest.raises(Unknown):
            await backend.store.save(write_of(stored, phase="Running"))
        backend.heal()
        read = await backend.store.load(stored.key)
        assert (read.raw["phase"], read.run.version) == ("Running", 1)

    async def test_a_call_that_never_arrives_is_unknown_and_a_read_shows_nothing(self, backend: Backend) -> None:
        stored = await backend.store.load(await new(backend))
        backend.lose_calls()
        with pytest.raises(Unknown):
            await backend.store.save(write_of(stored, phase="Running"))
        with pytest.raises(Unknown):
            await backend.store.load(stored.key)
        backend.heal()
        assert await backend.store.load(stored.key) == stored

    async def test_a_repeated_begin_after_a_lost_reply_gets_the_recorded_attempt(self, backend: Backend) -> None:
        driver = Driver(backend.store)
        stored = await claimed(backend, driver)
        backend.lose_replies()
        with pytest.raises(Unknown):
            await driver.begin(stored.key, "refund", 1, "begin-1")
        backend.heal()
        again = await driver.begin(stored.key, "refund", 1, "begin-1")
        assert again.run.ledger["refund"].attempt == 1
        assert again.run.version == stored.run.version + 1

    async def test_a_record_whose_reply_was_lost_is_there_when_it_is_written_again(self, backend: Backend) -> None:
        run = (await backend.store.load(await new(backend))).run
        text = canonical({"n": run.uid})
        backend.lose_replies()
        with pytest.raises(Unknown):
            await backend.records.put(run, RecordKind.RESULT, text, digest(text))
        backend.heal()
        name = await backend.records.put(run, RecordKind.RESULT, text, digest(text))
        assert await backend.records.get(run, name) == text

    async def test_an_identity_whose_reply_was_lost_is_spent(self, backend: Backend) -> None:
        run = (await backend.store.load(await new(backend))).run
        backend.lose_replies()
        with pytest.raises(Unknown):
            await backend.records.spend(run)
        backend.heal()
        assert await backend.records.spend(run) == run.uid


class UnknownFieldsContract:
    async def test_fields_of_a_newer_version_are_kept(self, backend: Backend) -> None:
        driver = Driver(backend.store)
        stored = await claimed(backend, driver)
        await driver.begin(stored.key, "refund", 1)
        raw = (await backend.document(stored.key))["status"]
        entry = raw["ledger"]["refund"]
        open_ = [{**entry["open"][0], "futureField": "attempt"}]
        ledger_ = {**raw["ledger"], "refund": {**entry, "futureField": "entry", "open": open_}}
        await backend.patch_status(stored.key, {"futureField": "status", "ledger": ledger_})
        await driver.begin(stored.key, "lookup", 1, "begin-2")
        await driver.complete(stored.key, "refund", 1, {"id": "re_9"})
        status = (await backend.document(stored.key))["status"]
        assert status["futureField"] == "status"
        assert status["ledger"]["refund"]["futureField"] == "entry"
        assert status["ledger"]["refund"]["state"] == "Done"
        assert status["ledger"]["lookup"]["state"] == "InFlight"

    async def test_a_field_of_an_attempt_is_kept_while_the_attempt_is(self, backend: Backend) -> None:
        driver = Driver(backend.store)
        stored = await claimed(backend, driver)
        await driver.begin(stored.key, "refund", 1)
        raw = (await backend.document(stored.key))["status"]
        entry = raw["ledger"]["refund"]
        ledger_ = {**raw["ledger"], "refund": {**entry, "open": [{**entry["open"][0], "futureField": "attempt"}]}}
        await backend.patch_status(stored.key, {"ledger": ledger_})
        await driver.begin(stored.key, "lookup", 1, "begin-2")
        status = (await backend.document(stored.key))["status"]
        assert status["ledger"]["refund"]["open"][0]["futureField"] == "attempt"

    async def test_a_condition_of_another_writer_is_kept(self, backend: Backend) -> None:
        driver = Driver(backend.store)
        stored = await claimed(backend, driver)
        theirs = {
            "type": "example.com/Reviewed",
            "status": "True",
            "reason": "ByHand",
            "message": "",
            "lastTransitionTime": "2026-01-02T03:04:05Z",
        }
        ours = (await backend.document(stored.key))["status"]["conditions"]
        await backend.patch_status(stored.key, {"conditions": [*ours, theirs]})
        await driver.begin(stored.key, "lookup", 1)
        conditions = (await backend.document(stored.key))["status"]["conditions"]
        assert [condition for condition in conditions if condition["type"] == theirs["type"]] == [theirs]
        assert len({condition["type"] for condition in conditions}) == len(conditions) == len(ours) + 1
