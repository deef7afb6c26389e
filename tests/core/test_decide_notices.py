"""The story of a run, as `kubectl describe` tells it."""

from __future__ import annotations

from dataclasses import replace

from stepfence.core.decide import decide
from stepfence.core.fencing import drain, settle
from stepfence.core.lifecycle import finish, halt_run
from stepfence.core.model import Decision, Run
from stepfence.core.notices import Notice, notices
from stepfence.core.plan import submit
from stepfence.core.reports import complete, fail
from stepfence.core.words import Action, Outcome, Verdict
from stepfence.core.world import JobFact, PodFact, PodProblem, World, job_name
from stepfence.testing.builders import at, begun, body, claimed, new_run, report, step, with_decision

MARKED = World(mark="uid-1")
JOB = job_name("refund", "uid-1", 1)


def told(before: Run, after: Run, then: float = 0, now: float = 100) -> list[tuple[str, str]]:
    return [(notice.type, notice.reason) for notice in notices(before, at(then), after, at(now))]


def first(before: Run, after: Run, then: float = 0, now: float = 100) -> Notice:
    return notices(before, at(then), after, at(now))[0]


def started(**spec: bool) -> Run:
    return decide(new_run(step("look", Action.READ), step(), **spec), MARKED, at()).run


def test_nothing_new_tells_nothing() -> None:
    run = claimed(started(), 1)
    assert told(run, run, 1, 1) == []


def test_a_new_run_is_accepted_and_its_worker_started() -> None:
    new = new_run(step(), accepted=False)
    assert told(new, decide(new, MARKED, at()).run) == [("Normal", "Accepted"), ("Normal", "WorkerStarted")]


def test_a_claim_names_pod_and_token() -> None:
    run = started()
    assert first(run, claimed(run, 1)) == Notice("Normal", "Claimed", "pod pod-1 claimed the run under token 1")


def test_a_plan_that_a_worker_brought_is_told() -> None:
    run = claimed(decide(new_run(), MARKED, at()).run, 1)
    for steps, words in (([step()], "1 step"), ([step(), step("look", Action.READ)], "2 steps")):
        planned, _ = submit(run, steps, at(2))
        assert notices(run, at(), planned, at(2)) == [Notice("Normal", "PlanAccepted", f"the worker's plan of {words} is recorded")]


def test_steps_tell_their_ends_and_not_their_beginnings() -> None:
    run = claimed(started(), 1)
    going, _ = begun(run, 2, "look")
    assert told(run, going) == []
    done, _ = complete(going, report(going, name="look"), body("x"), at(3))
    assert told(going, done) == [("Normal", "StepDone")]
    assert told(run, done) == [("Normal", "StepDone")]
    failed, _ = fail(going, report(going, name="look"), "Refused", "no", final=False, retry_after=None, at=at(3))
    assert first(going, failed).message == "step look did not happen (attempt 1): Refused (no)"


def test_a_doubt_that_a_person_must_clear_comes_with_the_command() -> None:
    run, _ = begun(claimed(started(), 1), 2)
    lost = settle(run, "WorkerLost", at(3))
    story = notices(run, at(2), lost, at(3))
    assert [notice.reason for notice in story] == ["WorkerLost", "StepInDoubt", "NeedsReconciliation"]
    assert "kubectl -n support patch agentruns.stepfence.dev refund" in story[-1].message


def test_a_question_that_opens_by_time_alone_is_told() -> None:
    run, _ = begun(claimed(decide(new_run(step(probe_give_up=30)), MARKED, at()).run, 1), 2)
    lost = settle(run, "WorkerLost", at(3))
    assert told(lost, lost, 3, 50) == []
    assert told(lost, lost, 50, 150) == [("Warning", "NeedsReconciliation")]


def test_an_answer_tells_who_and_why() -> None:
    run, _ = begun(claimed(started(), 1), 2)
    run = settle(run, "WorkerLost", at(3))
    key = f"pay.{run.ledger['pay'].question}"
    answered = with_decision(run, key, Decision(Verdict.HAPPENED, reason="seen", by="ann"))
    after = decide(answered, MARKED, at(4)).run
    assert [n.message for n in notices(answered, at(3), after, at(4)) if n.reason == "Answered"] == [f"{key}: Happened by ann (seen)"]
    early = with_decision(run, key, Decision(Verdict.DID_NOT_HAPPEN))
    refused = decide(early, MARKED, at(4)).run
    assert ("Warning", "AnswerRefused") in told(early, refused, 3, 4)
    assert ("Warning", "NeedsReconciliation") in told(early, refused, 3, 4)


def test_the_end_of_a_worker_tells_why_and_when_the_next_starts() -> None:
    run = claimed(started(), 1)
    crashed = World(mark="uid-1", jobs=(JobFact(JOB, 1),), pods=(PodFact("pod-1", "pod-1-uid", JOB, terminal=True, exit_code=1),))
    after = decide(run, crashed, at(8)).run
    ended = next(notice for notice in notices(run, at(1), after, at(8)) if notice.reason == "WorkerEnded")
    assert ended.type == "Warning"
    assert ended.message == "worker 1 ended: Crashed (exit code 1); 1 so far brought nothing forward, the next starts 5 s later"


def test_the_end_of_a_worker_promises_no_other_one_while_a_person_is_asked_or_the_run_ends() -> None:
    run, _ = begun(claimed(started(), 1), 2)
    crashed = World(mark="uid-1", jobs=(JobFact(JOB, 1),), pods=(PodFact("pod-1", "pod-1-uid", JOB, terminal=True, exit_code=1),))
    for before in (run, replace(run, spec=replace(run.spec, cancel=True)), replace(run, spec=replace(run.spec, suspend=True))):
        after = decide(before, crashed, at(8)).run
        ended = next(notice for notice in notices(before, at(2), after, at(8)) if notice.reason == "WorkerEnded")
        assert ended.message.startswith("worker 1 ended: Crashed (exit code 1)")
        assert "the next starts" not in ended.message


def test_draining_suspension_trouble_and_the_end() -> None:
    run = claimed(started(), 1)
    assert told(run, drain(run)) == [("Normal", "Draining")]
    suspended = replace(run, spec=replace(run.spec, suspend=True))
    assert told(run, suspended) == [("Normal", "Suspended")]
    assert told(suspended, run) == [("Normal", "Resumed")]
    problem = PodProblem("ErrImagePull", "no such image", fatal=True)
    waiting = decide(started(), World(mark="uid-1", pods=(PodFact("p", "u", JOB, problem=problem),)), at(1)).run
    assert told(started(), waiting) == [("Warning", "ErrImagePull")]
    assert told(run, finish(run, None, at(9))) == [("Normal", "Succeeded")]
    failed = decide(new_run(step(), accepted=False, problems=("spec.input: too large",)), MARKED, at()).run
    assert ("Warning", "Failed") in told(new_run(step(), accepted=False), failed)


def test_a_run_that_is_made_suspended_says_why_nothing_happens() -> None:
    new = new_run(step(), accepted=False, suspend=True)
    accepted = decide(new, MARKED, at()).run
    assert told(new, accepted) == [("Normal", "Accepted"), ("Normal", "Suspended")]
    assert told(accepted, decide(accepted, MARKED, at(1)).run) == []


def test_a_hold_names_its_reason_beside_the_message() -> None:
    run = claimed(started(), 1)
    held = halt_run(run, "PriceChanged", "12 % more", at(2))
    (notice,) = notices(run, at(1), held, at(2))
    assert (notice.reason, notice.message.partition(". Answer with: ")[0]) == ("Held", "PriceChanged: 12 % more")


def test_an_end_says_its_reason_once() -> None:
    run = started()
    (notice,) = notices(run, at(), replace(run, outcome=Outcome.CANCELLED, reason="Cancelled", message="by spec.cancel"), at())
    assert (notice.reason, notice.message) == ("Cancelled", "by spec.cancel")
    (notice,) = notices(run, at(), replace(run, outcome=Outcome.FAILED, reason="StepFailed", message="step pay"), at())
    assert (notice.reason, notice.message) == ("Failed", "StepFailed: step pay")


def test_an_end_that_waits_for_an_open_step_is_told() -> None:
    run, _ = begun(claimed(started(), 1), 2)
    cancelled = replace(run, spec=replace(run.spec, cancel=True))
    assert told(cancelled, decide(cancelled, MARKED, at(3)).run, 2, 3) == [("Normal", "Ending")]
