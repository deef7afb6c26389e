"""The definitions: up to date, every field of ours described and bounded, and of one mind with the code."""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest
import yaml

from stepfence.core.model import Run, StepSpec
from stepfence.core.plan import StepRequest, effective
from stepfence.core.summary import Phase, QuestionKind, Summary
from stepfence.core.words import Action, Outcome, PlanSource, Recovery, Settings, State, Verdict
from stepfence.schema import encode_status
from tools.generate_crds import RULES, agentrunrecords, agentruns
from tools.generate_crds.__main__ import ROOT, outputs, stale
from tools.generate_crds.steps import DEFAULT_TIMEOUT_SECONDS

Schema = dict[str, Any]
NOW = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
KUBERNETES_OWN = ("apiVersion", "kind", "metadata", "spec.template")


def root(definition: Schema) -> Schema:
    found: Schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


RUN, RECORD = root(agentruns()), root(agentrunrecords())


def ours(node: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Every field of ours with its path: items of lists by `[]`, values of maps by `*`."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        here = f"{path}.{name}".lstrip(".")
        if here.removeprefix("record.") not in KUBERNETES_OWN:
            yield from ours(child, here)
    for word, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if word in node:
            yield from ours(node[word], path + mark)


FIELDS = [*ours(RUN, ""), *ours(RECORD, "record")]


def named(path: str) -> Schema:
    return dict(FIELDS)[path]


def test_the_files_are_what_the_generator_writes() -> None:
    assert stale() == []


def test_a_stale_file_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "crds" / "agentruns.yaml"
    monkeypatch.setattr("tools.generate_crds.__main__.render", lambda _: "something else")
    assert path in stale()


def test_the_files_are_yaml_of_the_definitions() -> None:
    assert {path.stem: yaml.safe_load(text) for path, text in outputs().items() if path.suffix == ".yaml"} == {
        "agentruns": agentruns(),
        "agentrunrecords": agentrunrecords(),
    }


@pytest.mark.parametrize(("path", "schema"), FIELDS, ids=[path or "agentrun" for path, _ in FIELDS])
def test_every_field_is_described(path: str, schema: Schema) -> None:
    assert schema["description"].strip().endswith((".", "?"))


@pytest.mark.parametrize(("path", "schema"), FIELDS, ids=[path or "agentrun" for path, _ in FIELDS])
def test_every_field_is_bounded(path: str, schema: Schema) -> None:
    bounds = {
        "string": "maxLength" in schema or "enum" in schema,
        "integer": "minimum" in schema and "maximum" in schema,
        "array": "maxItems" in schema,
        "object": "properties" in schema or "maxProperties" in schema,
        "boolean": True,
    }
    assert bounds[schema["type"]]


def test_no_field_in_a_list_has_a_default_of_the_api_server() -> None:
    # kubectl would see a difference at each apply, for lists are compared as a whole.
    assert [path for path, schema in FIELDS if "[]" in path and "default" in schema] == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("spec.plan.steps[].action", Action),
        ("spec.plan.steps[].recovery", Recovery),
        ("status.plan.steps[].action", Action),
        ("status.plan.steps[].recovery", Recovery),
        ("status.plan.source", PlanSource),
        ("spec.decisions.*.verdict", Verdict),
        ("status.ledger.*.answers[].verdict", Verdict),
        ("status.ledger.*.state", State),
        ("status.phase", Phase),
        ("status.outcome", Outcome),
        ("status.questions.*.kind", QuestionKind),
    ],
)
def test_enums_are_the_ones_of_the_core(path: str, words: type[Enum]) -> None:
    assert set(named(path)["enum"]) == {word.value for word in words}


def test_limits_are_the_ones_of_the_core() -> None:
    settings = Settings()
    for path in ("spec.plan.steps", "status.plan.steps"):
        assert named(path)["maxItems"] == settings.max_steps
    for path in ("status.result", "status.ledger.*.result", "status.ledger.*.payload", "status.questions.*.payload"):
        assert named(path)["maxLength"] == settings.inline_bytes
    assert named("record.spec.data")["maxLength"] == named("record.spec.bytes")["maximum"] == settings.record_bytes
    assert named("spec.workerHistoryLimit")["default"] == settings.history


def test_the_defaults_that_are_described_are_the_ones_of_the_core() -> None:
    step = effective(StepRequest(id="any"))
    described = {
        "timeoutSeconds": step.timeout,
        "settleSeconds": step.settle,
        "attempts": step.attempts,
        "backoffSeconds": step.backoff,
    }
    for field, value in described.items():
        assert named(f"spec.plan.steps[].{field}")["description"].endswith(f"Default: {value}.")
    assert f"Default: `{step.action}`." in named("spec.plan.steps[].action")["description"]
    assert step.timeout == DEFAULT_TIMEOUT_SECONDS


def test_every_rule_has_a_name_and_a_sentence_of_its_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.message for rule in RULES)


def filled(kind: Any) -> Any:
    """A value of a type with nothing left out."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return filled(next(part for part in arguments if part is not type(None)))
    if origin is tuple:
        return tuple(filled(part) for part in arguments if part is not Ellipsis)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {filled(arguments[0]): filled(arguments[1])}
    if isinstance(kind, typing.NewType):
        return filled(kind.__supertype__)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{field.name: filled(hints[field.name]) for field in dataclasses.fields(kind) if field.init})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    return {str: "x", int: 1, float: 1.0, bool: True, datetime: NOW}[kind]


def written(document: Any, schema: Schema, path: str) -> Iterator[str]:
    """The paths of what stands in a document; raises KeyError at a field that the schema does not have."""
    yield path
    if isinstance(document, list):
        for item in document:
            yield from written(item, schema["items"], path + "[]")
    if isinstance(document, Mapping):
        for name, value in document.items():
            if "additionalProperties" in schema:
                yield from written(value, schema["additionalProperties"], f"{path}.*")
            else:
                yield from written(value, schema["properties"][name], f"{path}.{name}")


def test_the_status_has_the_fields_that_the_code_writes_and_no_others() -> None:
    # The API server drops what the definition does not name, without a word.
    run: Run = filled(Run)
    assert run.plan is not None
    assert all(isinstance(step, StepSpec) for step in run.plan.steps)
    document = encode_status(run, filled(Summary), [], NOW)
    schema = RUN["properties"]["status"]
    assert set(written(document, schema, "status")) == {path for path, _ in ours(schema, "status")}
