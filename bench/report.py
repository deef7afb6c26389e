"""Figures as people read them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["p50", "p95", "say"]


def p50(seconds: Sequence[float]) -> float:
    """Return the median in milliseconds."""
    return statistics.median(seconds) * 1000


def p95(seconds: Sequence[float]) -> float:
    """Return the 95th percentile in milliseconds."""
    return statistics.quantiles(seconds, n=20)[-1] * 1000


def say(line: str) -> None:
    """Print at once, so that a long benchmark shows where it is."""
    print(line, flush=True)
