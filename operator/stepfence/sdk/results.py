"""JSON out and back: live and replayed results take the same way, so that their types do not differ."""

from __future__ import annotations

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
    except PydanticSerializationError as error:
        raise TypeError(f"{what}: {error}") from error
    except Refused as refused:
        raise TypeError(refused.detail) from refused


def decode(value: JsonValue, kind: Any) -> Any:
    """Return the JSON value as `kind` (a pydantic model, a dataclass, any annotation); None leaves it plain JSON.

    Raises `pydantic.ValidationError`.
    """
    return value if kind is None else TypeAdapter(kind).validate_json(canonical(value))


def round_trip(text: str) -> JsonValue:
    """Read canonical text back."""
    return parse(text)
