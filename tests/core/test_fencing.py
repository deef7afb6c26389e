"""Claims, tokens and what a pod's end proves (I2, I3, I8, R3, R5, R8, R9, R13, R15)."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from stepfence.core import fencing, ledger, lifecycle, plan, reports
from stepfence.core.entry import StepSpec
from stepfence.core.errors import Code, Refused
from stepfence.core.fencing import Claim, HolderFact, Release
from stepfence.core.ledger import Go, put
from stepfence.core.model import Run, Worker
from stepfence.core.moves import NOT_STARTED
from stepfence.core.words import Action, Outcome, Recovery, State, Verdict
from stepfence.testing.builders import at, begun, body, claimed, new_run, report, seconds, step

TWO = (step("pay"), step("look", Action.READ))


def call(pod: str = "pod-2", request_id: str = "c2") -> Claim:
    return Claim(pod, f"{pod}-uid", request_id, lease=60)


def code_of(happen: Callable[[], object]) -> Code:
    with pytest.raises(Refused) as refused:
        happen()
    return refused.value.code


def in_flight(*steps: StepSpec) -> Run:
    run = claimed(new_run(*(steps or TWO)))
    for planned in run.plan.steps if run.plan else ():
        run, _ = begun(run, 1, planned.id)
    return run


def test_a_claim_takes_the_next_token_and_loses_what_is_in_flight() -> None:
    run = in_flight()
    taken, changed = fencing.claim(run, call(), HolderFact.OVER, at(5))
    assert changed
    assert (taken.token, run.token) == (2, 1)
    assert taken.holder is not None
    assert (taken.holder.pod_uid, taken.holder.claimed_at, taken.holder.lease) == ("pod-2-uid", seconds(5), 60)
    assert {entry.state for entry in taken.ledger.values()} == {State.UNKNOWN}
    assert {entry.reason for entry in taken.ledger.values()} == {"WorkerLost"}
    assert len({entry.question for entry in taken.ledger.values()}) == 2


def test_a_claim_that_leaves_a_question_fences_all_the_same() -> None:
    taken, _ = fencing.claim(in_flight(), call(), HolderFact.OVER, at(5))
    assert code_of(lambda: lifecycle.require_active(taken, at(5))) is Code.HALTED


def test_a_repeated_claim_gets_the_recorded_one() -> None:
    taken, _ = fencing.claim(in_flight(), call(), HolderFact.OVER, at(5))
    again, changed = fencing.claim(taken, call(), HolderFact.ALIVE, at(6))
    assert (again, changed) == (taken, False)


def test_a_new_process_in_the_same_pod_claims_anew() -> None:
    run = in_flight(step("look", Action.READ))
    taken, _ = fencing.claim(run, call("pod-1", "other process"), HolderFact.ALIVE, at(5))
    assert (taken.token, taken.ledger["look"].state) == (2, State.UNKNOWN)


def test_the_same_request_id_of_another_pod_is_another_claim() -> None:
    taken, _ = fencing.claim(new_run(*TWO), call("pod-1", "same"), HolderFact.OVER, at(1))
    assert code_of(lambda: fencing.claim(taken, call("pod-2", "same"), HolderFact.ALIVE, at(2))) is Code.HOLDER_ALIVE


def test_a_pod_that_was_told_to_go_is_still_going_when_it_claims_again() -> None:
    run = fencing.drain(claimed(new_run(*TWO)))
    again, _ = fencing.claim(run, call("pod-1", "other process"), HolderFact.ALIVE, at(5))
    assert code_of(lambda: begun(again, 6)) is Code.DRAINING
    other, _ = fencing.claim(run, call("pod-2"), HolderFact.OVER, at(5))
    assert begun(other, 6, pod="pod-2")[1].outcome is Go.GO


@pytest.mark.parametrize(
    ("says", "change", "code"),
    [
        ("terminal", lambda run: replace(run, outcome=Outcome.FAILED), Code.TERMINAL),
        ("cancelled", lambda run: replace(run, spec=replace(run.spec, cancel=True)), Code.CANCELLED),
        ("ending", lambda _: replace(lifecycle.fail_run(in_flight(), "Gone", "", at(2)), holder=None), Code.CANCELLED),
        ("suspended", lambda run: replace(run, spec=replace(run.spec, suspend=True)), Code.HELD),
        ("held", lambda run: lifecycle.halt_run(run, "Odd", "", at(1)), Code.HELD),
        ("halted", lambda _: fencing.settle(in_flight(), "WorkerLost", at(2)), Code.HALTED),
        (
            "past its deadline",
            lambda run: lifecycle.keep_time(replace(run, spec=replace(run.spec, active_deadline=3)), at(0)),
            Code.CANCELLED,
        ),
    ],
)
def test_a_claim_is_refused_while_the_run_is(says: str, change: Callable[[Run], Run], code: Code) -> None:
    assert code_of(lambda: fencing.claim(change(new_run(*TWO)), call(), HolderFact.OVER, at(5))) is code


def test_settlement_is_the_same_write_without_a_pod() -> None:
    run = fencing.settle(in_flight(), "WorkerLost", at(5))
    assert (run.token, run.holder, run.ledger["pay"].state) == (2, None, State.UNKNOWN)


def test_a_release_loses_what_is_in_flight_and_leaves_a_token_that_nobody_can_use() -> None:
    run = fencing.release(replace(in_flight(), worker=Worker(1, "job", "", seconds(0))), Release.DRAINED, at(5))
    assert (run.token, run.holder, run.ledger["pay"].state) == (1, None, State.UNKNOWN)
    assert run.worker is not None
    assert run.worker.exit_reason == "Drained"
    assert code_of(lambda: begun(run, 6)) is Code.FENCED


Said = Callable[[Run, int, str], object]
OPERATIONS: dict[str, Said] = {
    "begin": lambda run, token, pod: ledger.begin(run, ledger.Begin("look", token, f"{pod}-uid", "new", body()), at(9)),
    "fail": lambda run, token, pod: reports.fail(run, report(run, token=token, pod=pod), "No", "", final=False, retry_after=None, at=at(9)),
    "lose": lambda run, token, pod: reports.lose(run, report(run, 2, token=token, pod=pod), "TimedOut", "", at(9)),
    "probe leave": lambda run, token, pod: reports.probe_leave(run, report(run, token=token, pod=pod), at(9)),
    "probe": lambda run, token, pod: reports.probe(
        run, report(run, token=token, pod=pod), Verdict.HAPPENED, None, asked_at=seconds(9), give_up=False, at=at(9)
    ),
    "require_token": fencing.require_token,  # plan, drain, release, finish, fail, halt and renew ask it first
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(
    ("says", "token", "pod"),
    [("an old token", 1, "pod-1"), ("the current token of another pod", 2, "pod-1"), ("a token of the future", 3, "pod-2")],
)
def test_a_stale_caller_loses_in_every_operation(name: str, says: str, token: int, pod: str) -> None:
    run, _ = fencing.claim(in_flight(step(probe_give_up=300), TWO[1]), call(), HolderFact.OVER, at(5))
    uid = f"{pod}-uid" if name == "require_token" else pod
    assert code_of(lambda: OPERATIONS[name](run, token, uid)) is Code.FENCED


def test_nobody_holds_a_released_run() -> None:
    run = fencing.release(in_flight(step(probe_give_up=300), TWO[1]), Release.DRAINED, at(5))
    for name, operation in OPERATIONS.items():
        uid = "pod-1-uid" if name == "require_token" else "pod-1"
        assert code_of(lambda: operation(run, 1, uid)) is Code.FENCED, name  # noqa: B023


def test_the_one_exception_is_the_truth_that_a_recorded_attempt_succeeded() -> None:
    run, _ = fencing.claim(in_flight(), call(), HolderFact.OVER, at(5))
    done, entry = reports.complete(run, report(run, token=1), body("re_9"), at(9))
    assert (entry.state, entry.result, done.token) == (State.DONE, body("re_9"), 2)
    done, _ = reports.complete(run, report(run, pod="pod-2"), body("re_9"), at(9))
    assert done.ledger["pay"].state is State.DONE, "the holder may say it too"
    stranger = report(run, pod="pod-3", token=1)
    assert code_of(lambda: reports.complete(run, stranger, body("re_9"), at(9))) is Code.FENCED


def test_a_truth_is_also_heard_after_the_end_which_it_does_not_change() -> None:
    run = replace(fencing.settle(in_flight(step()), "WorkerLost", at(5)), outcome=Outcome.CANCELLED)
    done, _ = reports.complete(run, report(run, token=1), body("re_9"), at(9))
    assert (done.ledger["pay"].state, done.outcome) == (State.DONE, Outcome.CANCELLED)


def test_done_is_final_and_whoever_says_otherwise_is_told_the_record() -> None:
    run, _ = reports.complete(in_flight(step()), report(in_flight(step())), body("re_9"), at(9))
    again, entry = reports.complete(run, report(run, 7), body("other"), at(10))
    assert (again, entry.result) == (run, body("re_9"))
    answered, entry = reports.probe(run, report(run), Verdict.DID_NOT_HAPPEN, None, asked_at=seconds(80), give_up=False, at=at(81))
    assert (answered, entry.state) == (run, State.DONE)
    for say in ("fail", "lose"):
        with pytest.raises(Refused):
            OPERATIONS[say](run, 1, "pod-1")


def test_an_older_attempt_is_not_heard_while_a_newer_one_is_in_flight() -> None:
    run = in_flight(step(recovery=Recovery.RESEND_WITH_KEY, key_ttl=3600))
    run, _ = reports.lose(run, report(run), "TimedOut", "", at(2))
    run, _ = begun(run, 3)
    assert code_of(lambda: reports.complete(run, report(run), body(), at(4))) is Code.ATTEMPT_MISMATCH
    run, _ = reports.lose(run, report(run, 2), "TimedOut", "", at(5))
    assert reports.complete(run, report(run), body(), at(6))[1].state is State.DONE


def test_a_late_success_of_an_upsert_is_told_when_to_come_again() -> None:
    run = in_flight(step(action=Action.UPSERT))
    run, _ = begun(run, 71)
    run, _ = reports.lose(run, report(run, 2), "TimedOut", "", at(80))
    with pytest.raises(Refused) as early:
        reports.complete(run, report(run), body("re_9"), at(90))
    assert (early.value.code, early.value.retry_after) == (Code.BUSY, 51.0)  # the second may land until second 71 + 60 + 10
    assert reports.complete(run, report(run), body("re_9"), at(141))[1].state is State.DONE
    assert reports.complete(run, report(run, 2), body("re_9"), at(90))[1].state is State.DONE, "the first is over"


def test_a_pods_end_is_noted_on_its_own_attempts_alone_and_first_sight_stays() -> None:
    run = in_flight()
    run = fencing.note_terminated(run, "pod-1-uid", seconds(7))
    again = fencing.note_terminated(run, "pod-1-uid", seconds(9))
    assert again is run
    assert fencing.note_terminated(run, "pod-2-uid", seconds(9)) is run
    assert {entry.open[0].terminated_at for entry in run.ledger.values()} == {seconds(7)}


@pytest.mark.parametrize(("second", "lost"), [(70.999, False), (71, True)])
def test_what_is_past_deadline_plus_margin_is_lost(second: float, lost: bool) -> None:
    run = fencing.lose_overdue(in_flight(), at(second))  # began at second 1, time-out 60, margin 10
    expected = State.UNKNOWN if lost else State.IN_FLIGHT
    assert {entry.state for entry in run.ledger.values()} == {expected}


@pytest.mark.parametrize(
    ("second", "outcome"),
    [(1, Go.GO), (60.999, Go.GO), (61, Code.BEGIN_EXPIRED), (70.999, Code.BEGIN_EXPIRED), (71, Code.HALTED)],
)
def test_a_repeated_begin_is_told_the_time_left_and_never_to_go_after_the_deadline(second: float, outcome: Go | Code) -> None:
    run = in_flight(step())
    if isinstance(outcome, Go):
        again, answer = begun(run, second, request_id="begin-1")
        assert (again, answer.outcome, round(answer.time_left, 3)) == (run, outcome, round(61 - second, 3))
    else:
        assert code_of(lambda: begun(run, second, request_id="begin-1")) is outcome


def test_who_had_no_go_in_time_is_told_the_attempt_and_may_say_that_it_was_not_started_without_using_one_up() -> None:
    run = in_flight(step())
    with pytest.raises(Refused) as expired:
        begun(run, 62, request_id="begin-1")
    assert (expired.value.attempt, expired.value.retry_after) == (1, 9.0)
    run, entry = reports.fail(run, report(run), NOT_STARTED, "", final=False, retry_after=None, at=at(63))
    assert (entry.state, entry.failures) == (State.FAILED, 0)
    run, answer = begun(run, 70, request_id="begin-2")
    assert (answer.outcome, answer.entry.attempt) == (Go.GO, 2)
    _, entry = reports.fail(run, report(run, 2), "Refused", "", final=False, retry_after=None, at=at(71))
    assert begun(put(run, step().id, entry), 80)[1].outcome is Go.FAILED  # a failure of a performed attempt does use it up


def test_another_payload_of_a_planned_step_is_answered_with_the_record() -> None:
    run, _ = begun(claimed(new_run(step())), payload={"amount": 1})
    run, _ = reports.complete(run, report(run), body("re_9"), at(1))
    _, answer = begun(run, 2, payload={"amount": 2})
    assert (answer.outcome, answer.payload_changed, answer.entry.result) == (Go.DONE, True, body("re_9"))


def test_another_payload_of_a_step_that_the_agent_appended_is_refused() -> None:
    run, _ = plan.submit(claimed(new_run(step("look", Action.READ))), [step("look", Action.READ), step()], at())
    run, _ = begun(run, payload={"amount": 1})
    run, _ = reports.complete(run, report(run), body("re_9"), at(1))
    assert code_of(lambda: begun(run, 2, payload={"amount": 2})) is Code.PAYLOAD_CHANGED
    assert begun(run, 2, payload={"amount": 1})[1].outcome is Go.DONE


def test_busy_says_when_to_come_again() -> None:
    with pytest.raises(Refused) as busy:
        begun(in_flight(step()), 31, request_id="another")
    assert busy.value.retry_after == 40.0


def test_a_begin_that_finds_a_doubt_saves_the_doubt_with_its_refusal() -> None:
    with pytest.raises(ledger.RefusedAfter) as halted:
        begun(in_flight(step()), 71)
    assert halted.value.run.ledger["pay"].state is State.UNKNOWN
    assert halted.value.question == f"pay.{halted.value.run.ledger['pay'].question}"


def test_a_read_past_its_deadline_is_begun_again_in_the_same_write() -> None:
    run, answer = begun(in_flight(step("pay", Action.READ)), 71)
    assert (answer.outcome, answer.entry.attempt, run.ledger["pay"].state) == (Go.GO, 2, State.IN_FLIGHT)


def test_an_upsert_waits_until_its_request_can_no_longer_land() -> None:
    run = fencing.settle(in_flight(step(action=Action.UPSERT)), "WorkerLost", at(10))
    again, answer = begun(claimed(run, 20), 20)
    assert (answer.outcome, answer.retry_after) == (Go.WAIT, 51.0)
    assert again.ledger["pay"].state is State.UNKNOWN


def test_a_probed_step_is_probed_and_told_how_long_to_wait() -> None:
    run = fencing.settle(in_flight(step(probe_give_up=300)), "WorkerLost", at(10))
    run = claimed(run, 20)
    _, answer = begun(run, 20)
    assert (answer.outcome, answer.retry_after) == (Go.PROBE, 51.0)
    assert reports.probe_leave(run, report(run), at(70)) == 1.0
    assert reports.probe_leave(run, report(run), at(71)) == 0.0
    assert code_of(lambda: reports.probe_leave(run, report(run, 2), at(71))) is Code.ATTEMPT_MISMATCH
    assert code_of(lambda: reports.probe_leave(run, report(run), at(371))) is Code.HALTED


def test_a_probe_that_gave_up_hands_over_to_a_person() -> None:
    run = claimed(fencing.settle(in_flight(step(probe_give_up=300)), "WorkerLost", at(10)), 20)
    run, entry = reports.probe(run, report(run), None, None, asked_at=seconds(80), give_up=True, at=at(81))
    assert (entry.state, entry.gave_up) == (State.UNKNOWN, True)
    assert code_of(lambda: begun(run, 82)) is Code.HALTED


def test_a_probe_cannot_have_been_asked_in_the_future() -> None:
    run = claimed(fencing.settle(in_flight(step(probe_give_up=300)), "WorkerLost", at(10)), 20)
    early = lambda: reports.probe(  # noqa: E731
        run, report(run), Verdict.DID_NOT_HAPPEN, None, asked_at=seconds(500), give_up=False, at=at(30)
    )
    assert code_of(early) is Code.TOO_EARLY


@pytest.mark.parametrize(
    ("retry_after", "failures", "second"),
    [(None, 0, 1), (30, 0, 30), (None, 3, 8), (1e300, 0, 86400), (None, 5000, 3600)],
)
def test_a_failure_waits_longer_each_time_and_never_for_ever(retry_after: float | None, failures: int, second: float) -> None:
    run = in_flight(step(attempts=10**6))
    entry = replace(run.ledger["pay"], failures=failures)
    run = replace(run, ledger={"pay": entry})
    run, entry = reports.fail(run, report(run), "Busy", "", final=False, retry_after=retry_after, at=at(2))
    assert entry.retry_at == seconds(2 + second)


def test_a_failure_that_is_final_or_the_last_is_settled_and_answered_so() -> None:
    for planned, final in ((step(), False), (step(attempts=5), True)):
        run = in_flight(planned)
        run, entry = reports.fail(run, report(run), "Declined", "no money", final=final, retry_after=None, at=at(2))
        assert (entry.state, entry.retry_at) == (State.FAILED, None)
        assert begun(run, 3)[1].outcome is Go.FAILED


def test_progress_is_what_settles_a_step() -> None:
    run = replace(in_flight(step(attempts=2)), worker=Worker(1, "job", "", seconds(0)))
    failed, _ = reports.fail(run, report(run), "Busy", "", final=False, retry_after=None, at=at(2))
    spent, _ = reports.fail(run, report(run), "Declined", "", final=True, retry_after=None, at=at(2))
    done, _ = reports.complete(run, report(run), None, at(2))
    assert [after.worker.progressed for after in (run, failed, spent, done) if after.worker] == [False, False, True, True]


def test_a_run_vouches_for_its_holder_and_for_the_pods_of_attempts_that_may_still_prove_true() -> None:
    run = in_flight()
    assert (fencing.vouches(run, "pod-1-uid"), fencing.vouches(run, "pod-2-uid")) == (True, False)
    lost, _ = fencing.claim(run, call(), HolderFact.OVER, at(5))
    assert (fencing.vouches(lost, "pod-1-uid"), fencing.vouches(lost, "pod-2-uid")) == (True, True)
    settled = lost
    for name in ("pay", "look"):
        settled, _ = reports.complete(settled, report(run, name=name), body("done"), at(6))
    assert (fencing.vouches(settled, "pod-1-uid"), fencing.vouches(settled, "pod-2-uid")) == (False, True)
    assert not fencing.vouches(new_run(*TWO), "pod-1-uid")
