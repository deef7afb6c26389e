"""The one function that writes runs: read, edit, derive, compare-and-swap; on a conflict read again and decide again."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from stepfence.app.bodies import Brought
from stepfence.core.errors import Code, Conflict, Refused, Unknown
from stepfence.core.ledger import RefusedAfter
from stepfence.core.lifecycle import end_if_settled, hold_behind, keep_time
from stepfence.core.model import Run
from stepfence.core.summary import summarize
from stepfence.core.words import At, Settings, State
from stepfence.ports import Clock, Ids, RunKey, RunStore, Stored, Write
from stepfence.schema import carry, encode_status

__all__ = ["Applied", "Applier", "Budget", "Edit", "Observer", "remaining_bytes"]

T = TypeVar("T")
Edit = Callable[[Run, At], tuple[Run, T]]
# Sees every write that took effect: what was stored before, and after.
Observer = Callable[[Stored, Stored], None]

_TRIES = 12
_LOST_TRIES = 3


class Budget(Protocol):
    """Bytes that may be written."""

    async def spend(self, key: RunKey, size: int, *, urgent: bool) -> None:
        """Wait for room for a write of that run; raise `Refused(OVER_BUDGET)` with `retry_after` when waiting takes too long."""
        ...


@dataclass(frozen=True, slots=True)
class Applied(Generic[T]):
    """What was stored, the edit's answer, and whether a write was needed."""

    stored: Stored
    answer: T
    wrote: bool


class Applier:
    """Applies named, repeatable edits to runs. It remembers the last version that it saw, so that a transition costs one write."""

    def __init__(
        self,
        store: RunStore,
        clock: Clock,
        ids: Ids,
        settings: Settings,
        *,
        budget: Budget | None = None,
        observer: Observer | None = None,
        remember: int = 1024,
    ) -> None:
        self.settings = settings
        self._store, self._clock, self._ids, self._budget, self._observer = store, clock, ids, budget, observer
        self._remember = remember
        self._known: OrderedDict[RunKey, Stored] = OrderedDict()
        self.conflicts = 0

    def at(self) -> At:
        """Return the inputs of one decision."""
        return At(self._clock.now(), self._ids.nonce(), self.settings)

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return self._clock.monotonic()

    def known(self, key: RunKey) -> Stored | None:
        """Return the version that was seen last, without asking the store: for what people and workers read, never to decide on."""
        return self._known.get(key)

    async def read(self, key: RunKey) -> Stored:
        """Read a run and remember it. Raises `Refused(NOT_FOUND)`, `Refused(HELD)` when the store went back in time, `Unknown`."""
        known = self._known.get(key)
        stored = await self._store.load(key)
        if known is not None and known.run.uid == stored.run.uid and stored.run.version < known.run.version and not stored.run.terminal:
            await self._hold_behind(stored, known.run.version)
        self._keep(stored)
        return stored

    async def apply(
        self,
        key: RunKey,
        edit: Edit[T],
        *,
        seen: Stored | None = None,
        just_read: bool = False,
        urgent: bool = False,
        reserve: bool = False,
        refresh: bool = False,
        bodies: Brought | None = None,
    ) -> Applied[T]:
        """Apply `edit` and save the result as decided on that version and token; what needs no write is told from a fresh read alone.

        `seen`: a version from a watch, or `just_read`; `urgent`: first in the byte budget; `reserve`: keep room for the Done records of
        all in flight; `refresh`: write what only people read too; `bodies`: what the edit refers to is stored before the write, once a
        fresh read has confirmed it. Raises `Refused`, `Unknown` (store away), `Conflict` (it kept moving).
        """
        stored, fresh, lost = seen or self._known.get(key), just_read and seen is not None, 0
        for attempt in range(_TRIES):
            stored, fresh, decided = await self._decided(key, stored, fresh, edit, bodies, reserve=reserve, refresh=refresh)
            if decided.write is None:
                return _outcome(stored, decided, wrote=False)
            try:
                saved = await self._attempt(decided.write, urgent=urgent, fresh=fresh)
            except Unknown:
                saved, lost = None, lost + 1  # whether it took effect shows on the next read: every edit answers what is recorded
                if lost >= _LOST_TRIES:
                    raise
            if saved is not None:
                return _outcome(saved, decided, wrote=True)
            await _pause(attempt)
            stored = None
        raise Conflict(f"{key} moved under {_TRIES} tries")

    async def _decided(
        self, key: RunKey, stored: Stored | None, fresh: bool, edit: Edit[T], bodies: Brought | None, *, reserve: bool, refresh: bool
    ) -> tuple[Stored, bool, _Decided[T]]:
        """Decide, on a fresh read where nothing is written or a body must be stored; what the decision refers to is stored then."""
        for _ in range(_TRIES):
            if stored is None:
                stored, fresh = await self.read(key), True
            decided = self._decide(stored, edit, bodies, reserve=reserve, refresh=refresh)
            if not fresh and (decided.write is None or decided.lacks is not None):
                stored = None
            elif decided.write is None or decided.lacks is None:
                return stored, fresh, decided
            else:
                await decided.lacks.store(stored.run, decided.write.run)  # and decide again, for it took time
        raise Conflict(f"the decision on {key} refers to other bodies each time")

    async def _attempt(self, write: Write, *, urgent: bool, fresh: bool) -> Stored | None:
        """Save; None when the run must be read and decided on again."""
        try:
            return await self._save(write, urgent)
        except Conflict:
            self.conflicts += 1
        except Refused as refused:
            if fresh or refused.code is not Code.NOT_FOUND:  # else: a run of the past whose name another one has now
                raise
        return None

    async def fence(self, stored: Stored) -> Stored:
        """Write the run as it is under its next version, so that nothing decided on an older one takes effect any more.

        Raises `Conflict` when it moved since it was read, `Refused`, `Unknown`.
        """
        return await self._save(self._write(stored, replace(stored.run, version=stored.run.version + 1), self.at()), urgent=False)

    def _decide(self, stored: Stored, edit: Edit[T], bodies: Brought | None, *, reserve: bool, refresh: bool) -> _Decided[T]:
        at = self.at()
        answer: T | Refused
        try:
            run, answer = edit(stored.run, at)
        except RefusedAfter as refused:
            run, answer = refused.run, refused
        except Refused as refused:
            run, answer = stored.run, refused
        if run == stored.run and not refresh:
            return _Decided(None, answer)
        run = end_if_settled(keep_time(run, at), at)
        write = self._write(stored, replace(run, version=run.version + 1), at)
        if run == stored.run and not _reads_differently(write.status, stored.raw):
            return _Decided(None, answer)
        if reserve and not isinstance(answer, Refused) and remaining_bytes(write, self.settings) < 0:
            full = f"the object would hold {write.size} bytes with room for what is in flight, at most {self.settings.object_bytes}"
            return _Decided(None, Refused(Code.NO_ROOM, full))
        if bodies is not None and (too_much := bodies.refusal(stored.run, run)) is not None:
            return _Decided(None, too_much)
        return _Decided(write, answer, bodies if bodies is not None and bodies.missing(stored.run, run) else None)

    def _write(self, stored: Stored, run: Run, at: At) -> Write:
        conditions = stored.raw.get("conditions", ())
        before = encode_status(stored.run, summarize(stored.run, at), conditions, at.now)
        status = encode_status(run, summarize(run, at), conditions, at.now)
        size = stored.base_bytes + len(json.dumps(status, ensure_ascii=False, separators=(",", ":")).encode())
        if size >= self.settings.object_bytes * 0.8:
            status = encode_status(run, summarize(run, at, full=True), conditions, at.now)
        return Write(stored, run, carry(stored.raw, before, status), size)

    async def _save(self, write: Write, urgent: bool) -> Stored:
        if self._budget is not None:
            await self._budget.spend(write.before.key, write.size, urgent=urgent)
        try:
            stored = await self._store.save(write)
        except Refused:
            # The run may be another one now. After a conflict or a lost reply the version stays known: what is read next must not be older.
            self._known.pop(write.before.key, None)
            raise
        self._keep(stored)
        if self._observer is not None:
            self._observer(write.before, stored)
        return stored

    def _keep(self, stored: Stored) -> None:
        self._known[stored.key] = stored
        self._known.move_to_end(stored.key)
        while len(self._known) > self._remember:
            self._known.popitem(last=False)

    async def _hold_behind(self, stored: Stored, version: int) -> None:
        """Hold a run whose store went back in time (I11): what was recorded since is lost, only a person can tell what happened."""
        at = self.at()
        message = f"the store holds version {stored.run.version}, version {version} was seen: it was restored from an older state"
        run = hold_behind(stored.run, message, at)
        if run == stored.run:
            self._keep(stored)
        else:
            # Beyond the version that was seen, so that nobody else who remembers it asks the same again.
            await self._save(self._write(stored, replace(run, version=version + 1), at), urgent=True)
        raise Refused(Code.HELD, "the ledger is older than what was seen of it: a person must look (LedgerBehind)")


@dataclass(frozen=True, slots=True)
class _Decided(Generic[T]):
    write: Write | None
    answer: T | Refused
    # Those of which some must be stored before the write.
    lacks: Brought | None = None


async def _pause(attempt: int) -> None:
    await asyncio.sleep(0 if attempt < 3 else min(0.01 * 2**attempt, 0.5))


def _reads_differently(status: Mapping[str, Any], raw: Mapping[str, Any]) -> bool:
    return {**status, "version": None} != {**raw, "version": None}


def _outcome(stored: Stored, decided: _Decided[T], *, wrote: bool) -> Applied[T]:
    if isinstance(decided.answer, Refused):
        raise decided.answer
    return Applied(stored, decided.answer, wrote)


def remaining_bytes(write: Write, settings: Settings) -> int:
    """Return how many bytes the object may still grow once everything in flight has recorded its result."""
    in_flight = sum(1 for entry in write.run.ledger.values() if entry.state is State.IN_FLIGHT)
    # A result stands as text in a JSON string, so that its quotes may double it; the rest is digest, times and names.
    return settings.object_bytes - write.size - in_flight * (2 * settings.inline_bytes + 512)
