"""So many a second, for each of many keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Rates"]

_ROUNDING = 1e-6
K = TypeVar("K", bound=Hashable)


class Rates(Generic[K]):
    """Lets `burst` pass at once and `per_second` after that, for each key by itself. Time comes in as monotonic seconds.

    At most `size` keys are kept, the least recently used goes first. (The generic cell rate algorithm: one number a key.)
    """

    def __init__(self, per_second: float, burst: int, size: int = 4096) -> None:
        self._interval = 1 / per_second
        self._tolerance = (burst - 1) * self._interval
        self._size = size
        self._next: OrderedDict[K, float] = OrderedDict()

    def take(self, key: K, now: float, longest: float = 0.0) -> float:
        """Take one, now or in at most `longest` seconds. Return how long it takes to its turn; when that is longer, none was taken."""
        due = max(self._next.get(key, now), now)
        wait = due - self._tolerance - now
        wait = wait if wait > _ROUNDING else 0.0
        if wait <= longest:
            self._next[key] = due + self._interval
            self._next.move_to_end(key)
            while len(self._next) > self._size:
                self._next.popitem(last=False)
        return wait

    def give_back(self, key: K) -> None:
        """Return one that was taken."""
        if key in self._next:
            self._next[key] -= self._interval
