"""A clock that stands still until it is told to move, and random bits that are the same in every run of a test."""

from __future__ import annotations

import hashlib
import itertools
from datetime import UTC, datetime, timedelta

__all__ = ["EPOCH", "FakeClock", "FakeIds"]

EPOCH = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class FakeClock:
    """Both clocks of the `Clock` port; `advance` moves them together."""

    def __init__(self, start: datetime = EPOCH) -> None:
        self._start = self._now = start

    def now(self) -> datetime:
        """Return the wall clock."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds since the start."""
        return (self._now - self._start).total_seconds()

    def advance(self, seconds: float) -> datetime:
        """Let time pass. Raises `ValueError` when it would run backwards."""
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self._now += timedelta(seconds=seconds)
        return self._now


class FakeIds:
    """Nonces that differ from each other and repeat from run to run."""

    def __init__(self, seed: str = "test") -> None:
        self._seed, self._count = seed, itertools.count(1)

    def nonce(self) -> str:
        """Return the next 128 bits."""
        return hashlib.sha256(f"{self._seed}/{next(self._count)}".encode()).hexdigest()[:32]
