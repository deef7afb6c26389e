"""JSON out and back: live and replayed results take the same way, so that their types do not differ."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

from pydantic import JsonValue, TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from stepfence.core.canonical import canonical, digest, parse
from stepfence.core.errors import Refused

__all__ = ["NULL_DIGEST", "decode", "encode", "round_trip"]

NULL_DIGEST = digest("null")


def encode(value: Any, what: str) -> str:
    """Return canonical JSON text of a value (models, dataclasses, dates included); raise `TypeError` naming `what`."""
    try:
        return canonical(to_jsonable_python(value), field=what)
    except (PydanticSerializationError, ValueError) as error:  # ValueError: bytes that are no UTF-8, what holds itself
        raise TypeError(f"{what}: {error}") from error
    except Refused as refused:
        raise TypeError(refused.detail) from refused


def decode(value: JsonValue, kind: Any) -> Any:
    """Return the JSON value as `kind` (a pydantic model, a dataclass, any annotation); None leaves it plain JSON.

    Raises `pydantic.ValidationError`.
    """
    if kind is None:
        return value
    # Building an adapter costs more than the rest of a replay; a few annotations cannot be hashed.
    adapter = _adapter(kind) if isinstance(kind, Hashable) else TypeAdapter(kind)
    return adapter.validate_json(canonical(value))


@functools.lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def round_trip(text: str) -> JsonValue:
    """Read canonical text back."""
    return parse(text)
