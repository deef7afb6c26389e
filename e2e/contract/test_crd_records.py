"""AgentRunRecord: written once, and each type with what it needs."""

import itertools

import pytest

from e2e.contract.crd_api import DEFINITIONS, VERSION, Api, Document, Said, objects
from e2e.contract.crd_runs import DIGEST, OTHER_DIGEST, must
from tools.generate_crds import agentrunrecords
from tools.generate_crds.rules import RECORD_RULES

GROUP = "stepfence.dev"
BODY: Document = {"type": "Payload", "run": "refund", "runUID": "u-1", "digest": DIGEST, "bytes": 2, "data": "{}"}
IDENTITY: Document = {"type": "Identity", "run": "refund", "runUID": "u-1", "runID": "default/refund-4711"}
_names = itertools.count()

NEW: list[tuple[str, str, Document]] = [
    ("a-body-has-data-digest-and-size", "a body without data", {k: v for k, v in BODY.items() if k != "data"}),
    ("a-body-has-data-digest-and-size", "a body without digest", {k: v for k, v in BODY.items() if k != "digest"}),
    ("a-body-has-data-digest-and-size", "a body without its size", {k: v for k, v in BODY.items() if k != "bytes"}),
    ("run-id-belongs-to-identity", "a body with a run id", BODY | {"runID": "default/x"}),
    ("run-id-belongs-to-identity", "an identity without a run id", {k: v for k, v in IDENTITY.items() if k != "runID"}),
]
CHANGES: list[tuple[str, Document]] = [
    ("another text", {"data": "[]"}),
    ("another digest", {"digest": OTHER_DIGEST}),
    ("another run", {"run": "other"}),
    ("another type", {"type": "Result"}),
]


def create(api: Api, group: str, spec: Document) -> Said:
    manifest = {"apiVersion": f"{group}/{VERSION}", "kind": "AgentRunRecord", "spec": spec}
    return api.create(objects(group, "agentrunrecords"), manifest | {"metadata": {"name": f"record-{next(_names)}"}})


def created(api: Api, group: str, spec: Document) -> str:
    return f"{objects(group, 'agentrunrecords')}/{must(create(api, group, spec))['metadata']['name']}"


@pytest.mark.parametrize("spec", [BODY, BODY | {"type": "Result"}, IDENTITY], ids=["payload", "result", "identity"])
def test_a_record_of_each_type_is_accepted(api: Api, spec: Document) -> None:
    created(api, GROUP, spec)


def test_a_body_of_256_kib_is_accepted_and_a_larger_one_refused(api: Api) -> None:
    created(api, GROUP, BODY | {"data": "x" * 262_144, "bytes": 262_144})
    said = create(api, GROUP, BODY | {"data": "x" * 262_145, "bytes": 262_144})
    assert (said.code, list(said.causes)) == (422, ["spec.data"])


@pytest.mark.parametrize(("sentence", "change"), CHANGES, ids=[change[0] for change in CHANGES])
def test_a_record_is_never_changed(api: Api, sentence: str, change: Document) -> None:
    said = api.merge(created(api, GROUP, BODY), {"spec": change})
    assert (said.code, list(said.causes)) == (422, ["spec"])
    assert "a record is written once" in said.message


@pytest.mark.parametrize("gone", [{"spec": None}, {"spec": {"data": None}}, {"spec": {"digest": None}}], ids=str)
def test_nothing_of_a_record_is_ever_removed(api: Api, gone: Document) -> None:
    assert api.merge(created(api, GROUP, BODY), gone).code == 422


def test_labels_of_a_record_may_change(api: Api) -> None:
    must(api.merge(created(api, GROUP, BODY), {"metadata": {"labels": {"a": "b"}}}))


@pytest.mark.parametrize(("rule", "sentence", "spec"), NEW, ids=[new[1] for new in NEW])
def test_a_record_that_makes_no_sense_is_refused(api: Api, rule: str, sentence: str, spec: Document) -> None:
    said = create(api, GROUP, spec)
    assert said.code == 422
    (message,) = [entry.message for entry in RECORD_RULES if entry.name == rule]
    assert message in said.message


def test_without_its_rule_each_bad_write_passes(api: Api) -> None:
    for number, rule in enumerate(RECORD_RULES):
        group = f"d{number}.without.example"
        definition = agentrunrecords(without=[rule.name])
        definition["metadata"]["name"] = f"agentrunrecords.{group}"
        definition["spec"]["group"] = group
        api.install(definition)
        api.wait_served(group, "agentrunrecords")
        for spec in [spec for name, _, spec in NEW if name == rule.name]:
            created(api, group, spec)
        if rule.name == "a-record-is-immutable":
            for _, change in CHANGES:
                must(api.merge(created(api, group, BODY), {"spec": change}))
        api.delete(f"{DEFINITIONS}/agentrunrecords.{group}")
