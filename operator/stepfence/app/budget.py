"""The byte budget: how many bytes of runs and records may be written in a second.

etcd keeps the whole object for each write until it compacts, five minutes by default, and refuses every write of every user once its
quota is used up. So writes beyond the budget wait, those that settle something before those that begin something, and are told to come
back when the line is too long.

`Line` is pure: time goes in, what is due comes out. `ByteBudget` makes callers wait for it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from stepfence.core.errors import Code, Refused
from stepfence.core.model import Run
from stepfence.ports import Clock, RecordKind, RecordStore

__all__ = ["DEFAULT_BYTES_PER_SECOND", "BudgetedRecordStore", "ByteBudget", "Line", "Meter", "Ticket"]

DEFAULT_BYTES_PER_SECOND = 1024 * 1024
_WAIT_SECONDS = 10.0
_WAITING = 1024
# Metadata, labels, the rest of a record's object, and etcd's own share of a write.
_RECORD_OVERHEAD = 1024


@dataclass(eq=False, slots=True)
class Ticket:
    """One write in line. Times in monotonic seconds."""

    size: int
    urgent: bool
    until: float


class Line:
    """A token bucket of bytes with a line of two classes before it: urgent writes first, each class in order of arrival.

    The bucket holds what one second brings. A write goes when the bucket holds its size, or is full for one that is larger than the
    bucket; the bucket then owes the rest.
    """

    def __init__(self, rate: float, now: float, *, wait: float = _WAIT_SECONDS, waiting: int = _WAITING) -> None:
        self._rate, self._level, self._at = rate, rate, now
        self._wait, self._waiting = wait, waiting
        self._urgent: deque[Ticket] = deque()
        self._others: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self._rate

    def set_rate(self, rate: float, now: float) -> None:
        """Change the rate, and with it the size of the bucket."""
        self._refill(now)
        self._rate = rate

    def join(self, size: int, now: float, *, urgent: bool) -> Ticket | None:
        """Stand in line; None when the write may go at once.

        Raises `Refused(OVER_BUDGET)` with `retry_after` when the line is full, or so long that the wait would be too long.
        """
        self._refill(now)
        expected = self._expected(size, urgent)
        if expected <= 0 and not self._before(urgent):
            self._level -= size
            return None
        if expected > self._wait or len(self) >= self._waiting:
            raise Refused(Code.OVER_BUDGET, "too many bytes are being written", retry_after=max(1.0, expected - self._wait))
        ticket = Ticket(size, urgent, now + self._wait)
        (self._urgent if urgent else self._others).append(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give a place in line up."""
        line = self._urgent if ticket.urgent else self._others
        if ticket in line:
            line.remove(ticket)

    def go(self, now: float) -> list[Ticket]:
        """Take those whose turn it is out of the line."""
        self._refill(now)
        due = []
        while (ticket := self._first()) is not None and self._level >= min(ticket.size, self._rate):
            self._level -= ticket.size
            self.leave(ticket)
            due.append(ticket)
        return due

    def expire(self, now: float) -> list[Ticket]:
        """Take those who have waited too long out of the line."""
        late = [ticket for ticket in self._all() if ticket.until <= now]
        for ticket in late:
            self.leave(ticket)
        return late

    def next_in(self, now: float) -> float | None:
        """Return the seconds until something is due or expires; None when nobody waits."""
        first = self._first()
        if first is None:
            return None
        self._refill(now)
        due = (min(first.size, self._rate) - self._level) / self._rate
        return max(0.0, min(due, min(ticket.until for ticket in self._all()) - now))

    def _refill(self, now: float) -> None:
        self._level = min(self._rate, self._level + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)

    def _before(self, urgent: bool) -> int:
        return len(self._urgent) + (0 if urgent else len(self._others))

    def _expected(self, size: int, urgent: bool) -> float:
        ahead = sum(ticket.size for ticket in (self._urgent if urgent else self._all()))
        return (ahead + min(size, self._rate) - self._level) / self._rate

    def _first(self) -> Ticket | None:
        return next(self._all(), None)

    def _all(self) -> Iterator[Ticket]:
        return itertools.chain(tuple(self._urgent), tuple(self._others))


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

    async def spend(self, size: int, *, urgent: bool) -> None:
        """Wait for room for one write of `size` bytes. Raises `Refused(OVER_BUDGET)` with `retry_after`; nothing was written then."""
        began = self._clock.monotonic()
        try:
            await self._turn(size, urgent, began)
        except Refused:
            if self._meter is not None:
                self._meter.refused(size, urgent=urgent)
            raise
        if self._meter is not None:
            self._meter.spent(size, self._clock.monotonic() - began, urgent=urgent)

    async def _turn(self, size: int, urgent: bool, now: float) -> None:
        ticket = self._line.join(size, now, urgent=urgent)
        if ticket is None:
            return
        future = self._futures[ticket] = asyncio.get_running_loop().create_future()
        self._schedule()
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
        await self._budget.spend(len(text.encode()) + _RECORD_OVERHEAD, urgent=kind == RecordKind.RESULT)
        return await self._records.put(run, kind, text, digest)

    async def get(self, run: Run, name: str) -> str:
        """See `RecordStore.get`."""
        return await self._records.get(run, name)

    async def spend(self, run: Run) -> str:
        """See `RecordStore.spend`."""
        await self._budget.spend(_RECORD_OVERHEAD, urgent=False)
        return await self._records.spend(run)
