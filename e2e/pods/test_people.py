"""What people do to a run by patch: approve, deny, suspend, resume, cancel, answer a hold; and the deadline that nobody sets twice."""

import json
from datetime import datetime

from e2e.pods.outside import HANG
from e2e.pods.runs import delete, notify, read, refund
from e2e.pods.world import Space
from e2e.provider.wire import Happening, Route


def test_a_deletion_waits_for_its_approval_without_a_pod_and_does_what_the_person_saw(space: Space) -> None:
    space.start(space.spec("cleanup", delete(), notify()))
    key, question = space.until_question("cleanup", "Approve")
    space.until_phase("cleanup", "AwaitingApproval")
    space.until("end of every worker", lambda: not space.living_pods("cleanup"))
    assert space.provider.entries(Happening.REQUEST, run=space.id_of("cleanup")) == []
    pasted = space.paste(question["patch"])
    assert pasted.returncode == 0, pasted.stderr
    assert key in question["patch"]
    space.until_phase("cleanup", "Succeeded")
    (done,) = space.provider.effects(run=space.id_of("cleanup"), step="drop")
    seen = json.loads(question["payload"])
    assert (seen["method"], seen["path"]) == ("DELETE", f"/records/{done.target}")


def test_a_denied_step_is_never_begun_and_the_program_hears_of_it(space: Space) -> None:
    space.start(space.spec("cleanup", delete(), notify()))
    key, _ = space.until_question("cleanup", "Approve")
    assert space.answer("cleanup", key, "Deny", reason="keep it").is_success
    space.until_run("cleanup", "denial", lambda run: run.state("drop") == "Denied")
    # This agent does not handle StepDenied, so that its workers fail: what counts is that nothing was deleted.
    space.until_run("cleanup", "next worker", lambda run: run.worker["number"] >= 2)
    assert space.provider.entries(Happening.REQUEST, run=space.id_of("cleanup"), step="drop") == []
    assert space.patch("cleanup", {"cancel": True}).is_success
    run = space.until_phase("cleanup", "Cancelled")
    assert run.entry("drop")["answers"][0]["reason"] == "keep it"


def test_an_approval_that_has_expired_is_asked_for_again_under_another_question(space: Space) -> None:
    soon = {"approval": {"expiresAfterSeconds": 3}}
    space.start(space.spec("pay", refund(), planned={"pay": soon}))
    first, _ = space.until_question("pay", "Approve")
    # No worker may take the approval up while the run is suspended, so that it runs out.
    assert space.patch("pay", {"suspend": True}).is_success
    space.until_phase("pay", "Held", "AwaitingApproval")
    assert space.answer("pay", first, "Approve").is_success
    space.until_run("pay", "expiry", lambda run: run.state("pay") == "Planned")
    assert space.patch("pay", {"suspend": False}).is_success
    second, _ = space.until_question("pay", "Approve")
    assert second != first
    assert space.answer("pay", second, "Approve").is_success
    space.until_phase("pay", "Succeeded")


def test_a_suspended_run_begins_nothing_and_goes_on_when_it_is_resumed(space: Space) -> None:
    rule = space.provider.tell(Route.READ_ORDER, run=space.id_of("refund"), before=HANG)
    space.start(space.spec("refund", read(), refund()))
    space.until_hanging(rule)
    assert space.patch("refund", {"suspend": True}).is_success
    space.until_phase("refund", "Held")
    space.provider.release(rule)
    space.until("end of every worker", lambda: not space.living_pods("refund"))
    assert space.run("refund").state("look") == "Done"
    assert space.provider.entries(Happening.REQUEST, run=space.id_of("refund"), step="pay") == []
    assert space.patch("refund", {"suspend": False}).is_success
    space.until_phase("refund", "Succeeded")
    assert len(space.provider.entries(Happening.REQUEST, run=space.id_of("refund"), step="look")) == 1


def test_a_run_that_is_suspended_before_it_starts_starts_no_pod(space: Space) -> None:
    space.start(space.spec("refund", refund(), spec={"suspend": True}))
    space.until_phase("refund", "Held")
    assert space.pods("refund") == []
    assert space.patch("refund", {"suspend": False}).is_success
    space.until_phase("refund", "Succeeded")


def test_cancel_settles_the_payment_in_flight_first_and_then_ends_the_run(space: Space) -> None:
    rule = space.provider.tell(Route.CREATE_REFUND, run=space.id_of("refund"), after=HANG)
    space.start(space.spec("refund", refund(), notify(), grace=60))
    space.until_hanging(rule)
    assert space.patch("refund", {"cancel": True}).is_success
    space.until_phase("refund", "Cancelling")
    space.provider.release(rule)
    run = space.until_phase("refund", "Cancelled")
    assert (run.state("pay"), run.state("tell")) == ("Done", "Planned")
    assert space.patch("refund", {"cancel": False}).is_success
    assert space.provider.entries(Happening.REQUEST, run=space.id_of("refund"), step="tell") == []


def test_cancel_while_a_payment_is_in_doubt_asks_first(space: Space) -> None:
    rule = space.provider.tell(Route.CREATE_REFUND, run=space.id_of("refund"), after=HANG)
    space.start(space.spec("refund", refund(), notify()))
    space.until_hanging(rule)
    assert space.patch("refund", {"cancel": True}).is_success
    space.sigkill(space.run("refund").holder["pod"])
    key, _ = space.until_question("refund", "Reconcile")
    assert not space.run("refund").terminal
    assert space.answer("refund", key, "Happened").is_success
    run = space.until_phase("refund", "Cancelled")
    assert run.state("pay") == "Done"


def test_the_active_deadline_fails_the_run_but_does_not_count_the_time_that_people_take(space: Space) -> None:
    rule = space.provider.tell(Route.READ_ORDER, run=space.id_of("late"), before=HANG)
    space.start(space.spec("late", read(), refund(), spec={"activeDeadlineSeconds": 8}, planned={"look": {"timeoutSeconds": 10}}))
    space.start(space.spec("asked", delete(), spec={"activeDeadlineSeconds": 20}))
    space.until_hanging(rule)
    key, question = space.until_question("asked", "Approve")
    run = space.until_phase("late", "Failed")
    assert run.status["reason"] == "DeadlineExceeded"
    assert run.state("pay") == "Planned"
    asked = space.run("asked")
    waited = datetime.fromisoformat(run.status["finishedAt"]) - datetime.fromisoformat(question["since"])
    assert waited.total_seconds() > 1, "a person took a while"
    assert "activeSince" not in asked.status, "the clock stands"
    assert space.answer("asked", key, "Approve").is_success
    space.until_phase("asked", "Succeeded")


def test_a_run_that_its_program_halts_waits_for_a_person_and_goes_on_after_resume(space: Space) -> None:
    halting = {"halt": ["LooksOdd", "the amount is unusual"]}
    space.start(space.spec("odd", read(), halting))
    key, question = space.until_question("odd", "Hold")
    space.until_phase("odd", "Held")
    assert (question["reason"], question["message"]) == ("LooksOdd", "the amount is unusual")
    space.until("end of every worker", lambda: not space.living_pods("odd"))
    assert space.answer("odd", key, "Resume").is_success
    again, _ = space.until_run("odd", "second hold", lambda run: found if (found := run.question("Hold")) and found[0] != key else None)
    assert space.answer("odd", again, "Abandon").is_success
    run = space.until_phase("odd", "Failed")
    assert [each["verdict"] for each in run.status["holdAnswers"]] == ["Resume", "Abandon"]


def test_a_run_that_its_program_fails_is_failed_with_the_reason(space: Space) -> None:
    space.start(space.spec("bad", refund(), {"fail": ["NoSuchOrder", "order 4711 is not there"]}, notify()))
    run = space.until_phase("bad", "Failed")
    assert (run.status["reason"], run.status["message"]) == ("NoSuchOrder", "order 4711 is not there")
    assert run.state("tell") == "Planned"
