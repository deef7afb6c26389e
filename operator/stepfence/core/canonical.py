"""Canonical JSON (RFC 8785), its digest, and the idempotency key of a step."""

from __future__ import annotations

import hashlib
import json

import rfc8785

from stepfence.core.errors import Code, Refused
from stepfence.core.nesting import DEEPEST, Json, deeper_than

__all__ = ["Json", "canonical", "digest", "fresh_id", "parse", "step_key"]

_ALPHABET = "abcdefghjkmnpqrstvwxyz23456789"  # no vowels but a and e, no look-alikes: people type these
# Every Python reads 640 digits, however its limit is set. What one process could write and another not read must not be stored.
_TOO_LARGE = 10**640


def canonical(value: Json, *, field: str = "value") -> str:
    """Return RFC 8785 text of `value`; raise `Refused(BAD_REQUEST)` naming `field` for what JSON cannot carry, and beyond 64 levels.

    Whole numbers of 2^53 and more, which RFC 8785 leaves out, are written with all their digits: providers name things by 64-bit numbers,
    and a result that cannot be recorded would halt the run.
    """
    try:
        text = rfc8785.dumps(value).decode()
        # Counting is quick, and most values have fewer brackets than they may have levels.
        deep = text.count("[") + text.count("{") > DEEPEST and deeper_than(value, DEEPEST)
    except (ValueError, RecursionError):  # a large whole number; whatever else is wrong is found again
        text, deep = "", deeper_than(value, DEEPEST)
    if deep:
        raise Refused(Code.BAD_REQUEST, f"{field}: nested deeper than {DEEPEST} levels", field=field)
    return text or _exact(value, field)


def _exact(value: Json, field: str) -> str:
    try:
        return _written(value)
    except (ValueError, RecursionError) as error:
        raise Refused(Code.BAD_REQUEST, f"{field} is no JSON that RFC 8785 can carry: {error}", field=field) from error


def _written(value: Json) -> str:
    """Return the text of a value as RFC 8785 orders it, with every whole number in full."""
    if isinstance(value, dict):
        names = sorted(value, key=_utf16)
        return "{" + ",".join([f"{_leaf(name)}:{_written(value[name])}" for name in names]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([_written(item) for item in value]) + "]"
    return _leaf(value)


def _utf16(name: str) -> bytes:
    if not isinstance(name, str):
        raise ValueError("names of members must be strings")  # noqa: TRY004  (what JSON cannot carry is one kind of error)
    return name.encode("utf-16be")


def _leaf(value: Json) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= _TOO_LARGE:
            raise ValueError("a whole number of more than 640 digits")
        return int.__repr__(value)
    return rfc8785.dumps(value).decode()


def parse(text: str) -> Json:
    """Read canonical text back: live and replayed results go through the same round trip."""
    value: Json = json.loads(text)
    return value


def digest(text: str) -> str:
    """Return `sha256:<64 hex>` over the UTF-8 bytes of canonical text."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def step_key(run_id: str, step_id: str) -> str:
    """Return the idempotency key: a function of run id and step id alone (I7), 40 characters, frozen for ever."""
    return "sf1" + hashlib.sha256(canonical([run_id, step_id]).encode()).hexdigest()[:37]


def fresh_id(nonce: str, *about: str) -> str:
    """Return a question id of 10 characters, unguessable when `nonce` is 128 random bits of this one write (R6)."""
    number = int.from_bytes(hashlib.sha256(canonical([nonce, *about]).encode()).digest(), "big")
    letters = []
    for _ in range(10):
        number, index = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[index])
    return "".join(letters)
