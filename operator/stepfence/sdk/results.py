"""JSON out and back: live and replayed results take the same way, so that their types do not differ."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from stepfence.core.canonical import canonical, digest, parse
from stepfence.core.errors import Refused
from stepfence.core.kept import not_kept, not_kept_in
from stepfence.sdk.errors import ResultNotReadable
from stepfence.sdk.plain import is_data, plain

__all__ = ["LARGEST_BODY", "NULL_DIGEST", "check_kind", "decode", "encode", "keep", "keep_small", "read_result", "round_trip"]

# Of a result in characters: with what goes around it, a request of a report stays below the gateway's limit of 1 MiB.
LARGEST_BODY = 900 * 1024

NULL_DIGEST = digest("null")


def encode(value: Any, what: str) -> str:
    """Return canonical JSON text of a value (models, dataclasses, dates included); raise `TypeError` naming `what`."""
    try:
        return canonical(to_jsonable_python(value), field=what)
    except (PydanticSerializationError, ValueError) as error:  # ValueError: bytes that are no UTF-8, what holds itself
        raise TypeError(f"{what}: {error}") from error
    except Refused as refused:
        raise TypeError(refused.detail) from refused


def keep(value: Any, what: str, *, happened: bool = False) -> str:
    """Return canonical JSON text of a result; of data that JSON cannot carry, what can be kept of it (`core.kept`).

    Raises `TypeError` naming `what` for an object that is no data, and what its own code raises: it may be a call that nobody awaited, so
    that nothing happened yet. `happened` says that it did: then such an object is kept by its name.
    """
    try:
        return encode(value, what)
    except Exception as error:
        if not happened and not is_data(value):
            raise
        return canonical(not_kept(plain(value), str(error)))


def keep_small(value: Any, what: str) -> str:
    """Return canonical JSON text of a result that is known to have happened, as `keep`; of one too large for a request, how large it is."""
    text = keep(value, what, happened=True)
    if len(text.encode()) <= LARGEST_BODY:
        return text
    return canonical(not_kept(None, f"{what}: {len(text.encode())} bytes are too many to keep, {digest(text)}"))


def check_kind(kind: Any, step: str) -> None:
    """Raise `TypeError` for what is no type to read a result as: found out before anything is sent."""
    if kind is None:
        return
    try:
        adapter = _adapter_of(kind)
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True)
    except Exception as error:  # pydantic raises many kinds
        raise TypeError(f"step {step!r}: result={kind!r} is no type that a result can be read as: {error}") from error


def read_result(step: str, value: JsonValue, kind: Any) -> Any:
    """Return a recorded result as `kind`, live and replayed alike. Raises `ResultNotReadable`."""
    lost = not_kept_in(value)
    if lost is not None:
        why = f"what it returned could not be kept as it was ({lost.why})"
        raise ResultNotReadable(step, why, lost.value, f"what can be kept of it: {_about(lost.value, value)}")
    try:
        return decode(value, kind)
    except ValidationError as error:
        # Not chained: its own text repeats the values.
        why = f"its result cannot be read as {_name(kind)} ({_first(error)})"
        raise ResultNotReadable(step, why, value, _about(value, value)) from None
    except Exception as error:
        why = f"its result cannot be read as {_name(kind)} ({type(error).__name__})"
        raise ResultNotReadable(step, why, value, _about(value, value)) from error


def _first(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    more = f", and {error.error_count() - 1} more" if error.error_count() > 1 else ""
    return f"{where or 'it'}: {first['msg']}{more}"


def _name(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def _about(value: JsonValue, recorded: JsonValue) -> str:
    """Say what is recorded without its values, which may be secret."""
    text = canonical(recorded)
    shape = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(type(value), "a number")
    if isinstance(value, dict):
        names = [repr(name) for name in sorted(value)]
        shape += f" with {', '.join(names[:8])}{', …' if len(names) > 8 else ''}" if names else " with nothing in it"
    return f"{shape}, {len(text.encode())} bytes, {digest(text)}"


def decode(value: JsonValue, kind: Any) -> Any:
    """Return the JSON value as `kind` (a pydantic model, a dataclass, any annotation); None leaves it plain JSON.

    Raises `pydantic.ValidationError`.
    """
    if kind is None:
        return value
    return _adapter_of(kind).validate_json(canonical(value))


def _adapter_of(kind: Any) -> TypeAdapter[Any]:
    # Building an adapter costs more than the rest of a replay; a few annotations cannot be hashed.
    return _adapter(kind) if isinstance(kind, Hashable) else TypeAdapter(kind)


@functools.lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def round_trip(text: str) -> JsonValue:
    """Read canonical text back."""
    return parse(text)
