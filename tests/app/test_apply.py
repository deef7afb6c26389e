"""The only writer: what it remembers of a run, and what it refuses for want of room."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from stepfence.app.apply import Applier
from stepfence.core.errors import Code, Conflict, Refused
from stepfence.core.fencing import drain
from stepfence.core.ledger import Begin, BeginAnswer, begin
from stepfence.core.lifecycle import accept, fail_run
from stepfence.core.model import Run
from stepfence.core.words import At, Settings
from stepfence.ports import RunKey, Stored, Write
from stepfence.schema import decode
from stepfence.stores import MemoryRunStore
from stepfence.testing import FakeClock, FakeIds
from stepfence.testing.builders import POD, body, claimed

KEY = RunKey("support", "refund")
MANIFEST = {
    "metadata": {"name": KEY.name, "namespace": KEY.namespace},
    "spec": {"template": {}, "plan": {"steps": [{"id": "pay", "action": "Payment"}]}},
}


class RestorableStore:
    """A store that can be put back to what it was, as etcd is from a snapshot."""

    def __init__(self, store: MemoryRunStore) -> None:
        self._store = store
        self._old: dict[str, Any] | None = None

    async def load(self, key: RunKey) -> Stored:
        if self._old is None:
            return await self._store.load(key)
        document = copy.deepcopy(self._old)
        status = document.pop("status")
        return Stored(key, decode({**document, "status": status}), document["metadata"]["resourceVersion"], status, 0)

    async def save(self, write: Write) -> Stored:
        if self._old is None:
            return await self._store.save(write)
        if write.before.revision != self._old["metadata"]["resourceVersion"]:
            raise Conflict("the store knows another version")
        self._old["status"] = copy.deepcopy(dict(write.status))
        self._old["metadata"]["resourceVersion"] += "0"
        return await self.load(write.before.key)

    def status(self) -> dict[str, Any]:
        assert self._old is not None
        found: dict[str, Any] = self._old["status"]
        return found

    def restore(self, snapshot: dict[str, Any]) -> None:
        self._old = copy.deepcopy(snapshot)


def accepting(run: Run, at: At) -> tuple[Run, None]:
    return accept(run, at), None


def claiming(run: Run, at: At, pod: str = POD) -> tuple[Run, None]:
    return claimed(run, pod=pod), None


def draining(run: Run, at: At) -> tuple[Run, None]:
    return drain(run), None


def failing(run: Run, at: At) -> tuple[Run, None]:
    return fail_run(run, "Broken", "", at), None


def resumed(run: Run, at: At) -> tuple[Run, None]:
    return replace(run, hold=None), None


def beginning(run: Run, at: At) -> tuple[Run, BeginAnswer]:
    return begin(run, Begin("pay", 1, "pod-1-uid", "begin-1", body({"amount": 1})), at)


def applier(store: Any, settings: Settings | None = None) -> Applier:
    return Applier(store, FakeClock(), FakeIds(), settings or Settings())


@pytest.fixture
async def restored() -> tuple[RestorableStore, list[Applier]]:
    """Two writers that saw the run claimed, over a store that then forgot the claim."""
    memory = MemoryRunStore()
    memory.create(MANIFEST)
    store = RestorableStore(memory)
    writers = [applier(store), applier(store)]
    await writers[0].apply(KEY, accepting)
    snapshot = memory.document(KEY)
    for number in range(5):
        await writers[0].apply(KEY, partial(claiming, pod=f"pod-{number}"))
    await writers[1].read(KEY)
    store.restore(snapshot)
    return store, writers


Restored = tuple[RestorableStore, list[Applier]]


async def test_a_reader_that_remembers_a_newer_version_holds_the_run(restored: Restored) -> None:
    store, (writer, _) = restored
    with pytest.raises(Refused) as refused:
        await writer.read(KEY)
    assert refused.value.code is Code.HELD
    assert store.status()["hold"]["reason"] == "LedgerBehind"


async def test_a_writer_that_remembers_a_newer_version_holds_the_run_instead_of_writing(restored: Restored) -> None:
    store, (writer, _) = restored
    with pytest.raises(Refused) as refused:
        await writer.apply(KEY, draining)
    assert refused.value.code is Code.HELD
    assert store.status()["hold"]["reason"] == "LedgerBehind"


async def test_an_answer_that_was_given_before_the_past_was_lost_does_not_let_the_run_go_on(restored: Restored) -> None:
    store, (writer, _) = restored
    held = {"question": "aaaaaaaaaa", "reason": "PriceChanged", "message": "12 % more", "since": "2026-01-02T03:04:05Z"}
    store.status()["hold"] = held
    with pytest.raises(Refused):
        await writer.read(KEY)
    hold = store.status()["hold"]
    assert (hold["reason"], hold["question"] != held["question"]) == ("LedgerBehind", True)
    assert hold["message"].endswith("It was held before (PriceChanged: 12 % more)")


async def test_a_person_is_asked_about_a_lost_past_once(restored: Restored) -> None:
    store, (first, second) = restored
    with pytest.raises(Refused):
        await first.read(KEY)
    assert (await second.read(KEY)).run.hold is not None
    await first.apply(KEY, resumed)
    for writer in (first, second):
        assert (await writer.read(KEY)).run.hold is None
    assert "hold" not in store.status()


async def test_a_run_that_was_ending_when_the_store_went_back_still_ends(restored: Restored) -> None:
    store, (first, _) = restored
    store.status()["ending"] = {"outcome": "Failed", "reason": "Broken", "at": "2026-01-02T03:04:05.000Z"}
    with pytest.raises(Refused):
        await first.read(KEY)
    await first.apply(KEY, failing, seen=await first.read(KEY), just_read=True)
    assert store.status()["outcome"] == "Failed"


class TestRoom:
    async def test_a_begin_without_room_for_its_done_record_is_refused_before_the_intent(self) -> None:
        store = MemoryRunStore()
        store.create(MANIFEST)
        await applier(store).apply(KEY, accepting)
        await applier(store).apply(KEY, claiming)
        before = store.document(KEY)
        size = len(str(before))
        with pytest.raises(Refused) as refused:
            await applier(store, Settings(object_bytes=size + 1024)).apply(KEY, beginning, reserve=True)
        assert refused.value.code is Code.NO_ROOM
        assert store.document(KEY) == before
        await applier(store, Settings(object_bytes=size + 8192)).apply(KEY, beginning, reserve=True)
        assert store.document(KEY)["status"]["ledger"]["pay"]["state"] == "InFlight"

    @pytest.mark.parametrize(("times", "status"), [(4, "True"), (1, "False")], ids=["half empty", "full"])
    async def test_from_four_fifths_on_a_condition_says_that_the_ledger_is_nearly_full(self, times: int, status: str) -> None:
        store = MemoryRunStore()
        store.create(MANIFEST)
        await applier(store).apply(KEY, accepting)
        limit = times * len(str(store.document(KEY)))
        await applier(store, Settings(object_bytes=limit)).apply(KEY, claiming)
        conditions = {item["type"]: item["status"] for item in store.document(KEY)["status"]["conditions"]}
        assert conditions["LedgerWritable"] == status
