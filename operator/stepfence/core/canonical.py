"""Canonical JSON (RFC 8785), its digest, and the idempotency key of a step."""

from __future__ import annotations

import hashlib
import json

import rfc8785

from stepfence.core.errors import Code, Refused

__all__ = ["Json", "canonical", "digest", "fresh_id", "parse", "step_key"]

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_ALPHABET = "abcdefghjkmnpqrstvwxyz23456789"  # no vowels but a and e, no look-alikes: people type these


def canonical(value: Json, *, field: str = "value") -> str:
    """Return RFC 8785 text of `value`; raise `Refused(BAD_REQUEST)` naming `field` for what JSON cannot carry exactly."""
    try:
        return rfc8785.dumps(value).decode()
    except (rfc8785.CanonicalizationError, UnicodeError, RecursionError) as error:
        raise Refused(Code.BAD_REQUEST, f"{field} is no JSON that RFC 8785 can carry: {error}", field=field) from error


def parse(text: str) -> Json:
    """Read canonical text back: live and replayed results go through the same round trip."""
    value: Json = json.loads(text, parse_int=_whole)
    return value


def _whole(digits: str) -> int | float:
    # Beyond what a float holds exactly, RFC 8785 writes whole floats as integers and takes no integer: give back what was written.
    number = int(digits)
    return number if abs(number) < 2**53 else float(digits)


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
