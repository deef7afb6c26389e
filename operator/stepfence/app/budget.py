"""The byte budget: how many bytes of runs and records may be written in a second.

etcd keeps the whole object for each write until it compacts, five minutes by default, and refuses every write of every user once its
quota is used up. So writes beyond the budget wait, shared fairly by namespace and run, and are told to come back when the line is too
long. `Line` says whose turn it is; `ByteBudget` makes callers wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from stepfence.app.line import Line, Ticket
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Run
from stepfence.ports import Clock, RecordKind, RecordStore, RunKey

__all__ = ["DEFAULT_BYTES_PER_SECOND", "BudgetedRecordStore", "ByteBudget", "Meter"]

DEFAULT_BYTES_PER_SECOND = 1024 * 1024
# Metadata, labels, the rest of a record's object, and etcd's own share of a write.
_RECORD_OVERHEAD = 1024


class Meter(Protocol):
    """Is told of each write that asked for room."""

    def spent(self, size: int, waited: float, *, urgent: bool) -> None:
        """A write of `size` bytes went after `waited` seconds."""
        ...

    def refused(self, size: int, *, urgent: bool) -> None:
        """A write was told to come back."""
        ...


Later = Callable[[float, Callable[[], None]], object]


class ByteBudget:
    """Makes writes wait for room. It belongs to one event loop."""

    def __init__(
        self, clock: Clock, rate: float = DEFAULT_BYTES_PER_SECOND, *, meter: Meter | None = None, later: Later | None = None
    ) -> None:
        self._clock, self._total, self._meter, self._later = clock, rate, meter, later
        self._line = Line(rate, clock.monotonic())
        self._futures: dict[Ticket, asyncio.Future[None]] = {}
        self._timer_at: float | None = None

    @property
    def rate(self) -> float:
        """This server's share in bytes per second."""
        return self._line.rate

    @property
    def waiting(self) -> int:
        """How many writes wait."""
        return len(self._line)

    def share(self, servers: int) -> None:
        """Divide the cluster's budget by the servers that write."""
        self._line.set_rate(self._total / max(1, servers), self._clock.monotonic())
        self._pump()

    async def spend(self, key: RunKey, size: int, *, urgent: bool) -> None:
        """Wait for room for a write of `size` bytes of that run. Raises `Refused(OVER_BUDGET)` with `retry_after`: nothing is written."""
        began = self._clock.monotonic()
        try:
            await self._turn(key, size, urgent, began)
        except Refused:
            if self._meter is not None:
                self._meter.refused(size, urgent=urgent)
            raise
        if self._meter is not None:
            self._meter.spent(size, self._clock.monotonic() - began, urgent=urgent)

    async def _turn(self, key: RunKey, size: int, urgent: bool, now: float) -> None:
        ticket = self._line.join(key, size, now, urgent=urgent)
        if ticket is None:
            self._pump()
            return
        future = self._futures[ticket] = asyncio.get_running_loop().create_future()
        self._pump()  # sets the timer, and tells who was pushed out
        try:
            await future
        finally:
            del self._futures[ticket]
            self._line.leave(ticket)

    def _pump(self) -> None:
        now = self._clock.monotonic()
        for ticket in self._line.go(now):
            self._settle(ticket, None)
        for ticket in self._line.expire(now):
            self._settle(ticket, Refused(Code.OVER_BUDGET, "too many bytes are being written", retry_after=1.0))
        self._schedule()

    def _settle(self, ticket: Ticket, refused: Refused | None) -> None:
        future = self._futures[ticket]
        if future.done():
            return
        if refused is None:
            future.set_result(None)
        else:
            future.set_exception(refused)

    def _schedule(self) -> None:
        now = self._clock.monotonic()
        wait = self._line.next_in(now)
        if wait is None or (self._timer_at is not None and self._timer_at <= now + wait):
            return
        self._timer_at = now + wait
        later = self._later or asyncio.get_running_loop().call_later
        later(wait, self._on_time)

    def _on_time(self) -> None:
        self._timer_at = None
        self._pump()


class BudgetedRecordStore:
    """Records under the budget: results settle something, payloads begin something."""

    def __init__(self, records: RecordStore, budget: ByteBudget) -> None:
        self._records, self._budget = records, budget

    async def put(self, run: Run, kind: str, text: str, digest: str) -> str:
        """See `RecordStore.put`. Raises `Refused(OVER_BUDGET)` too."""
        await self._budget.spend(RunKey(run.namespace, run.name), len(text.encode()) + _RECORD_OVERHEAD, urgent=kind == RecordKind.RESULT)
        return await self._records.put(run, kind, text, digest)

    async def keep(self, run: Run, name: str) -> bool:
        """See `RecordStore.keep`."""
        return await self._records.keep(run, name)

    async def get(self, run: Run, name: str) -> str:
        """See `RecordStore.get`."""
        return await self._records.get(run, name)

    async def spend(self, run: Run) -> str:
        """See `RecordStore.spend`."""
        await self._budget.spend(RunKey(run.namespace, run.name), _RECORD_OVERHEAD, urgent=False)
        return await self._records.spend(run)
