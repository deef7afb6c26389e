"""What is recorded of a result that JSON cannot carry: what happened is never lost for the form of its result.

In place of the result stands `{"stepfence.dev/not-kept": {"why": …, "value": …}}`; `value` is what can be kept of it. Who replays the step
sees that the result is not what was returned, and why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stepfence.core.canonical import Json, canonical
from stepfence.core.errors import Refused

__all__ = ["CUT", "DEEPEST", "NOT_KEPT", "NotKept", "escaped", "not_kept", "not_kept_in"]

NOT_KEPT = "stepfence.dev/not-kept"
# Stands for what lies deeper than DEEPEST levels.
CUT = "…"
DEEPEST = 32
_WHY_CHARACTERS = 512
# Of 640 digits, which is as much as `canonical` takes.
_LONGEST_NUMBER = 2_126  # bits
_NO_NUMBER = {math.inf: "Infinity", -math.inf: "-Infinity"}


@dataclass(frozen=True, slots=True)
class NotKept:
    """Why a result could not be kept, and what was kept of it."""

    why: str
    value: Json


def not_kept(value: Json, why: str) -> Json:
    """Return what is recorded in place of `value`: canonical JSON can carry it."""
    about = _text(why)[:_WHY_CHARACTERS]
    whole: Json = {NOT_KEPT: {"why": about, "value": escaped(value)}}
    try:
        canonical(whole)
    except Refused:
        return {NOT_KEPT: {"why": about, "value": None}}
    return whole


def not_kept_in(result: Json) -> NotKept | None:
    """Return what a recorded result says of one that could not be kept; None for a result."""
    if not isinstance(result, dict) or result.keys() != {NOT_KEPT}:
        return None
    said = result[NOT_KEPT]
    if not isinstance(said, dict):
        return NotKept("", said)
    return NotKept(str(said.get("why", "")), said.get("value"))


def escaped(value: Json, depth: int = 0) -> Json:
    r"""Return `value` in a form that JSON can carry.

    Characters that are no Unicode are written as `\udce9`, numbers that are none as `NaN`, `Infinity` and `-Infinity`, and what lies deeper
    than DEEPEST levels as `…`. Whole numbers of more than 640 digits are written in hex, as text.
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _NO_NUMBER.get(value, "NaN")
    if isinstance(value, int):
        return value if value.bit_length() <= _LONGEST_NUMBER else hex(value)
    if not isinstance(value, dict | list):
        return value
    if depth == DEEPEST:
        return CUT
    if isinstance(value, dict):
        return {_text(name): escaped(inner, depth + 1) for name, inner in value.items()}
    return [escaped(inner, depth + 1) for inner in value]


def _text(said: str) -> str:
    return said.encode(errors="backslashreplace").decode()
