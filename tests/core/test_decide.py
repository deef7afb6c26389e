"""What the controller decides, one sentence a case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stepfence.core.decide import Decided, WorkerPlan, decide
from stepfence.core.fencing import HolderFact, Release, drain, release
from stepfence.core.lifecycle import finish, halt_run
from stepfence.core.model import Decision, Run
from stepfence.core.reports import complete, lose
from stepfence.core.words import Action, Outcome, State, Verdict
from stepfence.core.world import JobFact, PodFact, PodProblem, World, job_name
from stepfence.testing.builders import POD, at, begun, body, claimed, new_run, report, seconds, step, with_decision

JOB_1, JOB_2 = (job_name("refund", "uid-1", number) for number in (1, 2))


def job(number: int = 1, **facts: object) -> JobFact:
    return JobFact(name=job_name("refund", "uid-1", number), number=number, uid=f"job-{number}", started_at=seconds(1), **facts)  # type: ignore[arg-type]


def pod(number: int = 1, name: str = POD, **facts: object) -> PodFact:
    facts.setdefault("created_at", seconds(1))
    return PodFact(name=name, uid=f"{name}-uid", job=job_name("refund", "uid-1", number), **facts)  # type: ignore[arg-type]


def world(*facts: JobFact | PodFact, **rest: object) -> World:
    jobs = tuple(fact for fact in facts if isinstance(fact, JobFact))
    pods = tuple(fact for fact in facts if isinstance(fact, PodFact))
    rest.setdefault("mark", "uid-1")
    return World(jobs=jobs, pods=pods, **rest)  # type: ignore[arg-type]


LIVE = world(job(), pod())
NO_JOB = world(JobFact(name=JOB_1, number=1, gone=True, seen=False))


def started(*steps: object, **spec: object) -> Run:
    """A run whose worker 1 is recorded at second 0."""
    return decide(new_run(*(steps or (step(),)), **spec), world(), at()).run  # type: ignore[arg-type]


def held(*steps: object, **spec: object) -> Run:
    """The same, claimed by its pod at second 2."""
    return claimed(started(*steps, **spec), 2)


def in_flight(*steps: object, **spec: object) -> Run:
    """The same, with step `pay` begun at second 3."""
    return begun(held(*steps, **spec), 3)[0]


def doubtful(**spec: object) -> Run:
    """The same, its pod killed and the run settled at second 5."""
    return decide(in_flight(**spec), world(job(), pod(terminal=True, confirmed=True, exit_code=137)), at(5)).run


def worker(decided: Decided) -> tuple[int, str, int]:
    found = decided.run.worker
    assert found is not None
    return found.number, found.exit_reason if found.ended_at else "", found.failures


# --- accepting a run ------------------------------------------------------------------------------------------------------------


def test_a_new_run_is_accepted_and_its_first_worker_is_numbered_in_one_write() -> None:
    decided = decide(new_run(step(), accepted=False), world(), at())
    assert decided.run.started_at == seconds(0)
    assert decided.run.plan is not None
    assert decided.create == WorkerPlan(1, JOB_1)
    assert worker(decided) == (1, "", 0)


def test_a_spec_that_no_schema_can_check_fails_before_any_worker() -> None:
    run = new_run(step(), accepted=False, problems=("spec.input: 70000 bytes, at most 65536",))
    decided = decide(run, world(), at())
    assert (decided.run.outcome, decided.run.reason) == (Outcome.FAILED, "InvalidSpec")
    assert "70000" in decided.run.message
    assert decided.create is None
    assert decided.run.worker is None


@pytest.mark.parametrize("spec", [{"suspend": True}, {"cancel": True}], ids=["suspended", "cancelled"])
def test_no_worker_is_numbered_for_a_new_run_that_is(spec: dict[str, bool]) -> None:
    decided = decide(new_run(step(), accepted=False, **spec), world(), at())
    assert decided.create is None
    assert decided.run.worker is None


def test_cancel_of_a_run_without_a_worker_ends_it() -> None:
    decided = decide(new_run(step(), accepted=False, cancel=True), world(), at())
    assert decided.run.outcome is Outcome.CANCELLED
    assert decided.run.cancel_requested_at == seconds(0)


# --- identity -------------------------------------------------------------------------------------------------------------------


def test_a_run_id_is_spent_before_the_first_worker() -> None:
    decided = decide(new_run(step(), run_id="r"), world(), at())
    assert (decided.spend, decided.create, decided.run.worker) == (True, None, None)


def test_an_object_is_marked_with_its_uid_before_the_first_worker() -> None:
    decided = decide(new_run(step(), run_id="r"), world(identity="uid-1", mark=None), at())
    assert (decided.spend, decided.mark, decided.run.worker) == (False, True, None)


def test_a_run_with_a_spent_and_marked_identity_starts() -> None:
    assert decide(new_run(step(), run_id="r"), world(identity="uid-1"), at()).create == WorkerPlan(1, JOB_1)


def test_a_run_id_that_another_object_spent_fails_with_no_worker() -> None:
    decided = decide(new_run(step(), run_id="r"), world(identity="other"), at())
    assert (decided.run.outcome, decided.run.reason) == (Outcome.FAILED, "AlreadyRan")
    assert decided.run.worker is None


def test_an_object_with_anothers_mark_and_no_ledger_is_held_for_a_person() -> None:
    decided = decide(new_run(step(), accepted=False), world(mark="other"), at())
    assert decided.run.hold is not None
    assert decided.run.hold.reason == "LedgerMissing"
    assert decided.run.worker is None


@pytest.mark.parametrize(
    ("verdict", "outcome", "mark"), [(Verdict.RESUME, None, True), (Verdict.ABANDON, Outcome.FAILED, False)], ids=["resume", "abandon"]
)
def test_a_person_lets_a_run_without_ledger_go_on_or_gives_it_up(verdict: Verdict, outcome: Outcome | None, mark: bool) -> None:
    restored = decide(new_run(step(), accepted=False, run_id="r"), world(mark="other", identity="other"), at()).run
    assert restored.hold is not None
    answered = with_decision(restored, f"run.{restored.hold.question}", Decision(verdict))
    decided = decide(answered, world(mark="other", identity="other"), at(9))
    assert (decided.run.outcome, decided.mark) == (outcome, mark)
    if outcome is None:
        assert decide(decided.run, world(identity="other"), at(10)).create == WorkerPlan(1, JOB_1)


# --- the Job of the recorded number ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "create"),
    [
        (world(), None),
        (NO_JOB, WorkerPlan(1, JOB_1)),
        (world(job()), None),
        (LIVE, None),
    ],
    ids=["nothing is known of it: wait", "it was never made: make it", "it is there", "its pod is there"],
)
def test_the_recorded_worker_keeps_its_number_when(known: World, create: WorkerPlan | None) -> None:
    decided = decide(started(), known, at(2))
    assert decided.create == create
    assert worker(decided) == (1, "", 0)


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (world(job(gone=True)), "Deleted"),
        (world(replace(job(), foreign=True)), "NameTaken"),
    ],
    ids=["it was made and is gone", "its name is taken by another object"],
)
def test_the_next_number_is_taken_when(known: World, reason: str) -> None:
    ended = decide(started(), known, at(7))
    assert (ended.run.worker and ended.run.worker.number, ended.create) == (2, WorkerPlan(2, JOB_2))
    early = decide(started(), known, at(2))
    assert worker(early) == (1, reason, 0)
    assert early.wake_at is not None


def test_no_job_is_made_for_the_recorded_number_while_the_run_is_suspended() -> None:
    run = started()
    assert decide(replace(run, spec=replace(run.spec, suspend=True)), NO_JOB, at(2)).create is None


# --- a holder that is over ------------------------------------------------------------------------------------------------------

TERMINATED = pod(terminal=True, confirmed=True, exit_code=137)


@pytest.mark.parametrize(
    ("known", "now", "over"),
    [
        (world(), 5, False),
        (LIVE, 5, False),
        (LIVE, 3000, False),
        (world(job(), TERMINATED), 5, True),
        (world(job(), pod(terminal=True)), 5, True),
        (world(job(), pod(gone=True)), 5, True),
        (world(job(), pod(deletion_at=seconds(20))), 10, False),
        (world(job(), pod(deletion_at=seconds(20))), 21, False),
        (world(job(), pod(deletion_at=seconds(20))), 62, True),
        (world(job(), pod(deletion_at=seconds(20)), lease_renewed_at=seconds(50)), 62, False),
        (world(job(), pod(deletion_at=seconds(20)), lease_renewed_at=seconds(50)), 110, True),
    ],
    ids=[
        "not when nothing is known of its pod",
        "not while its pod runs",
        "not because its lease ran out",
        "when the kubelet reported its containers terminated",
        "when its phase is terminal",
        "when its pod is gone",
        "not because its pod is marked for deletion",
        "not when its grace passed but its lease lives",
        "when grace and lease have both passed (a lost node)",
        "not while its own Lease is renewed",
        "when that too has run out",
    ],
)
def test_a_holder_is_fenced_out(known: World, now: float, over: bool) -> None:
    before = held(step(action=Action.READ))
    decided = decide(before, known, at(now))
    assert (decided.run.token > before.token) is over
    assert (decided.run.holder is None) is over


def test_settling_makes_the_open_step_unknown_without_starting_a_pod() -> None:
    decided = decide(in_flight(), world(job(), TERMINATED), at(5))
    entry = decided.run.ledger["pay"]
    assert (entry.state, entry.reason) == (State.UNKNOWN, "WorkerLost")
    assert entry.open[0].terminated_at == seconds(5)
    assert decided.create is None
    assert worker(decided) == (1, "Crashed", 1)


@pytest.mark.parametrize("known", [pod(terminal=True), pod(gone=True)], ids=["a phase set by garbage collection", "a vanished object"])
def test_no_end_is_confirmed_by(known: PodFact) -> None:
    entry = decide(in_flight(), world(job(), known), at(5)).run.ledger["pay"]
    assert entry.state is State.UNKNOWN
    assert entry.open[0].terminated_at is None


@pytest.mark.parametrize(
    ("asked", "next_worker"),
    [
        ({"action": Action.READ}, True),
        ({"action": Action.UPSERT}, True),
        ({"action": Action.PAYMENT, "probe_give_up": 300}, True),
        ({"action": Action.PAYMENT}, False),
        ({"action": Action.CREATE}, False),
    ],
    ids=["a Read is rerun", "an Upsert is rerun", "a step with a probe is probed", "a Payment waits", "a Create waits"],
)
def test_after_a_crash_in_the_middle_of_a_step(asked: dict[str, object], next_worker: bool) -> None:
    settled = decide(in_flight(step(**asked)), world(job(), TERMINATED), at(5)).run  # type: ignore[arg-type]
    decided = decide(settled, world(job(done=True), TERMINATED), at(60))
    assert (decided.create is not None) is next_worker


def test_a_pod_marked_for_deletion_that_holds_the_run_is_told_to_drain() -> None:
    decided = decide(held(), world(job(), pod(deletion_at=seconds(90))), at(5))
    assert decided.run.holder is not None
    assert decided.run.holder.draining


# --- how workers end, and what counts -------------------------------------------------------------------------------------------


def progressed(run: Run, now: float = 4) -> Run:
    run, _ = begun(run, now, "look")
    return complete(run, report(run, name="look"), body("x"), at(now))[0]


def released(reason: Release, now: float = 8) -> Run:
    return release(held(), reason, at(now))


LOOK_PAY = (step("look", Action.READ), step())


@pytest.mark.parametrize(
    ("before", "known", "now", "expected"),
    [
        (held(), world(job(), TERMINATED), 8, (1, "Crashed", 1)),
        (started(), world(job(done=True), pod(terminal=True, exit_code=1)), 8, (1, "Crashed", 1)),
        (progressed(held(*LOOK_PAY)), world(job(), TERMINATED), 8, (2, "", 0)),
        (released(Release.DRAINED), LIVE, 8, (2, "", 0)),
        (released(Release.DRAINED, 4), LIVE, 4, (1, "Drained", 0)),
        (released(Release.ERROR), LIVE, 8, (1, "Crashed", 1)),
        (held(), world(job(), pod(terminal=True, deletion_at=seconds(7), exit_code=143)), 8, (2, "", 0)),
        (held(), world(job(), pod(terminal=True, disrupted=True, exit_code=137)), 8, (2, "", 0)),
        (held(), world(job(), pod(gone=True)), 8, (1, "Lost", 1)),
        (drain(held()), world(job(), pod(gone=True)), 8, (2, "", 0)),
        (started(), world(job(done=True)), 8, (2, "", 0)),
        (started(), world(job(suspended=True), pod(terminal=True, exit_code=143)), 8, (1, "", 0)),
        (release(held(), Release.DRAINED, at(6)), world(job(suspended=True), pod()), 8, (1, "", 0)),
    ],
    ids=[
        "a crash counts, and the next one waits",
        "a crash before the claim counts",
        "a worker that brought a step to Done does not count, the next one starts at once",
        "a drained one does not count, the next one starts at once, its pod still ending",
        "but not two of them within one back-off",
        "an error that the worker announced counts",
        "a deleted pod does not count",
        "an evicted pod does not count",
        "a pod that vanished counts",
        "a pod that vanished while draining does not",
        "a Job that ended with no pod to be seen does not",
        "a Job that a queueing tool suspended has not ended",
        "nor has one whose pod drained because of that",
    ],
)
def test_worker_end(before: Run, known: World, now: float, expected: tuple[int, str, int]) -> None:
    assert worker(decide(before, known, at(now))) == expected


@pytest.mark.parametrize(("code", "text"), [(1, "exit code 1"), (0, "exit code 0 without finish"), (75, "exit code 75 (Drained, but")])
def test_the_exit_code_of_a_crash_is_kept_for_people(code: int, text: str) -> None:
    ended = decide(held(), world(job(), pod(terminal=True, exit_code=code)), at(8)).run.worker
    assert ended is not None
    assert ended.message.startswith(text)


def test_an_exit_code_that_comes_after_the_announced_error_is_added() -> None:
    announced = decide(released(Release.ERROR), LIVE, at(8)).run
    ended = decide(announced, world(job(), pod(terminal=True, exit_code=3, message="boom")), at(9)).run.worker
    assert ended is not None
    assert ended.message == "exit code 3: boom"


def test_back_off_grows_and_is_capped() -> None:
    run, waits, now = started(), [], 10.0
    ended = run
    for number in range(1, 9):
        ended = decide(run, world(job(number, done=True), pod(number, f"pod-{number}", terminal=True, exit_code=1)), at(now)).run
        assert ended.worker is not None
        assert ended.worker.retry_at is not None
        waits.append((ended.worker.retry_at - seconds(now)).total_seconds())
        if ended.terminal:
            break
        early = decide(ended, world(job(number, done=True)), at(now + waits[-1] - 0.5))
        assert early.create is None
        now += waits[-1]
        run = decide(ended, world(job(number, done=True)), at(now)).run
    assert waits == [5, 10, 20, 40, 80, 160, 300]
    assert run.terminal is False
    assert (ended.outcome, ended.reason) == (Outcome.FAILED, "BackoffLimitExceeded")
    assert "exit code 1" in ended.message


def test_a_worker_that_failed_to_move_the_run_at_the_limit_ends_it_with_the_last_reason() -> None:
    refused = world(job(), refused="exceeded quota: pods=0")
    decided = decide(started(backoff_limit=0), refused, at(31))
    assert (decided.run.outcome, decided.run.reason) == (Outcome.FAILED, "BackoffLimitExceeded")
    assert "PodCreateRefused: exceeded quota" in decided.run.message


def test_the_limit_waits_for_the_exit_code_of_an_announced_error() -> None:
    run = release(held(backoff_limit=0), Release.ERROR, at(8))
    waiting = decide(run, LIVE, at(8)).run
    assert waiting.outcome is None
    ended = decide(waiting, world(job(), pod(terminal=True, exit_code=9)), at(9)).run
    assert "exit code 9" in ended.message


# --- pods that do not start -----------------------------------------------------------------------------------------------------

NO_IMAGE = PodProblem("ImagePullBackOff", "no such image", fatal=True)
NO_ROOM = PodProblem("Unschedulable", "0/2 nodes are available", fatal=False)


@pytest.mark.parametrize(
    ("known", "now", "problem", "ended"),
    [
        (world(job(), pod(problem=NO_IMAGE)), 5, "ImagePullBackOff", False),
        (world(job(), pod(problem=NO_IMAGE)), 31, "", True),
        (world(job(), pod(problem=NO_ROOM)), 500, "Unschedulable", False),
        (world(job(), refused="exceeded quota"), 12, "PodCreateRefused", False),
        (world(job(), refused="exceeded quota"), 31, "", True),
        (replace(NO_JOB, not_created="namespace is being terminated"), 500, "JobCreateRefused", False),
    ],
    ids=[
        "a missing image is shown",
        "and given up after half a minute",
        "a pod that finds no node is shown, for ever",
        "a refused pod is shown",
        "and given up too",
        "a refused Job is shown, and tried again",
    ],
)
def test_what_people_see_of_a_worker_that_does_not_start(known: World, now: float, problem: str, ended: bool) -> None:
    run = decide(started(), known, at(now)).run
    assert (run.worker_problem or ("",))[0] == problem
    assert run.worker is not None
    assert (run.worker.ended_at is not None, run.worker.failures) == (ended, int(ended))


def test_pod_and_job_of_a_worker_that_was_given_up_are_deleted() -> None:
    given_up = decide(started(), world(job(), pod(problem=NO_IMAGE)), at(31))
    assert [gone.name for gone in given_up.delete_pods] == [POD]
    refused = decide(started(), world(job(), refused="exceeded quota"), at(31))
    assert [gone.name for gone in refused.delete_jobs] == [JOB_1]


# --- R14, silence, and pods with nothing to do ----------------------------------------------------------------------------------


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


# --- people, deadlines ----------------------------------------------------------------------------------------------------------


def question(run: Run) -> str:
    return f"pay.{run.ledger['pay'].question}"


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


# --- level-triggered ------------------------------------------------------------------------------------------------------------

STATES: dict[str, tuple[Callable[[], Run], World, float]] = {
    "a new run": (lambda: new_run(step(), accepted=False), world(), 0),
    "a run whose number is written and whose Job is not": (started, NO_JOB, 2),
    "a waiting pod": (started, world(job(), pod(problem=NO_IMAGE)), 5),
    "a run at work": (in_flight, LIVE, 9),
    "a worker that crashed": (in_flight, world(job(), TERMINATED), 9),
    "an open question": (doubtful, world(job(done=True), TERMINATED), 40),
    "a released run": (lambda: released(Release.DRAINED), LIVE, 9),
    "a hung step": (in_flight, LIVE, 80),
    "a refused pod": (started, world(job(), refused="quota"), 31),
    "a finished run": (lambda: finish(held(), None, at(8)), world(job(done=True), pod(terminal=True, exit_code=0)), 20),
}


@pytest.mark.parametrize("name", STATES)
def test_two_reconciles_of_one_state_decide_alike(name: str) -> None:
    make, known, now = STATES[name]
    assert decide(make(), known, at(now)) == decide(make(), known, at(now))


@pytest.mark.parametrize("name", STATES)
def test_deciding_again_on_what_was_written_changes_nothing_more(name: str) -> None:
    make, known, now = STATES[name]
    once = decide(make(), known, at(now))
    again = decide(once.run, known, at(now, nonce="another"))
    assert again.run == once.run
    assert again.delete_pods == once.delete_pods


@pytest.mark.parametrize("name", ["a new run", "a run whose number is written and whose Job is not", "a released run"])
def test_a_controller_that_was_killed_after_its_write_makes_the_job_later(name: str) -> None:
    """What the lost pass would have done in the world, the next pass does: nothing is made twice under one number."""
    make, known, now = STATES[name]
    lost = decide(make(), known, at(now))
    assert lost.create is not None
    nothing = JobFact(name=lost.create.job, number=lost.create.number, gone=True, seen=False)
    resumed = decide(lost.run, replace(known, jobs=(*(j for j in known.jobs if j.name != nothing.name), nothing)), at(now + 1))
    assert resumed.create == lost.create


@pytest.mark.parametrize("name", STATES)
def test_waking_at_the_said_moment_is_enough(name: str) -> None:
    """Between now and `wake_at` nothing changes by time alone."""
    make, known, now = STATES[name]
    settled = decide(make(), known, at(now))
    if settled.wake_at is None:
        assert decide(settled.run, known, at(now + 1e6)).run == settled.run
        return
    left = (settled.wake_at - seconds(now)).total_seconds()
    before = decide(settled.run, known, at(now + left * 0.999))
    assert (before.run, before.delete_pods) == (settled.run, settled.delete_pods)


def test_a_lost_claim_of_the_world_never_fences_a_pod_that_it_does_not_know() -> None:
    """The run was read after the pod cache: the new holder is not in it."""
    stale = world(job(1, done=True), pod(1, "old", terminal=True, exit_code=0))
    run = claimed(started(), 2, "fresh")
    decided = decide(run, stale, at(30))
    assert decided.run.holder is not None
    assert decided.run.token == run.token


def test_the_next_claim_waits_for_a_second_pod_of_the_same_job() -> None:
    run = release(held(), Release.DRAINED, at(8))
    assert decide(run, world(job(), pod(), pod(name="second")), at(30)).create is None


def test_lose_and_rerun_goes_on_in_the_same_worker() -> None:
    run = in_flight(step(action=Action.READ))
    run = lose(run, report(run), "Timeout", "", at(9))[0]
    decided = decide(run, LIVE, at(10))
    assert decided.create is None
    assert decided.run.holder is not None
    assert claimed(run, 11, "other", HolderFact.OVER).token == run.token + 1
