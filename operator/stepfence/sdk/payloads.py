"""Two payloads under one step id: where they differ, told without their values."""

from __future__ import annotations

import json
import re

from pydantic import JsonValue

__all__ = ["ASKED_OTHERWISE", "RECORDED_OTHERWISE", "first_difference"]

ASKED_OTHERWISE = "this program asked for it with another payload before: one id is one action, so give the other action an id of its own"
RECORDED_OTHERWISE = "it is recorded with another payload"
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_Pair = tuple[str, JsonValue, JsonValue]


def first_difference(one: JsonValue, other: JsonValue) -> str | None:
    """Return the JSON path of the first place, members in order of their names, where two values differ; None when they are equal."""
    todo: list[_Pair] = [("$", one, other)]
    while todo:
        path, a, b = todo.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            names = sorted(a.keys() | b.keys(), reverse=True)
            todo += [(path + _member(name), a.get(name, _MISSING), b.get(name, _MISSING)) for name in names]
        elif isinstance(a, list) and isinstance(b, list):
            longest = max(len(a), len(b))
            todo += [(f"{path}[{n}]", _item(a, n), _item(b, n)) for n in reversed(range(longest))]
        elif type(a) is not type(b) or a != b:
            return path
    return None


# No JSON value is of this type, so it differs from each.
_MISSING: JsonValue = ()  # type: ignore[assignment]


def _item(values: list[JsonValue], n: int) -> JsonValue:
    return values[n] if n < len(values) else _MISSING


def _member(name: str) -> str:
    return f".{name}" if _PLAIN_NAME.fullmatch(name) else f"[{json.dumps(name)}]"
