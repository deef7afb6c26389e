"""What is between a caller and a store in this process: a line that loses calls or replies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from stepfence.core.errors import Unknown
from stepfence.core.model import Run
from stepfence.ports import BodyRecord, RecordStore, RunKey, RunStore, Stored, SweepStore, Write


class Line:
    """What is between a caller and a store."""

    replies = calls = True

    async def carry(self, work: Any) -> Any:
        if not self.calls:
            work.close()
            raise Unknown("nothing arrived")
        answer = await work
        if not self.replies:
            raise Unknown("the reply was lost")
        return answer


class RemoteRuns:
    def __init__(self, store: RunStore, line: Line) -> None:
        self._store, self._line = store, line

    async def load(self, key: RunKey) -> Stored:
        stored: Stored = await self._line.carry(self._store.load(key))
        return stored

    async def save(self, write: Write) -> Stored:
        stored: Stored = await self._line.carry(self._store.save(write))
        return stored


class Records(RecordStore, SweepStore, Protocol):
    """What every store of records is."""


class RemoteRecords:
    def __init__(self, store: Records, line: Line) -> None:
        self._store, self._line = store, line

    async def put(self, run: Run, kind: str, text: str, digest: str) -> str:
        return str(await self._line.carry(self._store.put(run, kind, text, digest)))

    async def keep(self, run: Run, name: str) -> bool:
        return bool(await self._line.carry(self._store.keep(run, name)))

    async def get(self, run: Run, name: str) -> str:
        return str(await self._line.carry(self._store.get(run, name)))

    async def spend(self, run: Run) -> str:
        return str(await self._line.carry(self._store.spend(run)))

    async def bodies(self) -> AsyncIterator[BodyRecord]:
        async for record in self._store.bodies():
            yield record

    async def remove(self, record: BodyRecord) -> bool:
        return bool(await self._line.carry(self._store.remove(record)))
