"""Where a worker is killed: relative to the k-th effect that it asks the provider for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

__all__ = ["CrashPoint", "When", "every_point", "parse_points"]

_FORM = re.compile(r"(before|after|answered|lost) ([1-9][0-9]*)( twice)?")


class When(StrEnum):
    """What has become of the effect when the crash comes."""

    BEFORE = "before"
    AFTER = "after"
    ANSWERED = "answered"
    LOST = "lost"

    @property
    def meaning(self) -> str:
        """What happens at effect N, in words."""
        match self:
            case When.BEFORE:
                return "killed before request N arrived"
            case When.AFTER:
                return "killed after request N took effect, before its answer"
            case When.ANSWERED:
                return "killed after answer N came, before it was recorded"
            case When.LOST:
                return "request N took effect, its answer was lost: the client timed out, the worker lived"


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """`effect` counts from 1 in the order in which effects are asked for; `twice`: the next worker dies at the same place."""

    when: When
    effect: int
    twice: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `"after 2"` or `"before 1 twice"`. Raises `ValueError` naming what is wrong."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError(f"crashes: {text!r} is no crash point: write before, after, answered or lost and a number, as in 'after 1'")
        return cls(When(match[1]), int(match[2]), match[3] is not None)

    def __str__(self) -> str:
        return f"{self.when.value} {self.effect}" + (" twice" if self.twice else "")


def every_point(effects: int) -> list[CrashPoint]:
    """Return all points of a run with so many effects; their number is linear."""
    points = []
    for effect in range(1, effects + 1):
        points += [CrashPoint(when, effect) for when in When]
        points.append(CrashPoint(When.BEFORE, effect, twice=True))
    return points


def parse_points(crashes: str | Iterable[str | CrashPoint]) -> list[CrashPoint] | None:
    """Return the points asked for, None for `"every"`. Raises `ValueError`, `TypeError`."""
    if crashes == "every":
        return None
    if crashes == "none":
        return []
    asked: Any = [crashes] if isinstance(crashes, str) else crashes
    given = list(asked) if isinstance(asked, Iterable) else [asked]  # of tests, which nobody has checked
    if not all(isinstance(point, str | CrashPoint) for point in given):
        raise TypeError('crashes: write "every", "none" or a list of points, as in [\'after 1\']')
    points = [point if isinstance(point, CrashPoint) else CrashPoint.parse(point) for point in given]
    if not points:
        raise ValueError('crashes: the list is empty; write "none" for a run without a crash')
    return points
