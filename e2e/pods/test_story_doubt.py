"""Story 4: killed between the provider's answer and the `Done` record, the run stops and a person decides."""

import json
from datetime import UTC, datetime

import pytest

from e2e.pods.api import Object
from e2e.pods.outside import HANG
from e2e.pods.runs import notify, refund
from e2e.pods.world import Space
from e2e.provider.wire import Happening, Route


def halt_after_effect(space: Space, **planned: object) -> tuple[str, Object]:
    """A run whose refund was made while its worker died before it could record that. Returns the open question."""
    rule = space.provider.tell(Route.CREATE_REFUND, run=space.id_of("refund"), after=HANG)
    return _halt(space, rule, planned)


def halt_before_effect(space: Space, **planned: object) -> tuple[str, Object]:
    """A run whose refund never happened, as its worker died before the provider acted; the request is never let through."""
    rule = space.provider.tell(Route.CREATE_REFUND, run=space.id_of("refund"), before=HANG)
    return _halt(space, rule, planned)


def _halt(space: Space, rule: object, planned: dict[str, object]) -> tuple[str, Object]:
    space.start(space.spec("refund", refund(), notify(), planned={"pay": planned}))
    space.until_hanging(rule)
    space.sigkill(space.holder_pod("refund"))
    space.until_phase("refund", "NeedsReconciliation")
    return space.until_question("refund", "Reconcile")


def test_the_doubt_is_told_with_step_reason_time_and_the_exact_command_and_no_pod_waits(space: Space) -> None:
    before = datetime.now(UTC)
    key, question = halt_after_effect(space)
    assert question["step"] == "pay"
    assert question["reason"]
    assert before < datetime.fromisoformat(question["since"]) < datetime.now(UTC)
    assert question["patch"].startswith(f"kubectl -n {space.namespace} patch agentruns.stepfence.dev refund --field-manager=stepfence ")
    assert json.loads(question["payload"])["body"] == {"order": "4711", "amount": 4200}
    condition = space.run("refund").condition("DecisionNeeded")
    assert condition["status"] == "True"
    assert question["patch"] in condition["message"]
    told = space.until(
        "Event with the command", lambda: [each for each in space.events("refund") if question["patch"] in each.get("note", "")]
    )
    assert told[0]["type"] == "Warning"
    assert key in question["patch"]
    space.until("end of every worker", lambda: not space.living_pods("refund"))
    assert space.run("refund").worker["number"] == 1
    columns = space.kubectl("get", "agentruns", "refund", "--no-headers").split()
    assert columns[1:5] == ["NeedsReconciliation", "0/2", columns[3], "pay"]


def test_the_printed_command_pasted_as_it_is_makes_the_run_go_on(space: Space) -> None:
    _, question = halt_after_effect(space)
    pasted = space.paste(question["patch"])
    assert pasted.returncode == 0, pasted.stderr
    run = space.until_phase("refund", "Succeeded")
    (answer,) = run.entry("pay")["answers"]
    assert (answer["verdict"], answer.get("verified", False)) == ("Happened", False)
    assert len(space.provider.effects(run=space.id_of("refund"), step="pay")) == 1


def test_happened_with_a_result_goes_on_with_that_result(space: Space) -> None:
    key, _ = halt_after_effect(space)
    answer = space.answer("refund", key, "Happened", result={"id": "re_seen"}, reason="seen in the dashboard", by="kim")
    assert answer.is_success, answer.text
    run = space.until_phase("refund", "Succeeded")
    assert json.loads(run.status["result"])["pay"] == "re_seen"
    (recorded,) = run.entry("pay")["answers"]
    assert (recorded["by"], recorded["reason"]) == ("kim", "seen in the dashboard")
    asked = space.provider.entries(Happening.REQUEST, run=space.id_of("refund"), step="pay")
    assert len(asked) == 1, "an action that happened is not sent again"


def test_did_not_happen_is_refused_while_the_request_may_still_land_and_then_runs_once_more_with_the_same_key(space: Space) -> None:
    key, question = halt_before_effect(space, settleSeconds=8)
    assert not question.get("acceptsDidNotHappen", False)
    early = space.answer("refund", key, "DidNotHappen")
    assert early.status_code == 422, early.text
    assert "does not count yet" in early.text
    assert not space.run("refund").raw["spec"].get("decisions"), "nothing is kept for later"
    space.until_run(
        "refund", "question that accepts DidNotHappen", lambda run: run.questions.get(key, {}).get("acceptsDidNotHappen"), seconds=20
    )
    late = space.answer("refund", key, "DidNotHappen")
    assert late.is_success, late.text
    run = space.until_phase("refund", "Succeeded")
    assert run.entry("pay")["attempt"] == 2
    sent = space.provider.entries(Happening.REQUEST, run=space.id_of("refund"), step="pay")
    assert [entry.key for entry in sent] == [run.entry("pay")["key"]] * 2
    assert len(space.provider.effects(run=space.id_of("refund"), step="pay")) == 1


def test_did_not_happen_by_force_is_accepted_at_once(space: Space) -> None:
    key, _ = halt_before_effect(space, settleSeconds=600)
    forced = space.answer("refund", key, "DidNotHappen", force=True)
    assert forced.is_success, forced.text
    run = space.until_phase("refund", "Succeeded")
    assert run.entry("pay")["answers"][0]["force"] is True


def test_abandon_fails_the_run_and_nothing_more_is_done(space: Space) -> None:
    key, _ = halt_after_effect(space)
    assert space.answer("refund", key, "Abandon", reason="the customer was paid by hand").is_success
    run = space.until_phase("refund", "Failed")
    assert run.status["reason"] == "Abandoned"
    assert (run.state("pay"), run.entry("pay")["abandoned"]) == ("Unknown", True)
    assert run.state("tell") == "Planned"


@pytest.mark.parametrize(
    ("answer", "because"),
    [
        pytest.param({"pay.nobodyasked": {"verdict": "Happened"}}, "must answer an open question", id="a question that is not open"),
        pytest.param({"run.nobodyasked": {"verdict": "Resume"}}, "must answer an open question", id="a hold that is not there"),
    ],
)
def test_an_answer_to_nothing_is_refused_at_once(space: Space, answer: Object, because: str) -> None:
    halt_after_effect(space)
    refused = space.patch("refund", {"decisions": answer})
    assert refused.status_code == 422
    assert because in refused.text


def test_an_answer_that_does_not_fit_its_question_is_refused_at_once(space: Space) -> None:
    key, _ = halt_after_effect(space)
    refused = space.answer("refund", key, "Approve")
    assert refused.status_code == 422
    assert "does not fit" in refused.text
