"""Whether an object is one that the API server could have stored: the part of OpenAPI that the definition uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Schema = dict[str, Any]
_ROOT = Path(__file__).parents[2]
_TYPES: dict[str, Any] = {"string": str, "integer": int, "boolean": bool, "number": (int, float), "object": dict, "array": list}
# What an API server itself sets, beside what the schema says of metadata.
_METADATA = {"name", "namespace", "uid", "generation", "creationTimestamp", "resourceVersion", "labels", "annotations"}


def run_schema() -> Schema:
    """The schema of an AgentRun."""
    definition = yaml.safe_load((_ROOT / "crds/agentruns.yaml").read_text())
    found: Schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def problems(document: Any) -> list[str]:
    """Return what of an AgentRun the API server would have refused or dropped; empty for none."""
    metadata = document.get("metadata", {})
    strange = [f"metadata.{name}: unknown" for name in sorted(metadata.keys() - _METADATA)]
    return [*strange, *_wrong({**document, "metadata": {"name": metadata.get("name")}}, run_schema(), "")]


def _wrong(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if value is None and schema.get("nullable"):
        return
    wanted = schema.get("type")
    right = isinstance(value, _TYPES[wanted]) if wanted else isinstance(value, int | str)
    if not right or (isinstance(value, bool) and wanted != "boolean"):
        yield f"{path}: {value!r} is no {wanted or 'integer or string'}"
    elif isinstance(value, dict):
        yield from _wrong_object(value, schema, path)
    elif isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{path}: has {len(value)} items"
        for index, item in enumerate(value):
            yield from _wrong(item, schema["items"], f"{path}[{index}]")
    else:
        yield from _wrong_scalar(value, schema, path)


def _wrong_object(value: dict[str, Any], schema: Schema, path: str) -> Iterator[str]:
    known, rest = schema.get("properties", {}), schema.get("additionalProperties")
    for name in schema.get("required", []):
        if name not in value:
            yield f"{path}.{name}: missing"
    for name, item in value.items():
        inner = known.get(name, rest)
        if isinstance(inner, dict):
            yield from _wrong(item, inner, f"{path}.{name}")
        elif not (inner or schema.get("x-kubernetes-preserve-unknown-fields")):
            yield f"{path}.{name}: unknown"


def _wrong_scalar(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if value not in schema.get("enum", [value]):
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            yield f"{path}: has {len(value)} characters"
        if re.search(schema.get("pattern", ""), value) is None:
            yield f"{path}: {value!r} does not match {schema['pattern']}"
        if schema.get("format") == "date-time" and not re.fullmatch(r"[0-9-]{10}T[0-9:]{8}(\.[0-9]{1,6})?Z", value):
            yield f"{path}: {value!r} is no time"
    elif not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{path}: {value} is out of bounds"
