"""JSON, of which nothing is lost in silence."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from stepfence.core.errors import Code, Refused

__all__ = ["below", "read_json", "unfit"]


class _Twice(dict[str, Any]):
    """An object in which a key was given twice."""

    key = ""


def read_json(text: str) -> JsonValue:
    """Read JSON. Raises `json.JSONDecodeError`, and `Refused(BAD_REQUEST)` naming the field that is given twice or cannot be kept."""
    try:
        value: JsonValue = json.loads(text, object_pairs_hook=_object)
        for path, problem in _problems(value, ""):
            raise Refused(Code.BAD_REQUEST, f"{path}: {problem}" if path else problem, field=path or None)
    except RecursionError:
        raise Refused(Code.BAD_REQUEST, "nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # a number of too many digits
        raise Refused(Code.BAD_REQUEST, str(error)) from error
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    doubled, seen = _Twice(found), set[str]()
    for name, _ in pairs:
        if name in seen:
            doubled.key = name
            break
        seen.add(name)
    return doubled


def _problems(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if isinstance(value, _Twice):
            yield below(path, value.key), "given twice"
        for name, item in value.items():
            here = below(path, name)
            if problem := unfit(name):
                yield here, problem
            yield from _problems(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _problems(item, f"{path}[{index}]")
    elif problem := unfit(value):
        yield path, problem


def below(path: str, name: str) -> str:
    """Return the path of a field of that name."""
    return f"{path}.{name}" if path else name


def unfit(value: Any) -> str:
    """Return why JSON cannot carry a text or a number; empty when it can."""
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is not finite, which JSON cannot carry"
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return "half of a character (a lone surrogate), which JSON cannot carry"
    return ""
