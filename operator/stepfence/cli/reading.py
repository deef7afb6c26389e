"""What is handed over on the command line, by a file or by standard input; and JSON, of which nothing is lost in silence."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from stepfence.core.errors import Code, Refused

__all__ = ["below", "handed_json", "read_json", "require_utf8", "unfit"]

# More than any payload or result may have, also when it is written with much space.
_LARGEST = 4 * 1024 * 1024


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


def handed_json(what: str, given: str) -> JsonValue:
    """Read JSON from an argument: its text, `-` for standard input, `@FILE` for a file. Raises `ValueError` that says `what` it is."""
    text = _handed(what, given)
    try:
        return read_json(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{what} is no JSON: {error}") from error
    except Refused as refused:
        raise ValueError(f"{what}: {refused.detail}") from refused


def _handed(what: str, given: str) -> str:
    try:
        if given == "-":
            data = b"" if sys.stdin is None else sys.stdin.buffer.read(_LARGEST + 1)  # None: it is closed
        elif given.startswith("@"):
            with Path(given[1:]).open("rb") as file:
                data = file.read(_LARGEST + 1)
        else:
            require_utf8(what, given)
            return given
    except OSError as error:
        source = "standard input" if given == "-" else Path(given[1:])
        raise ValueError(f"{what}: {source}: {error.strerror}") from error
    if len(data) > _LARGEST:
        raise ValueError(f"{what}: larger than {_LARGEST // 1024} KiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} is no UTF-8: {error}") from error


def require_utf8(what: str, text: str) -> None:
    """Raise `ValueError` for an argument whose bytes are no UTF-8: it cannot be recorded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} is no UTF-8: {os.fsencode(text)!r}") from None
