"""Canonical JSON (RFC 8785), its digest, and the idempotency key of a step."""

from __future__ import annotations

import hashlib
import json
import re

import rfc8785

from stepfence.core.errors import Code, Refused

__all__ = ["Json", "canonical", "digest", "fresh_id", "parse", "step_key"]

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_ALPHABET = "abcdefghjkmnpqrstvwxyz23456789"  # no vowels but a and e, no look-alikes: people type these


# Stands for a whole number that RFC 8785 does not take, until its digits are put back. No text of a user may look like it.
_MARK = "\ue000whole:"
_MARKED = re.compile(f'"{_MARK}(-?[0-9]+)"')
_EXACT = 2**53


def canonical(value: Json, *, field: str = "value") -> str:
    """Return RFC 8785 text of `value`; raise `Refused(BAD_REQUEST)` naming `field` for what JSON cannot carry.

    Whole numbers of 2^53 and more, which RFC 8785 leaves out, are written with all their digits: providers name things by 64-bit numbers,
    and a result that cannot be recorded would halt the run.
    """
    try:
        try:
            return rfc8785.dumps(value).decode()
        except rfc8785.IntegerDomainError:
            return _MARKED.sub(r"\1", rfc8785.dumps(_mark(value)).decode())
    except (rfc8785.CanonicalizationError, UnicodeError, RecursionError, ValueError) as error:
        raise Refused(Code.BAD_REQUEST, f"{field} is no JSON that RFC 8785 can carry: {error}", field=field) from error


def _mark(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _mark(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mark(item) for item in value]
    if isinstance(value, str) and value.startswith(_MARK):
        raise ValueError("a text that looks like our mark for whole numbers")
    return f"{_MARK}{value}" if isinstance(value, int) and abs(value) >= _EXACT else value


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
