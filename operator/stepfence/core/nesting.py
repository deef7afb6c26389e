"""JSON that others wrote, read whatever its form: nested without end, numbers of any length, bytes that are no UTF-8.

What reads JSON calls itself for each level, so that one deep value ends the program that reads it. Here the text is cut first: what lies
too deep stands as text, and whoever needs the value finds it too deep, by its field. Nothing else that the text holds is lost for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

__all__ = ["DEEPEST", "READ_DEPTH", "Json", "cut", "deeper_than", "read", "read_cut"]

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

# How deep a payload, a result or an input may be nested: `[[1]]` has two levels.
DEEPEST = 64
# How deep a document or a request is read that may hold one: each of its fields is far from here, so what was cut is always too deep.
READ_DEPTH = 128
# As many digits as every Python reads, however its limit is set.
_DIGITS = 640
_BOXES = (dict, list, tuple)
# A string is one token, closed or not, so that the brackets in it do not count and no text is gone through twice.
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)


def read(text: bytes | str) -> Json:
    """Return the value of a JSON text. Raises `json.JSONDecodeError` for what is no JSON, and nothing else."""
    return read_cut(text)[0]


def read_cut(text: bytes | str) -> tuple[Json, bool]:
    """Return the value, and whether it stands for one that could not be read as it is.

    Then containers deeper than `READ_DEPTH` are strings that hold their text, numbers too long to be read are infinite, and a byte that
    is no UTF-8 is half of a surrogate pair: `canonical` refuses each of them, where it is needed.
    """
    try:
        value: Json = json.loads(text)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError):  # ValueError: bytes that are no UTF-8, a number of thousands of digits
        return _leniently(text), True
    return (_leniently(text), True) if deeper_than(value, READ_DEPTH) else (value, False)


def _leniently(text: bytes | str) -> Json:
    whole = text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
    value: Json = json.loads(cut(whole, READ_DEPTH), parse_int=_number)
    return value


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) <= _DIGITS else float(digits)


def deeper_than(value: Any, most: int) -> bool:
    """Whether a value has more than `most` levels. One that holds itself has."""
    level = [value] if isinstance(value, _BOXES) else []
    for _ in range(most):
        if not level:
            return False
        level = [item for box in level for item in (box.values() if isinstance(box, dict) else box) if isinstance(item, _BOXES)]
    return bool(level)


def cut(text: str, most: int, instead: Callable[[str], str] = json.dumps) -> str:
    """Return a JSON text in which every container below `most` levels is a string that holds its text, or what stands `instead` of it.

    Takes time linear in the length of the text, whatever it is.
    """
    pieces, kept, start, depth = [], 0, 0, 0
    for found in _TOKEN.finditer(text):
        first = text[found.start()]
        if first in "[{":
            depth += 1
            if depth == most + 1:
                start = found.start()
        elif first in "]}":
            if depth == most + 1:
                pieces += [text[kept:start], instead(text[start : found.end()])]
                kept = found.end()
            depth -= 1
    if depth > most:  # it is not closed, so it is no JSON either way
        pieces += [text[kept:start], instead(text[start:])]
        kept = len(text)
    return "".join([*pieces, text[kept:]])
