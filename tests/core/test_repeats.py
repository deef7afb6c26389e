"""Repeating any event that has already taken effect gives the recorded answer and changes nothing."""

from collections.abc import Callable

import pytest

from stepfence.core import answers, fencing, ledger, lifecycle, plan, reports
from stepfence.core.fencing import Claim, HolderFact, Release
from stepfence.core.model import Decision, Run, StepSpec
from stepfence.core.moves import Event
from stepfence.core.words import Action, Verdict
from stepfence.testing.builders import at, begun, body, claimed, new_run, report, step, with_decision

Repeat = Callable[[Run], tuple[Run, object]]


def lost(run: Run, after: float = 20) -> Run:
    return reports.lose(run, report(run), "TimedOut", "", at(after))[0]


def asked(planned: StepSpec) -> Run:
    try:
        begun(claimed(new_run(planned)))
    except ledger.RefusedAfter as refused:
        return refused.run
    raise AssertionError("nobody was asked")


def answered(run: Run, verdict: Verdict, after: float = 80) -> Repeat:
    key = f"pay.{run.ledger['pay'].question}"
    return lambda again: answers.catch_up(with_decision(again, key, Decision(verdict)), {}, at(after))


def probed(verdict: Verdict | None) -> Repeat:
    def again(run: Run) -> tuple[Run, object]:
        return reports.probe(run, report(run), verdict, body("re_9"), asked_at=at(80).now, give_up=False, at=at(81))

    return again


def cases() -> dict[Event, tuple[Run, Repeat]]:
    started, _ = begun(claimed(new_run(step(attempts=2))))
    doubt = lost(started)
    probing = lost(begun(claimed(new_run(step(probe_give_up=300))))[0])
    approving = asked(step(approval_expires=60))
    return {
        Event.BEGIN: (claimed(new_run(step())), lambda run: begun(run, 5, request_id="r1")),
        Event.COMPLETE: (started, lambda run: reports.complete(run, report(run), body("re_9"), at(5))),
        Event.FAIL: (started, lambda run: reports.fail(run, report(run), "No", "", final=False, retry_after=None, at=at(5))),
        Event.LOSE: (started, lambda run: reports.lose(run, report(run), "TimedOut", "", at(5))),
        Event.PROBE_HAPPENED: (probing, probed(Verdict.HAPPENED)),
        Event.PROBE_DID_NOT: (probing, probed(Verdict.DID_NOT_HAPPEN)),
        Event.PROBE_CANNOT_TELL: (probing, probed(None)),
        Event.APPROVE: (approving, answered(approving, Verdict.APPROVE, 5)),
        Event.DENY: (approving, answered(approving, Verdict.DENY, 5)),
        Event.EXPIRE: (approving, lambda run: (fencing.lose_overdue(run, at(61)), None)),
        Event.HAPPENED: (doubt, answered(doubt, Verdict.HAPPENED)),
        Event.DID_NOT_HAPPEN: (doubt, answered(doubt, Verdict.DID_NOT_HAPPEN)),
        Event.ABANDON: (doubt, answered(doubt, Verdict.ABANDON)),
    }


@pytest.mark.parametrize("event", list(Event), ids=str)
def test_an_event_of_a_step(event: Event) -> None:
    run, happen = cases()[event]
    once, first = happen(run)
    twice, second = happen(once)
    assert twice == once
    if event is not Event.PROBE_CANNOT_TELL:
        assert once != run
    if not isinstance(first, list):
        assert second == first


def test_a_begin_repeated_later_tells_the_time_that_is_left() -> None:
    run, first = begun(claimed(new_run(step())), request_id="r1")
    again, second = begun(run, 59, request_id="r1")
    assert (again, second.outcome, second.entry) == (run, first.outcome, first.entry)
    assert (first.time_left, second.time_left) == (60.0, 1.0)


def test_a_late_copy_of_a_begin_whose_attempt_failed_begins_nothing() -> None:
    run, _ = begun(claimed(new_run(step(attempts=2))), request_id="r1")
    run, _ = reports.fail(run, report(run), "No", "", final=False, retry_after=None, at=at(1))
    late, answer = begun(run, 10, request_id="r1")
    assert (late, answer.outcome) == (run, ledger.Go.WAIT)
    fresh, answer = begun(run, 10, request_id="r2")
    assert (fresh.ledger["pay"].attempt, answer.outcome) == (2, ledger.Go.GO)


RUN_CALLS: dict[str, tuple[Run, Callable[[Run], Run]]] = {
    "claim": (
        new_run(step()),
        lambda run: fencing.claim(run, Claim("pod-1", "uid-1", "c1", 60), HolderFact.OVER, at(5))[0],
    ),
    "drain": (claimed(new_run(step())), fencing.drain),
    "settle": (claimed(new_run(step())), lambda run: fencing.settle(run, "WorkerLost", at(5))),
    "release": (begun(claimed(new_run(step())))[0], lambda run: fencing.release(run, Release.DRAINED, at(5))),
    "note terminated": (begun(claimed(new_run(step())))[0], lambda run: fencing.note_terminated(run, "pod-1-uid", at(5).now)),
    "lose overdue": (begun(claimed(new_run(step())))[0], lambda run: fencing.lose_overdue(run, at(70))),
    "accept": (new_run(step(), accepted=False), lambda run: lifecycle.accept(run, at(5))),
    "cancel": (new_run(step(), cancel=True), lambda run: lifecycle.request_cancel(run, at(5))),
    "halt": (claimed(new_run(step())), lambda run: lifecycle.halt_run(run, "LooksWrong", "", at(5))),
    "fail": (claimed(new_run(step())), lambda run: lifecycle.fail_run(run, "NoGo", "", at(5))),
    "finish": (claimed(new_run(step())), lambda run: lifecycle.finish(run, body(), at(5))),
    "plan": (claimed(new_run()), lambda run: plan.submit(run, [step(action=Action.READ)], at(5))[0]),
    "keep time": (new_run(step()), lambda run: lifecycle.keep_time(run, at(5))),
}


@pytest.mark.parametrize("name", RUN_CALLS)
def test_an_event_of_the_run(name: str) -> None:
    run, call = RUN_CALLS[name]
    once = call(run)
    assert once != run
    assert call(once) == once
