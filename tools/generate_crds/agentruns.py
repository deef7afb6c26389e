"""The definition of AgentRun."""

from collections.abc import Collection, Iterable

from tools.generate_crds import fields
from tools.generate_crds.fields import Schema
from tools.generate_crds.rules import RULES, Rule, combined
from tools.generate_crds.spec import spec
from tools.generate_crds.status import status

GROUP = "stepfence.dev"
VERSION = "v1alpha1"
_ABOUT = (
    "One execution of one plan by a worker that may be killed at any instant: each external action is recorded before it happens, "
    "and when the record cannot tell whether one happened, the run stops and a person decides."
)
# Events, Jobs and questions are named after a run, and its name is a label value.
_NAME = {"type": "string", "maxLength": 63, "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}

_INSIDE = {"*": "additionalProperties", "[]": "items"}


def attach(schema: Schema, rules: Iterable[Rule]) -> None:
    """Put the rules on the schemas at their paths."""
    places: dict[tuple[str, ...], list[Rule]] = {}
    for rule in rules:
        places.setdefault(rule.at, []).append(rule)
    for at, there in places.items():
        node = schema
        for part in at:
            node = node[_INSIDE[part]] if part in _INSIDE else node["properties"][part]
        many = bool(at) and at[-1] in _INSIDE
        node["x-kubernetes-validations"] = [combined(there)] if many else [rule.validation() for rule in there]


def root(about: str, properties: Schema) -> Schema:
    """The schema of a whole object."""
    metadata: Schema = {"type": "object", "properties": {"name": dict(_NAME)}}
    kind: Schema = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": metadata}
    return fields.record(about, kind | properties, required=["spec"])


def definition(names: Schema, version: Schema) -> Schema:
    """A CustomResourceDefinition with one version."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": names,
            "versions": [{"name": VERSION, "served": True, "storage": True, **version}],
        },
    }


def column(name: str, kind: str, path: str, about: str, priority: int = 0) -> Schema:
    """A column of `kubectl get`; priority 1 shows it only with `-o wide`."""
    wide = {"priority": priority} if priority else {}
    return {"name": name, "type": kind, "description": about, "jsonPath": path, **wide}


def _columns() -> list[Schema]:
    ready = '.status.conditions[?(@.type=="Ready")].reason'
    return [
        column("Phase", "string", ".status.phase", "What the run is doing."),
        column("Steps", "string", ".status.progress", "Steps done of steps planned."),
        column("Token", "integer", ".status.fencingToken", "Number of the current claim."),
        column("Open", "string", ".status.openStep", "The step that is in flight, in doubt or awaits approval."),
        column("Reason", "string", ready, "Why the run is or is not Ready.", 1),
        column("Age", "date", ".metadata.creationTimestamp", "Since when the object exists."),
    ]


def agentruns(*, without: Collection[str] = ()) -> Schema:
    """The definition, without the named rules if any (so that a test can show what each of them refuses)."""
    schema = root(_ABOUT, {"spec": spec(), "status": status()})
    attach(schema, (rule for rule in RULES if rule.name not in without))
    names: Schema = {
        "kind": "AgentRun",
        "listKind": "AgentRunList",
        "plural": "agentruns",
        "singular": "agentrun",
        "shortNames": ["arun"],
        "categories": ["stepfence"],
    }
    version: Schema = {
        "subresources": {"status": {}},
        "selectableFields": [{"jsonPath": ".status.phase"}],
        "additionalPrinterColumns": _columns(),
        "schema": {"openAPIV3Schema": schema},
    }
    return definition(names, version)
