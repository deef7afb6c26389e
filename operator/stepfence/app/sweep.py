"""Orphans: records of a living run that it does not refer to. They are found and deleted here, a few at a time.

What makes it safe, whatever the clocks say, is the order: the records are looked over, then the run is read, then it is written under its
next version, and only then are records deleted, each only if nobody put it again since it was looked over. A write that was decided
before cannot take effect any more; one that is decided later has put its body again first. docs/design/0006-records.md has the argument.
For those who only read, a record is deleted no sooner than in the second pass that finds nothing referring to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from stepfence.app.apply import Applier
from stepfence.core.errors import Code, Conflict, Refused
from stepfence.ports import BodyRecord, Clock, RunKey, Stored, SweepStore
from stepfence.schema import Unreadable

__all__ = ["Sweeper", "Swept"]

_LOG = structlog.get_logger(__name__)
_MOST = 200


@dataclass(frozen=True, slots=True)
class Swept:
    """What came of one pass: how many records were deleted, and whether it stopped because that is enough for one."""

    deleted: int
    more: bool


@dataclass(frozen=True, slots=True)
class _Clean:
    """A run of which nothing is to be swept while it stays at that revision, and has these old records."""

    revision: str
    records: int


class Sweeper:
    """Goes over all records in passes. `revision_of`: the revision of a run as far as it is known without asking, None if it is not."""

    def __init__(
        self,
        applier: Applier,
        records: SweepStore,
        clock: Clock,
        *,
        revision_of: Callable[[RunKey, str], str | None] = lambda _key, _uid: None,
        may_go_on: Callable[[], bool] = lambda: True,
        most: int = _MOST,
    ) -> None:
        self._applier, self._records, self._clock, self._most = applier, records, clock, most
        self._revision_of, self._may_go_on = revision_of, may_go_on
        self._clean: dict[str, _Clean] = {}
        # Marks of the orphans that the last pass found.
        self._suspects: set[str] = set()

    async def sweep(self) -> Swept:
        """Do one pass. Raises `Refused`, `Unknown` when the store does not answer; what was deleted stays deleted."""
        clean: dict[str, _Clean] = {}
        suspects: set[str] = set()
        deleted = 0
        old = self._clock.now() - timedelta(seconds=self._applier.settings.orphan_grace)
        async for of_run in _by_run(self._records.bodies()):
            found = [record for record in of_run if record.put_at <= old]
            if found and self._may_go_on():
                deleted += await self._sweep_run(found, self._most - deleted, clean, suspects)
            if deleted >= self._most or not self._may_go_on():
                self._clean |= clean
                self._suspects |= suspects
                return Swept(deleted, more=deleted >= self._most)
        self._clean, self._suspects = clean, suspects
        return Swept(deleted, more=False)

    async def _sweep_run(self, found: list[BodyRecord], most: int, clean: dict[str, _Clean], suspects: set[str]) -> int:
        key, uid = found[0].key, found[0].run_uid
        known, records = self._clean.get(uid), hash(frozenset(record.mark for record in found))
        if known is not None and known == _Clean(self._revision_of(key, uid) or "", records):
            clean[uid] = known
            return 0
        stored = await self._read(key, uid)
        if stored is None:
            return 0
        orphans = _orphans(stored, found)
        if not orphans:
            clean[uid] = _Clean(stored.revision, records)
        again = [record for record in orphans if record.mark in self._suspects]
        suspects.update(record.mark for record in orphans)
        return await self._delete(stored, again[:most]) if again else 0

    async def _read(self, key: RunKey, uid: str) -> Stored | None:
        """Read the run; None for one that is gone or going, whose records go with it, and for one that is held.

        A person is asked about that one: when its ledger went back in time, what was lost may stand in records that it does not refer to.
        """
        try:
            stored = await self._applier.read(key)
        except Refused as refused:
            if refused.code in (Code.NOT_FOUND, Code.HELD) or isinstance(refused, Unreadable):
                return None
            raise
        run = stored.run
        return stored if run.uid == uid and not run.deleting and run.hold is None else None

    async def _delete(self, stored: Stored, orphans: list[BodyRecord]) -> int:
        try:
            await self._applier.fence(stored)
        except Conflict:
            return 0  # it moved, and may refer to them now: the next pass looks again
        deleted = 0
        for record in orphans:
            deleted += await self._records.remove(record)
        if deleted:
            _LOG.info("records swept", namespace=stored.key.namespace, run=stored.key.name, records=deleted)
        return deleted


def _orphans(stored: Stored, found: list[BodyRecord]) -> list[BodyRecord]:
    """Return the records whose names stand nowhere in the status, in fields that only a newer version knows neither."""
    texts = set(_texts(stored.raw))
    return [record for record in found if record.name not in texts]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


async def _by_run(records: AsyncIterator[BodyRecord]) -> AsyncIterator[list[BodyRecord]]:
    """Yield the records of one run at a time."""
    group: list[BodyRecord] = []
    async for record in records:
        if group and record.run_uid != group[0].run_uid:
            yield group
            group = []
        group.append(record)
    if group:
        yield group
