"""What is refused without a cluster: what the CRD refuses, by the same list of bad writes, and what no process can be made of."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest

from e2e.contract.crd_bad_writes import DECISIONS, IMMUTABLE, PLAN, Write
from e2e.contract.crd_runs import ANSWERED, CONDITIONS, SPEC
from stepfence.core.errors import Code, Refused
from stepfence.local.admission import admit_json_patch, admit_patch
from stepfence.local.manifest import admit_new
from stepfence.stores.merge import merge


def manifest(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "stepfence.dev/v1alpha1",
        "kind": "AgentRun",
        "metadata": {"name": "run"},
        "spec": {**copy.deepcopy(SPEC), **changes},
    }


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


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
    "write",
    [write for write in (*IMMUTABLE, *PLAN, *DECISIONS) if write.on != "nothing"],
    ids=lambda write: f"{write.rule}: {write.sentence}",
)
def test_what_a_merge_patch_may_not_do_a_json_patch_may_not(write: Write) -> None:
    before = stored(write.on)
    operations = jsonpatch.make_patch(before, merge(before, {"spec": write.change})).patch
    with pytest.raises(Refused) as refused:
        admit_json_patch(before, operations)
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
        ({"input": {"a": nested(64)}}, "spec.input"),
        ({"template": {"a": nested(64)}}, "spec.template"),
        ({"template": None}, "spec.template"),
        ({"surprise": 1}, "spec.surprise"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_manifest_is_refused_and_the_field_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        admit_new(manifest(**changes), "default")
    assert refused.value.field == field


@pytest.mark.parametrize("steps", [["refund"], [{"id": "refund", "approval": "Required"}]])
def test_what_is_no_mapping_is_told_without_names_of_the_code(steps: list[Any]) -> None:
    with pytest.raises(Refused, match=r"spec\.plan\.steps\[0\](\.approval)?: Input should be a valid dictionary$"):
        admit_new(manifest(plan={"steps": steps}), "default")


def test_another_kind_is_refused() -> None:
    with pytest.raises(Refused, match="only stepfence"):
        admit_new({**manifest(), "kind": "Job"}, "default")


@pytest.mark.parametrize(
    "patch", [{"status": {"outcome": "Succeeded"}}, {"metadata": {"uid": "x"}}, {"metadata": {"labels": {"a": 1}}}, [1]]
)
def test_only_what_people_write_can_be_patched(patch: Any) -> None:
    with pytest.raises(Refused):
        admit_patch(stored("open"), patch)


@pytest.mark.parametrize("result", [{"a": nested(64)}, {"a": 10**640}], ids=["nested too deep", "a number that is too long"])
def test_an_answer_that_could_not_be_kept_is_refused_before_it_is_written(result: Any) -> None:
    with pytest.raises(Refused) as refused:
        admit_patch(stored("open"), {"spec": {"decisions": {"refund.q1": {"verdict": "Happened", "result": result}}}})
    assert (refused.value.code, refused.value.field) == (Code.BAD_REQUEST, "spec.decisions[refund.q1].result")


def test_a_manifest_says_in_one_sentence_what_is_too_deep() -> None:
    with pytest.raises(Refused) as refused:
        admit_new(manifest(input={"a": nested(64)}), "default")
    assert refused.value.detail == "spec.input: nested deeper than 64 levels"


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


def test_a_json_patch_answers_and_holds_and_changes_nothing_else() -> None:
    before = stored("open")
    unchanged = copy.deepcopy(before)
    operations = [
        {"op": "test", "path": "/spec/decisions", "value": before["spec"]["decisions"]},
        {"op": "add", "path": "/spec/decisions/refund.q1", "value": {"verdict": "Happened", "result": {"id": "re_1"}}},
        {"op": "add", "path": "/spec/suspend", "value": True},
        {"op": "add", "path": "/metadata/labels", "value": {"team": "a"}},
        {"op": "copy", "from": "/metadata/labels/team", "path": "/metadata/labels/owner"},
    ]
    after = admit_json_patch(before, operations)
    assert before == unchanged
    assert after == merge(
        before,
        {
            "metadata": {"labels": {"team": "a", "owner": "a"}},
            "spec": {"suspend": True, "decisions": {"refund.q1": {"verdict": "Happened", "result": {"id": "re_1"}}}},
        },
    )


def doubling(times: int) -> list[dict[str, Any]]:
    start = {"op": "add", "path": "/metadata/annotations", "value": {"a0": "x" * 1000}}
    return [start, *({"op": "copy", "from": "/metadata", "path": f"/metadata/a{number}"} for number in range(times))]


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        ({"spec": {}}, "a JSON patch is a list of operations"),
        (["add"], "a JSON patch is a list of operations"),
        ([{"op": "add", "path": "/spec/suspend", "value": True}] * 10_001, "10001 operations, at most 10000"),
        ([{"op": "put", "path": "/spec/suspend", "value": True}], "operation 0 cannot be applied: "),
        ([{"op": "add", "path": "/spec/suspend"}], "operation 0 cannot be applied: "),
        ([{"op": "add", "value": True}], "operation 0 cannot be applied: "),
        ([{"op": "add", "path": 5, "value": True}], "operation 0 cannot be applied: "),
        ([{"op": "remove", "path": "/spec/absent"}], "/spec/absent: operation 0 cannot be applied: "),
        ([{"op": "replace", "path": "/spec/a/b", "value": 1}], "/spec/a/b: operation 0 cannot be applied: "),
        ([{"op": "test", "path": "/spec/suspend", "value": True}], "/spec/suspend: operation 0 cannot be applied: "),
        ([{"op": "remove", "path": "/spec"}], "spec: cannot be removed"),
        ([{"op": "remove", "path": "/metadata"}], "metadata: cannot be removed"),
        ([{"op": "replace", "path": "", "value": 1}], "cannot be removed"),
        ([{"op": "add", "path": "/status/outcome", "value": "Succeeded"}], "status: only spec, labels and annotations"),
        ([{"op": "remove", "path": "/status"}], "status: only spec, labels and annotations"),
        ([{"op": "add", "path": "/surprise", "value": 1}], "surprise: only spec, labels and annotations"),
        ([{"op": "replace", "path": "/metadata/name", "value": "b"}], "metadata.name: only labels and annotations"),
        ([{"op": "add", "path": "/metadata/labels", "value": {"a": 1}}], "metadata.labels: values are strings"),
        (doubling(40), "operation .* cannot be applied: larger than"),
    ],
    ids=lambda value: str(value)[:70],
)
def test_a_wrong_json_patch_is_refused_and_told_why(patch: Any, says: str) -> None:
    with pytest.raises(Refused, match=says) as refused:
        admit_json_patch(stored("open"), patch)
    assert refused.value.code is Code.BAD_REQUEST


def test_what_a_json_patch_does_not_find_is_told_without_the_whole_object() -> None:
    before = admit_new(manifest(input={"text": "x" * 5000}), "default")
    with pytest.raises(Refused) as refused:
        admit_json_patch(before, [{"op": "replace", "path": "/spec/none/steps", "value": []}])
    assert len(refused.value.detail) < 300


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
