"""The memory stores keep the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from stepfence.ports import RunKey, Write
from stepfence.stores import MemoryRecordStore, MemoryRunStore
from stepfence.testing import FakeClock
from tests.stores.contract import LostReplyContract, RunStoreContract, UnknownFieldsContract
from tests.stores.contract_records import RecordStoreContract
from tests.stores.line import Line, RemoteRecords, RemoteRuns


class MemoryBackend:
    def __init__(self) -> None:
        self._line = Line()
        self._store = MemoryRunStore()
        self.store = RemoteRuns(self._store, self._line)
        self._clock = FakeClock()
        self.records = RemoteRecords(MemoryRecordStore(self._clock.now), self._line)

    def later(self, seconds: float) -> None:
        self._clock.advance(seconds)

    async def create(self, name: str, **spec: Any) -> RunKey:
        return self._store.create({"metadata": {"name": name, "namespace": "default"}, "spec": {"template": {}, **spec}}).key

    async def patch_spec(self, key: RunKey, changes: Mapping[str, Any]) -> None:
        self._store.patch_spec(key, changes)

    async def patch_status(self, key: RunKey, changes: Mapping[str, Any]) -> None:
        stored = await self._store.load(key)
        await self._store.save(Write(stored, stored.run, {**stored.raw, **changes}))

    async def delete(self, key: RunKey) -> None:
        self._store.delete(key)

    async def document(self, key: RunKey) -> dict[str, Any]:
        return self._store.document(key)

    def lose_replies(self) -> None:
        self._line.replies = False

    def lose_calls(self) -> None:
        self._line.calls = False

    def heal(self) -> None:
        self._line.replies = self._line.calls = True


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


class TestRuns(RunStoreContract):
    pass


class TestLostReplies(LostReplyContract):
    pass


class TestUnknownFields(UnknownFieldsContract):
    pass


class TestRecords(RecordStoreContract):
    pass
