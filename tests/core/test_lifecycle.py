"""How a run starts and ends, and whose time counts (R12, R15)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stepfence.core import fencing, lifecycle, reports
from stepfence.core.entry import Entry
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Hold, Run
from stepfence.core.words import Action, Outcome, State
from stepfence.testing.builders import at, begun, body, claimed, new_run, report, seconds, step

SIDE = (step("pay"), step("notify", Action.CREATE))


def with_entry(run: Run, state: State, name: str = "pay", **known: Any) -> Run:
    entry = replace(Entry(state, "sf1", question="q1" if state in (State.UNKNOWN, State.AWAITING_APPROVAL) else None), **known)
    return replace(run, ledger={**run.ledger, name: entry})


def lost(run: Run, after: float = 2, name: str = "pay") -> Run:
    return reports.lose(run, report(run, name=name), "TimedOut", "", at(after))[0]


def code_of(happen: Callable[[], object]) -> Code:
    with pytest.raises(Refused) as refused:
        happen()
    return refused.value.code


def test_acceptance_fixes_identity_start_and_plan_once() -> None:
    run = lifecycle.accept(new_run(step(), accepted=False, run_id="refund-4711"), at(3))
    assert (run.run_id, run.started_at) == ("support/refund-4711", seconds(3))
    assert run.plan is not None
    assert lifecycle.accept(run, at(9)) is run
    assert new_run().identity == "support/refund/uid-1"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"problems": ("spec.input: 70000 bytes, at most 65536",)}, "spec.input"),
        ({"steps": (step(), step())}, "spec.plan.steps[1].id"),
    ],
)
def test_a_bad_spec_ends_before_any_worker(spec: dict[str, Any], says: str) -> None:
    base = new_run(accepted=False)
    run = lifecycle.accept(replace(base, spec=replace(base.spec, **spec)), at())
    assert (run.outcome, run.reason) == (Outcome.FAILED, "InvalidSpec")
    assert says in run.message


ENDINGS: dict[str, tuple[Callable[[Run], Run], Outcome, str]] = {
    "cancel": (
        lambda run: lifecycle.request_cancel(replace(run, spec=replace(run.spec, cancel=True)), at(3)),
        Outcome.CANCELLED,
        "Cancelled",
    ),
    "failure": (lambda run: lifecycle.fail_run(run, "NoGo", "", at(3)), Outcome.FAILED, "NoGo"),
    "deadline": (
        lambda run: lifecycle.keep_time(replace(run, spec=replace(run.spec, active_deadline=3), active_since=seconds(0)), at(3)),
        Outcome.FAILED,
        "DeadlineExceeded",
    ),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_an_end_waits_for_what_is_in_flight_and_hears_it(how: str) -> None:
    end, outcome, reason = ENDINGS[how]
    run, _ = begun(claimed(new_run(*SIDE)))
    run = lifecycle.end_if_settled(end(run), at(3))
    assert (run.outcome, run.ending is not None) == (None, True)
    assert code_of(lambda: begun(run, 4, "notify")) is Code.CANCELLED
    run, entry = reports.complete(run, report(run), body("re_9"), at(5))
    assert (entry.state, run.outcome, run.reason, run.finished_at) == (State.DONE, outcome, reason, seconds(5))


@pytest.mark.parametrize("how", ENDINGS)
def test_an_end_waits_for_a_doubt_that_only_a_person_can_clear(how: str) -> None:
    run = lost(begun(claimed(new_run(*SIDE)))[0])
    run = lifecycle.end_if_settled(ENDINGS[how][0](replace(run, active_since=seconds(0))), at(3))
    assert run.outcome is None
    assert [planned.id for planned, _ in lifecycle.halting_steps(run, at(3))] == ["pay"]


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("action", [Action.READ, Action.UPSERT])
def test_an_end_does_not_wait_for_a_doubt_that_harms_nobody(how: str, action: Action) -> None:
    run = lost(begun(claimed(new_run(step(action=action))))[0])
    run = lifecycle.end_if_settled(ENDINGS[how][0](replace(run, active_since=seconds(0))), at(3))
    assert run.outcome is ENDINGS[how][1]


@pytest.mark.parametrize(
    ("state", "known", "ends"),
    [
        (State.IN_FLIGHT, {}, False),
        (State.UNKNOWN, {}, False),
        (State.UNKNOWN, {"abandoned": True}, True),
        (State.AWAITING_APPROVAL, {}, True),
        (State.APPROVED, {}, True),
        (State.PLANNED, {}, True),
        (State.FAILED, {}, True),
        (State.DENIED, {}, True),
        (State.DONE, {}, True),
    ],
)
def test_a_failed_run_ends_when_nothing_is_open(state: State, known: dict[str, Any], ends: bool) -> None:
    run = lifecycle.fail_run(with_entry(claimed(new_run(step())), state, **known), "NoGo", "", at(3))
    assert run.terminal is ends


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (State.IN_FLIGHT, Code.NOT_SETTLED),
        (State.UNKNOWN, Code.HALTED),
        (State.AWAITING_APPROVAL, Code.AWAITING_APPROVAL),
        (State.APPROVED, Code.NOT_SETTLED),
        (State.PLANNED, None),
        (State.FAILED, None),
        (State.DENIED, None),
        (State.DONE, None),
    ],
)
def test_success_needs_everything_settled(state: State, code: Code | None) -> None:
    run = with_entry(claimed(new_run(step())), state)
    if code is None:
        assert lifecycle.finish(run, body(), at(3)).outcome is Outcome.SUCCEEDED
    else:
        assert code_of(lambda: lifecycle.finish(run, body(), at(3))) is code


def test_an_unknown_read_is_no_success_either() -> None:
    run = lost(begun(claimed(new_run(step(action=Action.READ))))[0])
    assert code_of(lambda: lifecycle.finish(run, body(), at(3))) is Code.NOT_SETTLED


def test_success_lists_what_was_never_begun_and_keeps_the_result() -> None:
    run = with_entry(claimed(new_run(*SIDE)), State.DONE)
    done = lifecycle.finish(run, body({"ok": True}), at(3))
    assert (done.message, done.result, done.finished_at) == ("skipped: notify", body({"ok": True}), seconds(3))


def test_an_end_never_says_more_than_the_object_can_hold() -> None:
    run = claimed(new_run(*(step(f"step-{number}-with-a-long-name") for number in range(256))))
    done = lifecycle.finish(run, None, at(3))
    assert (len(done.message), done.message[:17], done.message[-1]) == (1024, "skipped: step-0-w", "…")
    assert len(lifecycle.fail_run(run, "NoGo", "x" * 5000, at(3)).message) == 1024
    bad = new_run(accepted=False)
    bad = replace(bad, spec=replace(bad.spec, problems=("spec.input: bad",) * 500))
    assert len(lifecycle.accept(bad, at()).message) == 1024


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda run: replace(run, spec=replace(run.spec, cancel=True)), Code.CANCELLED),
        (lambda run: lifecycle.halt_run(run, "Odd", "", at(2)), Code.HELD),
        (lambda run: replace(run, plan=None), Code.PLAN_MISSING),
        (lambda run: lifecycle.fail_run(run, "NoGo", "", at(2)), Code.TERMINAL),
        (lambda run: replace(begun(run)[0], ending=lifecycle.fail_run(begun(run)[0], "NoGo", "", at(2)).ending), Code.CANCELLED),
    ],
    ids=["cancelling", "held", "without a plan", "failed", "ending"],
)
def test_there_is_no_success_while(change: Callable[[Run], Run], code: Code) -> None:
    assert code_of(lambda: lifecycle.finish(change(claimed(new_run(step()))), body(), at(3))) is code


def test_the_first_decided_end_stays() -> None:
    run = begun(claimed(new_run(step())))[0]
    run = lifecycle.fail_run(run, "NoGo", "", at(3))
    run = lifecycle.request_cancel(replace(run, spec=replace(run.spec, cancel=True)), at(4))
    assert run.ending is not None
    assert (run.ending.outcome, run.ending.at, run.cancel_requested_at) == (Outcome.FAILED, seconds(3), seconds(4))


def test_cancel_is_one_way() -> None:
    run = begun(claimed(new_run(step())))[0]
    run = lifecycle.request_cancel(replace(run, spec=replace(run.spec, cancel=True)), at(4))
    undone = replace(run, spec=replace(run.spec, cancel=False))
    assert code_of(lambda: lifecycle.require_active(undone, at(5))) is Code.CANCELLED


def test_a_run_that_ends_takes_no_hold() -> None:
    run = begun(claimed(new_run(step())))[0]
    assert code_of(lambda: lifecycle.halt_run(lifecycle.fail_run(run, "NoGo", "", at(3)), "Odd", "", at(4))) is Code.CANCELLED
    over = replace(run, outcome=Outcome.FAILED)
    assert code_of(lambda: lifecycle.halt_run(over, "Odd", "", at(4))) is Code.TERMINAL


def test_an_end_closes_the_hold() -> None:
    run = lifecycle.fail_run(lifecycle.halt_run(claimed(new_run(step())), "Odd", "", at(2)), "NoGo", "", at(3))
    assert (run.outcome, run.hold) == (Outcome.FAILED, None)


# --- whose time counts ----------------------------------------------------------------------------------------------------


def test_time_counts_from_acceptance_while_machines_work() -> None:
    run = lifecycle.keep_time(new_run(step(), active_deadline=100), at(0))
    assert (run.active_since, lifecycle.active_for(run, seconds(40))) == (seconds(0), 40.0)
    assert lifecycle.deadline_at(run) == seconds(100)


WAITING: dict[str, Callable[[Run], Run]] = {
    "suspended": lambda run: replace(run, spec=replace(run.spec, suspend=True)),
    "held": lambda run: replace(run, hold=Hold("q1", "Odd", "", seconds(40))),
    "a doubt": lambda run: with_entry(run, State.UNKNOWN),
    "an approval": lambda run: with_entry(run, State.AWAITING_APPROVAL),
}


@pytest.mark.parametrize("why", WAITING)
def test_peoples_time_does_not_count(why: str) -> None:
    run = lifecycle.keep_time(new_run(step(), active_deadline=100), at(0))
    waiting = lifecycle.keep_time(WAITING[why](run), at(40))
    assert (waiting.active_since, waiting.active_seconds, lifecycle.deadline_at(waiting)) == (None, 40.0, None)
    assert lifecycle.keep_time(waiting, at(10**6)) == waiting
    on = lifecycle.keep_time(replace(waiting, spec=run.spec, hold=None, ledger={}), at(1000))
    assert (on.active_seconds, lifecycle.deadline_at(on), on.ending) == (40.0, seconds(1060), None)
    over = lifecycle.keep_time(on, at(1060))
    assert over.ending is not None
    assert over.ending.reason == "DeadlineExceeded"


def test_a_machines_doubt_counts() -> None:
    run = lifecycle.keep_time(new_run(step(action=Action.UPSERT), active_deadline=100), at(0))
    run = lifecycle.keep_time(lost(begun(claimed(run))[0]), at(40))
    assert run.active_since == seconds(0)


@pytest.mark.parametrize(("second", "over"), [(99.999, False), (100, True)])
def test_nothing_begins_past_the_deadline_even_before_anybody_noted_it(second: float, over: bool) -> None:
    run = claimed(lifecycle.keep_time(new_run(step(), active_deadline=100), at(0)))
    if over:
        assert code_of(lambda: begun(run, second)) is Code.CANCELLED
    else:
        assert begun(run, second)[0].ledger["pay"].state is State.IN_FLIGHT


def test_the_clock_stops_with_the_run() -> None:
    run = lifecycle.keep_time(claimed(new_run(step())), at(0))
    done = lifecycle.finish(run, body(), at(30))
    assert (done.active_seconds, done.active_since) == (30.0, None)
    assert lifecycle.keep_time(done, at(90)) is done


def test_settling_the_last_open_step_ends_a_run_that_is_to_end() -> None:
    run = lifecycle.fail_run(begun(claimed(new_run(step(action=Action.READ))))[0], "NoGo", "", at(3))
    assert fencing.settle(run, "WorkerLost", at(4)).outcome is Outcome.FAILED
    assert fencing.release(run, fencing.Release.HALTED, at(4)).outcome is Outcome.FAILED
