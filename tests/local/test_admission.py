"""What is refused without a cluster: what the CRD refuses, by the same list of bad writes, and what no process can be made of."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from e2e.contract.crd_bad_writes import DECISIONS, IMMUTABLE, PLAN, Write
from e2e.contract.crd_runs import ANSWERED, CONDITIONS, SPEC
from stepfence.core.errors import Code, Refused
from stepfence.local.admission import admit_patch
from stepfence.local.manifest import admit_new


def manifest(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "stepfence.dev/v1alpha1",
        "kind": "AgentRun",
        "metadata": {"name": "run"},
        "spec": {**copy.deepcopy(SPEC), **changes},
    }


def stored(condition: str) -> dict[str, Any]:
    document = admit_new(manifest(), "default") | {"status": copy.deepcopy(CONDITIONS[condition])}
    if condition == "open":
        document["spec"]["decisions"] = {ANSWERED: {"verdict": "Happened", "result": {"a": {"b": 1}}}}
    return document


def send(write: Write) -> None:
    if write.on == "nothing":
        admit_new(manifest(**write.change), "default")
    else:
        admit_patch(stored(write.on), {"spec": write.change})


@pytest.mark.parametrize("write", [*IMMUTABLE, *PLAN, *DECISIONS], ids=lambda write: f"{write.rule}: {write.sentence}")
def test_what_the_definition_refuses_is_refused_here(write: Write) -> None:
    with pytest.raises(Refused) as refused:
        send(write)
    assert refused.value.code is Code.BAD_REQUEST
    assert write.path.split("[")[0] in (refused.value.field or "")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"plan": {"steps": [{"id": "a", "action": "Reed"}]}}, "spec.plan.steps[0].action"),
        ({"plan": {"steps": [{"id": "a", "timeout": 5}]}}, "spec.plan.steps[0].timeout"),
        ({"plan": {"steps": [{"id": "a", "timeoutSeconds": 0}]}}, "spec.plan.steps[0].timeoutSeconds"),
        ({"plan": {"steps": [{"id": "A"}]}}, "spec.plan.steps[0].id"),
        ({"plan": {"steps": []}}, "spec.plan.steps"),
        ({"backoffLimit": "6"}, "spec.backoffLimit"),
        ({"input": {"text": "x" * 70_000}}, "spec.input"),
        ({"template": None}, "spec.template"),
        ({"surprise": 1}, "spec.surprise"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_manifest_is_refused_and_the_field_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        admit_new(manifest(**changes), "default")
    assert refused.value.field == field


def test_another_kind_is_refused() -> None:
    with pytest.raises(Refused, match="only stepfence"):
        admit_new({**manifest(), "kind": "Job"}, "default")


@pytest.mark.parametrize(
    "patch", [{"status": {"outcome": "Succeeded"}}, {"metadata": {"uid": "x"}}, {"metadata": {"labels": {"a": 1}}}, [1]]
)
def test_only_what_people_write_can_be_patched(patch: Any) -> None:
    with pytest.raises(Refused):
        admit_patch(stored("open"), patch)


@pytest.mark.parametrize(
    "decisions",
    [
        {"refund.q1": {"verdict": "Happened", "result": {"id": "re_1"}}},
        {"refund.q1": {"verdict": "DidNotHappen", "force": True}},
        {"notify.q4": {"verdict": "DidNotHappen"}},
        {"wipe.q2": {"verdict": "Deny", "reason": "no", "by": "jo"}},
        {"run.q3": {"verdict": "Resume"}},
        {ANSWERED: None},
    ],
    ids=str,
)
def test_a_fitting_answer_is_taken(decisions: dict[str, Any]) -> None:
    after = admit_patch(stored("open"), {"spec": {"decisions": decisions}})
    for key, decision in decisions.items():
        assert after["spec"]["decisions"].get(key) == decision


def test_an_answer_under_a_wrong_key_is_told_the_open_ones() -> None:
    with pytest.raises(Refused, match=r"refund\.zz is none; open: .*refund\.q1"):
        admit_patch(stored("open"), {"spec": {"decisions": {"refund.zz": {"verdict": "Happened"}}}})


def test_suspend_cancel_and_template_may_change() -> None:
    patch = {"spec": {"suspend": True, "cancel": True, "template": {"spec": {"containers": [{"name": "b", "image": "c"}]}}}}
    after = admit_patch(stored("fresh"), patch)
    assert (after["spec"]["suspend"], after["spec"]["cancel"]) == (True, True)


def test_defaults_are_those_of_the_definition() -> None:
    spec = manifest()["spec"]
    del spec["backoffLimit"], spec["workerHistoryLimit"]
    made = admit_new({**manifest(), "spec": spec}, "support")
    assert (made["spec"]["backoffLimit"], made["spec"]["workerHistoryLimit"], made["metadata"]["namespace"]) == (6, 3, "support")
