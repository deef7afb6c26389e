"""Each rule of the definition refuses what it is for, and no more: without it the same write passes."""

import copy
from collections.abc import Iterator

import pytest

from e2e.contract.crd_api import DEFINITIONS, Api, Document
from e2e.contract.crd_bad_writes import BAD_WRITES, Write
from e2e.contract.crd_runs import ANSWERED, DIGEST, DONE, LATER, OPEN, STEPS, TEMPLATE, TIME, attempt, key, must, seed
from tools.generate_crds import RULES, agentruns

GROUP = "stepfence.dev"


@pytest.mark.parametrize("write", BAD_WRITES, ids=lambda write: f"{write.rule}: {write.sentence}")
def test_the_api_server_refuses(api: Api, write: Write) -> None:
    said = write.send(api, GROUP)
    assert said.code == 422, said.body
    assert list(said.causes) == [write.path]
    (rule,) = [rule for rule in RULES if rule.name == write.rule]
    assert rule.message in said.causes[write.path]


def test_every_rule_has_a_write_that_it_refuses() -> None:
    assert {write.rule for write in BAD_WRITES} == {rule.name for rule in RULES}


@pytest.fixture(scope="module")
def lenient(api: Api) -> Iterator[dict[str, str]]:
    """For each rule the group of a definition that lacks it alone. Their template is open, for that compiles faster."""
    groups = {rule.name: f"r{number}.without.example" for number, rule in enumerate(RULES)}
    for rule, group in groups.items():
        api.install(without(rule, group))
    for group in groups.values():
        api.wait_served(group, "agentruns")
    yield groups
    for group in groups.values():
        api.delete(f"{DEFINITIONS}/agentruns.{group}")


def without(rule: str, group: str) -> Document:
    definition = copy.deepcopy(agentruns(without=[rule]))
    definition["metadata"]["name"] = f"agentruns.{group}"
    definition["spec"]["group"] = group
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["template"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return definition


@pytest.mark.parametrize("write", BAD_WRITES, ids=lambda write: f"{write.rule}: {write.sentence}")
def test_without_its_rule_the_same_write_passes(api: Api, lenient: dict[str, str], write: Write) -> None:
    said = write.send(api, lenient[write.rule])
    assert said.accepted, said.message


def test_a_removed_status_is_refused(api: Api) -> None:
    # The API server puts the default in its place: what is missing is refused, field by field.
    for condition in ("fresh", "open", "terminal"):
        path = seed(api, GROUP, condition)
        said = api.merge(f"{path}/status", {"status": None})
        assert said.code == 422
        assert {"status.version", "status.fencingToken", "status.runID"} <= set(said.causes)
        stored = api.get(path).body
        del stored["status"]
        assert api.replace(f"{path}/status", stored).code == 422


@pytest.mark.parametrize("field", ["state", "key", "attempt", "token"])
def test_what_every_entry_has_cannot_be_removed(api: Api, field: str) -> None:
    path = seed(api, GROUP, "open")
    said = api.merge(f"{path}/status", {"status": {"ledger": {"refund": {field: None}}}})
    assert (said.code, list(said.causes)) == (422, [f"status.ledger.refund.{field}"])


def test_the_steps_of_a_recorded_plan_cannot_be_removed(api: Api) -> None:
    said = api.merge(f"{seed(api, GROUP, 'open')}/status", {"status": {"plan": {"steps": None}}})
    assert (said.code, list(said.causes)) == (422, ["status.plan.steps"])


@pytest.mark.parametrize(("patch", "field"), [({"spec": None}, "spec"), ({"spec": {"template": None}}, "spec.template")], ids=str)
def test_the_spec_cannot_be_removed(api: Api, patch: Document, field: str) -> None:
    said = api.merge(seed(api, GROUP, "fresh"), patch)
    assert (said.code, list(said.causes)) == (422, [field])


GOOD_STATUS: list[tuple[str, str, Document]] = [
    ("token and version grow", "fresh", {"fencingToken": 4, "version": 2}),
    ("a run is accepted", "fresh", {"plan": OPEN["plan"], "version": 2}),
    ("a step is begun", "open", {"ledger": {"close": {"state": "InFlight", "key": key(5), "attempt": 1, "token": 3}}}),
    ("a doubt turns out to be Done", "open", {"ledger": {"refund": DONE | {"key": key(2), "attempt": 2, "token": 2}}}),
    ("a doubt turns out not to have happened", "open", {"ledger": {"refund": {"state": "Failed"}}}),
    ("a doubt is begun again", "open", {"ledger": {"refund": {"state": "InFlight", "attempt": 3, "token": 3}}}),
    ("an answer is recorded", "open", {"ledger": {"refund": {"answers": [*OPEN["ledger"]["refund"]["answers"], {
        "question": "q1", "verdict": "Happened", "by": "jo", "at": TIME, "verified": False}]}}}),
    ("a late refusal is recorded with what is Done", "open", {"ledger": {"lookup": {"answers": [{
        "question": "q0", "verdict": "Abandon", "by": "jo", "at": TIME, "refused": "too late", "verified": False}]}}}),
    ("an end of a pod is noted", "open", {"ledger": {"refund": {"open": [attempt(2) | {"terminatedAt": LATER}]}}}),
    ("the plan grows at its end", "open", {"plan": {"steps": [*OPEN["plan"]["steps"], {
        "id": "more", "action": "Read", "recovery": "Rerun"}]}}),
    ("questions go", "open", {"questions": None}),
    ("the run ends with a doubt that was abandoned", "open", {"outcome": "Failed", "finishedAt": TIME}),
    ("a terminal run learns that a doubt is Done", "terminal", {"ledger": {"refund": DONE | {
        "key": key(2), "attempt": 2, "token": 2}}}),
    ("a terminal run learns that a failure is Done", "terminal", {"ledger": {"close": {"state": "Done", "resultDigest": DIGEST}}}),
    ("a terminal run learns that the attempt before a denial is Done", "terminal", {"ledger": {"again": {
        "state": "Done", "resultDigest": DIGEST}}}),
    ("a terminal run goes on being observed", "terminal", {"observedGeneration": 2, "version": 10}),
    ("a holder goes", "open", {"holder": None}),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "condition", "change"), GOOD_STATUS, ids=[good[0] for good in GOOD_STATUS])
def test_the_operator_may_write_that(api: Api, sentence: str, condition: str, change: Document) -> None:
    path = seed(api, GROUP, condition)
    must(api.merge(f"{path}/status", {"status": change}))


GOOD_SPEC: list[tuple[str, Document]] = [
    ("suspend", {"suspend": True}),
    ("cancel", {"cancel": True}),
    ("mend the template", {"template": {"spec": {"containers": TEMPLATE["spec"]["containers"], "nodeSelector": {"a": "b"}}}}),
    ("say that it happened", {"decisions": {"refund.q1": {"verdict": "Happened", "result": {"refund": "re_9"}, "reason": "seen"}}}),
    ("say that it did not, when that counts", {"decisions": {"notify.q4": {"verdict": "DidNotHappen"}}}),
    ("say that it did not, by force", {"decisions": {"refund.q1": {"verdict": "DidNotHappen", "force": True}}}),
    ("abandon a doubt", {"decisions": {"refund.q1": {"verdict": "Abandon"}}}),
    ("approve", {"decisions": {"wipe.q2": {"verdict": "Approve", "by": "jo"}}}),
    ("deny", {"decisions": {"wipe.q2": {"verdict": "Deny"}}}),
    ("resume", {"decisions": {"run.q3": {"verdict": "Resume"}}}),
    ("give up a hold", {"decisions": {"run.q3": {"verdict": "Abandon"}}}),
    ("repeat an answer", {"decisions": {ANSWERED: {"verdict": "Happened", "result": {"a": {"b": 1}}}}}),
    ("take an answer away", {"decisions": {ANSWERED: None}}),
    ("take all answers away", {"decisions": None}),
]


@pytest.mark.parametrize(("sentence", "change"), GOOD_SPEC, ids=[good[0] for good in GOOD_SPEC])
def test_people_may_write_that(api: Api, sentence: str, change: Document) -> None:
    must(api.merge(seed(api, GROUP, "open"), {"spec": change}))


def test_an_old_answer_does_not_hinder_the_operator_when_its_question_is_gone(api: Api) -> None:
    path = seed(api, GROUP, "open")
    must(api.merge(path, {"spec": {"decisions": {"notify.q4": {"verdict": "DidNotHappen"}}}}))
    must(api.merge(f"{path}/status", {"status": {"questions": {"notify.q4": {"acceptsDidNotHappen": False}}}}))
    must(api.merge(f"{path}/status", {"status": {"questions": None, "version": 10}}))


NEEDS: list[tuple[str, Document]] = [
    ("Rerun", {}),
    ("Halt", {}),
    ("Probe", {"probe": {}}),
    ("ResendWithKey", {"idempotencyKeyTTLSeconds": 86400}),
]


def test_every_recovery_may_be_asked_for_every_action(api: Api) -> None:
    steps = [
        {"id": f"{action}-{recovery}".lower(), "action": action, "recovery": recovery, **needs}
        for action in ("Read", "Upsert", "Create", "Payment", "Delete")
        for recovery, needs in NEEDS
    ]
    plan = {"plan": {"steps": [*steps, {"id": "probed", "probe": {"giveUpAfterSeconds": 5}}, STEPS[0]]}}
    assert Write("", "", "nothing", plan, "").send(api, GROUP).accepted
