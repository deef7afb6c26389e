"""Which runs to look at, and when: each key at most once in the queue and in one pair of hands, failures with growing pauses."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Closed", "Schedule", "WorkQueue"]

K = TypeVar("K", bound=Hashable)

_BASE_SECONDS = 0.5
_CAP_SECONDS = 60.0
_JITTER = 0.2


class Schedule(Generic[K]):
    """The order of work, without any waiting: every moment is an argument, in seconds of one monotonic clock."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._held: set[K] = set()
        self._again: set[K] = set()
        self._due: dict[K, float] = {}
        self._timers: list[tuple[float, int, K]] = []
        self._failures: dict[K, int] = {}
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, key: K) -> None:
        """Look at this key soon. One that is in hand is looked at again when it is put down."""
        if key in self._held:
            self._again.add(key)
        else:
            self._ready[key] = None

    def add_at(self, key: K, moment: float) -> None:
        """Look at this key at that moment, or sooner if that was asked before."""
        known = self._due.get(key)
        if known is None or moment < known:
            self._due[key] = moment
            heapq.heappush(self._timers, (moment, next(self._order), key))

    def next_due(self) -> float | None:
        """Return the moment of the next timer."""
        while self._timers and self._due.get(self._timers[0][2]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def take(self, now: float) -> K | None:
        """Take the next key into hand; None when there is nothing to do now."""
        while (due := self.next_due()) is not None and due <= now:
            _, _, key = heapq.heappop(self._timers)
            del self._due[key]
            self.add(key)
        if not self._ready:
            return None
        key, _ = self._ready.popitem(last=False)
        self._held.add(key)
        return key

    def done(self, key: K, *, wake: float | None = None) -> None:
        """Put a key down after a success; `wake` is when time alone calls for another look, which replaces what was asked before."""
        self._failures.pop(key, None)
        self._due.pop(key, None)
        if wake is not None:
            self.add_at(key, wake)
        self._put_down(key)

    def failed(self, key: K, now: float, *, at_least: float = 0.0) -> float:
        """Put a key down after a failure; return the pause in seconds, which doubles with each failure in a row up to a cap."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        pause = min(_BASE_SECONDS * 2.0 ** min(count, 20), _CAP_SECONDS) * (1 + _JITTER * (2 * self._random() - 1))
        pause = max(pause, at_least)
        self.add_at(key, now + pause)
        # Not at once, even when something happened meanwhile: that is what the pause is for.
        self._again.discard(key)
        self._put_down(key)
        return pause

    def drop(self, key: K) -> None:
        """Forget a key that is no more: its timers and failures. One in hand is still to be put down."""
        self._ready.pop(key, None)
        self._again.discard(key)
        self._due.pop(key, None)
        self._failures.pop(key, None)

    def clear(self) -> None:
        """Forget everything that is not in hand."""
        self._ready.clear()
        self._again.clear()
        self._due.clear()
        self._timers.clear()
        self._failures.clear()

    def _put_down(self, key: K) -> None:
        self._held.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._ready[key] = None


class Closed(Exception):
    """Nothing more is given out."""


class WorkQueue(Generic[K]):
    """A `Schedule` that its takers wait on."""

    def __init__(self, monotonic: Callable[[], float], random: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._schedule: Schedule[K] = Schedule(random)
        self._changed = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._schedule)

    def add(self, key: K) -> None:
        """See `Schedule.add`."""
        self._schedule.add(key)
        self._changed.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Look at this key after so many seconds, or sooner if that was asked before."""
        self._schedule.add_at(key, self._monotonic() + seconds)
        self._changed.set()

    async def take(self) -> K:
        """Wait for the next key and take it into hand. Raises `Closed`."""
        while True:
            if self._closed:
                raise Closed
            now = self._monotonic()
            key = self._schedule.take(now)
            if key is not None:
                # Another taker may wait for what is left.
                self._changed.set()
                return key
            self._changed.clear()
            due = self._schedule.next_due()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - now)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def close(self) -> None:
        """Give nothing more out: who waits is told."""
        self._closed = True
        self._changed.set()

    def done(self, key: K, *, wake_after: float | None = None) -> None:
        """See `Schedule.done`; `wake_after` in seconds."""
        self._schedule.done(key, wake=None if wake_after is None else self._monotonic() + wake_after)
        self._changed.set()

    def failed(self, key: K, *, at_least: float = 0.0) -> float:
        """See `Schedule.failed`."""
        pause = self._schedule.failed(key, self._monotonic(), at_least=at_least)
        self._changed.set()
        return pause

    def drop(self, key: K) -> None:
        """See `Schedule.drop`."""
        self._schedule.drop(key)

    def clear(self) -> None:
        """See `Schedule.clear`."""
        self._schedule.clear()
