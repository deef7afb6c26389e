"""What is told to go and when, and what people and deadlines do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepfence.core.decide import WorkerPlan, decide
from stepfence.core.fencing import Release, release
from stepfence.core.lifecycle import finish, halt_run
from stepfence.core.model import Decision, Run
from stepfence.core.reports import complete, lose
from stepfence.core.summary import questions_of
from stepfence.core.words import Outcome, State, Verdict
from stepfence.core.world import PodFact, World
from stepfence.testing.builders import at, begun, body, new_run, report, seconds, step, with_decision
from tests.core.decide_states import (
    JOB_1,
    JOB_2,
    LIVE,
    TERMINATED,
    doubtful,
    held,
    in_flight,
    job,
    pod,
    question,
    started,
    worker,
    world,
)

# --- R14, silence, and pods with nothing to do ---


def test_r14_the_pod_of_a_step_past_its_deadline_plus_margin_is_deleted_and_its_step_is_in_doubt() -> None:
    decided = decide(in_flight(), LIVE, at(73))
    assert decided.run.ledger["pay"].state is State.UNKNOWN
    assert [gone.reason for gone in decided.delete_pods] == ["StepOverdue"]
    later = decide(decided.run, world(job(), pod(terminal=True, deletion_at=seconds(80), exit_code=137)), at(81))
    assert worker(later) == (1, "StepOverdue", 1)


@pytest.mark.parametrize("now", [3, 72.9], ids=["at its start", "within the margin"])
def test_r14_leaves_a_step_alone(now: float) -> None:
    decided = decide(in_flight(), LIVE, at(now))
    assert decided.delete_pods == ()
    assert decided.run.ledger["pay"].state is State.IN_FLIGHT


def test_a_silent_holder_is_shown_then_deleted() -> None:
    run = held()
    assert decide(run, LIVE, at(61)).run.worker_problem is None
    shown = decide(run, LIVE, at(62))
    assert shown.run.worker_problem is not None
    assert shown.run.worker_problem[0] == "Unresponsive"
    assert shown.delete_pods == ()
    assert [gone.reason for gone in decide(run, LIVE, at(362)).delete_pods] == ["Unresponsive"]


def test_a_renewed_lease_takes_the_complaint_back() -> None:
    complained = decide(held(), LIVE, at(62)).run
    assert decide(complained, replace(LIVE, lease_renewed_at=seconds(61)), at(63)).run.worker_problem is None


def test_a_holder_is_not_deleted_for_silence_while_its_call_may_last() -> None:
    assert decide(in_flight(step(timeout=3600)), LIVE, at(1000)).delete_pods == ()


@pytest.mark.parametrize(
    ("run", "known", "now", "reasons"),
    [
        (held(), LIVE, 9, []),
        (replace(held(), spec=replace(held().spec, suspend=True)), LIVE, 9, ["NothingToDo"]),
        (replace(in_flight(), spec=replace(in_flight().spec, suspend=True)), LIVE, 9, ["NothingToDo"]),
        (replace(held(), spec=replace(held().spec, cancel=True)), LIVE, 9, ["NothingToDo"]),
        (replace(in_flight(), spec=replace(in_flight().spec, cancel=True)), LIVE, 9, []),
        (finish(held(), None, at(8)), LIVE, 9, []),
        (finish(held(), None, at(8)), LIVE, 68, ["NothingToDo"]),
        (halt_run(held(), "Ask", "", at(8)), LIVE, 9, []),
        (halt_run(held(), "Ask", "", at(8)), LIVE, 68, ["NothingToDo"]),
        (halt_run(started(), "Ask", "", at(8)), LIVE, 9, ["NothingToDo"]),
        (release(held(), Release.DRAINED, at(8)), LIVE, 9, []),
        (replace(held(), spec=replace(held().spec, suspend=True)), world(job(), pod(deletion_at=seconds(80))), 9, []),
    ],
    ids=[
        "a working one stays",
        "suspended: at once, gracefully",
        "suspended with a step in flight: at once too, its drain settles it",
        "cancelled with nothing in flight: at once",
        "cancelled with a step in flight: not before it settled",
        "finished: not at once, its logs are kept",
        "finished and still there a minute later",
        "a question is open: not at once",
        "a question is open and it is still there a minute later",
        "a question is open and it has not claimed yet: at once",
        "released: not at once",
        "never twice",
    ],
)
def test_a_pod_is_told_to_go(run: Run, known: World, now: float, reasons: list[str]) -> None:
    assert [gone.reason for gone in decide(run, known, at(now)).delete_pods] == reasons


def test_a_question_does_not_cut_off_a_sibling_that_is_still_in_flight() -> None:
    run, _ = begun(in_flight(step(), step("long", timeout=600)), 4, "long")
    run, _ = lose(run, report(run), "Timeout", "", at(5))
    assert question(run) in {asked.key for asked in questions_of(run, at(200))}
    assert decide(run, replace(LIVE, lease_renewed_at=seconds(199)), at(200)).delete_pods == ()


def test_a_job_without_a_pod_is_deleted_when_the_run_is_suspended_and_the_next_number_is_used_after() -> None:
    run = started()
    suspended = replace(run, spec=replace(run.spec, suspend=True))
    decided = decide(suspended, world(job()), at(9))
    assert [gone.uid for gone in decided.delete_jobs] == ["job-1"]
    ended = decide(decided.run, world(job(gone=True)), at(10))
    assert worker(ended) == (1, "Deleted", 0)
    assert decide(replace(ended.run, spec=run.spec), world(), at(11)).create == WorkerPlan(2, JOB_2)


def test_the_job_of_a_lost_worker_is_deleted() -> None:
    lost = world(job(), pod(deletion_at=seconds(20)))
    decided = decide(held(), lost, at(63))
    assert [gone.name for gone in decided.delete_jobs] == [JOB_1]
    assert decided.create == WorkerPlan(2, JOB_2)


@pytest.mark.parametrize("known", [pod(terminal=True, exit_code=1), pod(gone=True)], ids=["ended", "deleted"])
def test_the_job_of_a_worker_whose_pod_is_left_for_its_logs(known: PodFact) -> None:
    assert decide(held(), world(job(), known), at(63)).delete_jobs == ()


@pytest.mark.parametrize(("limit", "deleted"), [(None, [2, 1]), (1, [4, 3, 2, 1]), (0, [5, 4, 3, 2, 1])])
def test_finished_jobs_beyond_the_history_limit_are_deleted_oldest_last(limit: int | None, deleted: list[int]) -> None:
    run = finish(held(history=limit), None, at(8))
    run = replace(run, worker=replace(run.worker, number=5, ended_at=seconds(9)), holder=None)  # type: ignore[type-var]
    known = world(*(job(number, done=True) for number in range(1, 6)))
    assert [gone.uid for gone in decide(run, known, at(10)).delete_jobs] == [f"job-{number}" for number in deleted]


# --- people, deadlines ---


def test_nothing_starts_while_a_question_is_open() -> None:
    decided = decide(doubtful(), world(job(done=True), TERMINATED), at(600))
    assert decided.create is None
    assert decided.run.holder is None


@pytest.mark.parametrize(
    ("verdict", "state", "starts"),
    [(Verdict.HAPPENED, State.DONE, True), (Verdict.DID_NOT_HAPPEN, State.FAILED, True), (Verdict.ABANDON, State.UNKNOWN, False)],
)
def test_an_answer_takes_effect_and_the_next_worker_starts_in_the_same_write(verdict: Verdict, state: State, starts: bool) -> None:
    run = doubtful()
    decided = decide(with_decision(run, question(run), Decision(verdict)), world(job(done=True), TERMINATED), at(20))
    assert decided.run.ledger["pay"].state is state
    assert (decided.create is not None) is starts
    assert (decided.run.outcome is Outcome.FAILED) is not starts


def test_an_answer_with_a_result_waits_until_the_result_is_stored() -> None:
    run = doubtful()
    answered = with_decision(run, question(run), Decision(Verdict.HAPPENED, result='{"id":1}'))
    assert decide(answered, world(job(done=True), TERMINATED), at(20)).run.ledger["pay"].state is State.UNKNOWN
    stored = body({"id": 1})
    decided = decide(answered, world(job(done=True), TERMINATED, bodies={question(run): stored}), at(20))
    assert decided.run.ledger["pay"].result == stored
    assert decided.run.spec.decisions == answered.spec.decisions


def test_r12_a_deadline_settles_first() -> None:
    late = decide(in_flight(active_deadline=10), LIVE, at(11))
    assert late.run.outcome is None
    assert late.run.ending is not None
    assert late.run.ending.reason == "DeadlineExceeded"
    done = complete(late.run, report(late.run), body("x"), at(12))[0]
    assert done.outcome is Outcome.FAILED


def test_the_deadline_does_not_count_the_time_that_people_take() -> None:
    run = doubtful(active_deadline=30)
    run = decide(run, world(job(done=True), TERMINATED), at(4000)).run
    assert run.outcome is None
    answered = with_decision(run, question(run), Decision(Verdict.HAPPENED))
    assert decide(answered, world(job(done=True), TERMINATED), at(5000)).run.outcome is None


def test_a_terminal_run_starts_nothing_when_its_job_and_pod_are_gone() -> None:
    run = finish(held(), None, at(8))
    decided = decide(run, world(job(gone=True), pod(gone=True)), at(9))
    assert decided.create is None
    assert (decided.run.outcome, decided.run.token, decided.run.holder) == (Outcome.SUCCEEDED, run.token, None)


def test_a_pod_that_exits_0_without_finish_has_not_succeeded() -> None:
    decided = decide(held(), world(job(done=True), pod(terminal=True, exit_code=0)), at(8))
    assert decided.run.outcome is None
    assert worker(decided) == (1, "Crashed", 1)


def test_a_run_that_is_being_deleted_starts_nothing() -> None:
    assert decide(replace(new_run(step()), deleting=True), world(), at()).create is None
