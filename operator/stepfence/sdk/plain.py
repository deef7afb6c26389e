"""What a function returned, part by part: whether all of it is data, and what to show of it when JSON cannot carry it."""

from __future__ import annotations

import dataclasses
import reprlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, JsonValue
from pydantic_core import to_jsonable_python

from stepfence.core.kept import CUT, DEEPEST

__all__ = ["is_data", "plain"]

_MOST_PARTS = 10_000
_SCALARS = (str, int, float, type(None), bytes, bytearray)


def is_data(value: Any) -> bool:
    """Whether every part of it is data: nothing in it can be a call that was not made yet, as a coroutine, a generator or a future is."""
    seen: dict[int, Any] = {}  # keeps what it has seen, or an id would be used again
    todo = [value]
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        inner = _parts(part)
        if inner is not None:
            todo.extend(inner)
        elif not _is_known(part):
            return False
    return True


def _parts(value: Any) -> Iterable[Any] | None:
    """Return what a container holds; None for what is none."""
    fields = _fields(value)
    if fields is not None:
        return [part for pair in fields.items() for part in pair]
    return list(value) if isinstance(value, list | tuple | set | frozenset | deque) else None


def _fields(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, BaseModel):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return value if isinstance(value, Mapping) else None


def _is_known(value: Any) -> bool:
    """Whether pydantic has a form for it, as for dates and UUIDs. To look at an iterator would use it up."""
    if isinstance(value, _SCALARS):
        return True
    if isinstance(value, Iterator):
        return False
    try:
        to_jsonable_python(value)
    except Exception:  # noqa: BLE001  (what an object's own code raises says that it is no data)
        return False
    return True


def plain(value: Any) -> JsonValue:
    """Return `value` as JSON data to show: bytes as text, an object by its name, what holds itself cut off."""
    return _Plain().of(value)


class _Plain:
    """One walk through a value, which may be large and hold itself."""

    def __init__(self) -> None:
        self._left = _MOST_PARTS
        self._within: set[int] = set()

    def of(self, value: Any) -> JsonValue:
        """Return one part."""
        self._left -= 1
        if isinstance(value, bytes | bytearray):
            return value.decode(errors="backslashreplace")
        if isinstance(value, _SCALARS):
            return value  # type: ignore[return-value]
        inner = None if isinstance(value, Iterator) else _parts(value)
        if inner is None:
            return _shown(value)
        if id(value) in self._within or len(self._within) >= DEEPEST or self._left < 0:
            return CUT
        self._within.add(id(value))
        try:
            fields = _fields(value)
            if fields is not None:
                return {_key(name): self.of(part) for name, part in fields.items()}
            return [self.of(part) for part in inner]
        finally:
            self._within.discard(id(value))


def _key(name: Any) -> str:
    return name if isinstance(name, str) else str(_shown(name))


def _shown(value: Any) -> JsonValue:
    if _is_known(value):
        if isinstance(value, bytes | bytearray):
            return value.decode(errors="backslashreplace")
        known: JsonValue = to_jsonable_python(value)
        return known
    short = reprlib.Repr()
    short.maxother = 200
    return short.repr_instance(value, 1)
