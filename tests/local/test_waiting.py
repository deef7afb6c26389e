"""For whom or what each step waits, as people read it: derived from the run, the hour and which workers live."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, timedelta
from typing import Any

import pytest

from stepfence.core import reports
from stepfence.core.answers import catch_up
from stepfence.core.fencing import Release, drain, release, settle
from stepfence.core.ledger import RefusedAfter
from stepfence.core.lifecycle import fail_run, finish, halt_run, request_cancel
from stepfence.core.model import Decision, Run, Worker
from stepfence.core.words import Action, Verdict
from stepfence.local.waiting import Rank, RunView, view_of
from stepfence.testing.builders import at, begun, body, claimed, new_run, report, seconds, step, with_decision

LOOKUP, PAY, NOTIFY = step("lookup", Action.READ), step("pay"), step("notify", Action.CREATE)


def asked(run: Run, after: float = 1) -> Run:
    """The run after a beginning that waits for an approval."""
    with pytest.raises(RefusedAfter) as refused:
        begun(run, after)
    return refused.value.run


def worker(number: int = 1, **changes: Any) -> Worker:
    return replace(Worker(number, f"refund-{number}", "", seconds(0), pod_uid="pod-1-uid"), **changes)


def running(*steps: Any, **spec: Any) -> Run:
    return claimed(replace(new_run(*(steps or (PAY, NOTIFY)), **spec), worker=worker()))


def seen(run: Run, after: float = 1, living: Collection[int] = (1,)) -> RunView:
    return view_of(run, at(after), living, UTC)


def waits(run: Run, after: float = 1, living: Collection[int] = (1,)) -> list[str]:
    return [shown.waits for shown in seen(run, after, living).steps]


def clock(after: float) -> str:
    return seconds(after).strftime("%H:%M:%S")


def lost(run: Run, after: float = 2) -> Run:
    """The worker was killed: its end is accounted for."""
    settled = settle(run, "WorkerLost", at(after))
    return replace(settled, worker=worker(exit_reason="Crashed", ended_at=seconds(after)))


def test_a_new_run_waits_for_its_first_worker() -> None:
    view = seen(new_run(PAY, NOTIFY), living=())
    assert (view.worker, view.token, view.progress) == ("no worker yet", 0, "0/2")
    assert [shown.waits for shown in view.steps] == ["the first worker", "an earlier step"]


def test_a_run_without_a_plan_waits_for_it() -> None:
    view = seen(claimed(replace(new_run(), worker=worker())))
    assert (view.progress, view.waits, view.steps) == ("no plan yet", "the plan, of worker 1", ())


def test_a_step_in_flight_waits_for_its_worker_until_its_deadline_and_the_margin() -> None:
    run, _ = begun(running())
    view = seen(run)
    assert (view.steps[0].waits, view.steps[0].state) == (f"worker 1, at the latest {clock(70)} (in 69 s)", "InFlight")
    assert (view.steps[0].attempts, view.worker) == ("1", "worker 1 lives")
    assert waits(run, 75)[0] == "the end of worker 1: the step's time is over"


def test_a_step_in_doubt_waits_for_a_person_and_says_from_when_no_counts() -> None:
    run = lost(begun(running())[0])
    assert waits(run, 3, ()) == [f"a person: Happened or Abandon; DidNotHappen from {clock(70)} (in 67 s)", "an earlier step"]
    assert waits(run, 100, ())[0] == "a person: Happened, DidNotHappen or Abandon"
    view = seen(run, 3, ())
    assert (view.asks, view.worker, view.steps[0].rank) == (True, "worker 1 ended: Crashed", Rank.OPEN)


def test_what_is_planned_beside_a_question_waits_for_that_person_too() -> None:
    run = lost(begun(running(NOTIFY, PAY))[0])
    assert waits(run, 3, ())[0] == "a person, about pay"


def test_an_approval_waits_for_a_person_until_it_expires() -> None:
    run = asked(running(step(approval=True, approval_expires=600)))
    assert waits(run, 2) == [f"a person: Approve or Deny, at the latest {clock(601)} (in 9 min)"]
    assert waits(asked(running(step(action=Action.DELETE))), 2) == ["a person: Approve or Deny"]


def test_an_approved_step_waits_for_its_worker() -> None:
    run = asked(running(step(action=Action.DELETE)))
    question = run.ledger["pay"].question
    run, _ = catch_up(with_decision(run, f"pay.{question}", Decision(Verdict.APPROVE)), {}, at(2))
    assert waits(run, 3) == ["worker 1"]


def failed(run: Run, *, final: bool = False, after: float = 1) -> Run:
    return reports.fail(run, report(run), "Refused", "no", final=final, retry_after=None, at=at(after))[0]


def test_a_sure_failure_waits_for_its_back_off_and_then_for_the_worker() -> None:
    run = failed(begun(running(step(attempts=3, backoff=30)))[0])
    view = seen(run, 2)
    assert view.steps[0].waits == f"its back-off until {clock(31)} (in 29 s)"
    assert (view.steps[0].attempts, view.steps[0].rank) == ("1 (1/3 failed)", Rank.BEGUN)
    assert waits(run, 40) == ["worker 1"]


def test_what_failed_finally_waits_for_nothing() -> None:
    view = seen(failed(begun(running())[0]), 2)
    assert [(shown.waits, shown.rank) for shown in view.steps] == [("", Rank.SETTLED), ("worker 1", Rank.PLANNED)]


def test_what_is_done_waits_for_nothing_and_counts() -> None:
    run, _ = begun(running())
    run, _ = reports.complete(run, report(run), body({"id": "re_1"}), at(1))
    view = seen(run, 2)
    assert (view.progress, [shown.waits for shown in view.steps]) == ("1/2", ["", "worker 1"])


def test_a_read_in_doubt_waits_for_the_next_worker_not_for_a_person() -> None:
    run = lost(begun(running(LOOKUP), name="lookup")[0])
    assert waits(run, 3, ()) == ["worker 2"]


def test_an_upsert_in_doubt_waits_for_the_last_moment_of_its_old_attempt() -> None:
    run = lost(begun(running(step(action=Action.UPSERT)))[0])
    assert waits(run, 3, ()) == [f"the last moment of its old attempt, {clock(70)} (in 67 s)"]
    assert waits(run, 71, ()) == ["worker 2"]


def test_a_doubt_with_a_probe_waits_for_that_first() -> None:
    run = lost(begun(running(step(probe_give_up=300)))[0])
    assert waits(run, 3, ()) == [f"a probe by worker 2; a person from {clock(370)} (in 6 min)"]
    assert waits(run, 400, ()) == ["a person: Happened, DidNotHappen or Abandon"]


def test_the_next_worker_waits_for_its_back_off_or_for_the_end_of_the_last_one() -> None:
    run = replace(settle(running(), "WorkerLost", at(1)), worker=worker(ended_at=seconds(1), retry_at=seconds(11)))
    assert waits(run, 2, ())[0] == f"worker 2, its back-off until {clock(11)} (in 9 s)"
    assert (waits(run, 12, (1,))[0], waits(run, 12, ())[0]) == ("the end of worker 1", "worker 2")


def test_a_worker_that_was_told_to_go_is_waited_for() -> None:
    view = seen(drain(running()))
    assert (view.worker, view.steps[0].waits) == ("worker 1 lives, told to go", "the end of worker 1")


def test_a_worker_that_has_not_claimed_the_run_is_waited_for() -> None:
    run = replace(new_run(PAY), worker=worker(pod_uid=None))
    assert (waits(run), seen(run).worker, seen(run, living=()).worker) == (
        ["the claim of worker 1"],
        "worker 1 lives, has not claimed the run",
        "worker 1 starts",
    )


def test_a_worker_that_released_the_run_is_on_its_way_out() -> None:
    run = release(running(), Release.DRAINED, at(1))
    assert (seen(run).worker, waits(run)[0]) == ("worker 1 is on its way out: Drained", "the end of worker 1")
    assert (seen(run, living=()).worker, waits(run, living=())[0]) == ("worker 1 ended: Drained", "worker 2")


def test_a_suspended_run_waits_for_who_lifts_that() -> None:
    run = running()
    run = replace(run, spec=replace(run.spec, suspend=True))
    view = seen(run)
    assert (view.asks, view.waits, view.steps[0].waits) == (
        True,
        "suspend, a person: until spec.suspend is no longer set",
        "suspend: a person lifts it",
    )


def test_a_held_run_waits_for_an_answer() -> None:
    view = seen(halt_run(running(), "Odd", "the order has two owners", at(1)))
    assert view.waits == "hold, a person: Resume or Abandon (Odd: the order has two owners)"
    assert view.steps[0].waits == "hold: a person answers"


def test_a_cancelled_run_begins_nothing_and_settles_what_is_open() -> None:
    run, _ = begun(running())
    run = request_cancel(replace(run, spec=replace(run.spec, cancel=True)), at(2))
    view = seen(run, 3)
    assert view.waits == "Cancelled: it becomes Cancelled when no step is open"
    assert [shown.waits for shown in view.steps] == [f"worker 1, at the latest {clock(70)} (in 67 s)", "an earlier step"]
    assert waits(lost(run, 3), 4, ())[0].startswith("a person: ")


def test_a_run_that_is_over_waits_for_nothing_and_says_why_it_ended() -> None:
    failure = seen(fail_run(running(), "NoOrder", "there is no such order", at(1)), 2)
    assert (failure.over, failure.waits, [shown.waits for shown in failure.steps]) == (True, "NoOrder: there is no such order", ["", ""])
    success = seen(finish(running(), None, at(1)), 2)
    assert (success.over, success.waits) == (True, "Finished: skipped: pay, notify")


def test_why_there_is_no_working_worker_is_said() -> None:
    run = replace(running(), worker_problem=("Unresponsive", "no sign of life"))
    assert seen(run).waits == "Unresponsive: no sign of life"


@pytest.mark.parametrize(
    ("after", "shown"),
    [(60, "in 60 s"), (60 * 90, "in 90 min"), (3 * 3600, "06:04:05"), (30 * 3600, "2026-01-03 09:04:05")],
)
def test_times_are_of_this_zone_with_the_date_when_it_is_another_day(after: float, shown: str) -> None:
    run = replace(
        settle(running(), "WorkerLost", at(0)), worker=worker(ended_at=seconds(0), retry_at=seconds(0) + timedelta(seconds=after))
    )
    assert shown in waits(run, 0, ())[0]


def test_nothing_that_a_step_carries_is_shown() -> None:
    run, _ = begun(running(), payload={"card": "SECRET-1"})
    done, _ = reports.complete(run, report(run), body({"id": "SECRET-2"}), at(1))
    assert run.ledger["pay"].payload is not None
    assert done.ledger["pay"].result is not None
    assert "SECRET" not in repr(seen(run)) + repr(seen(lost(run), 3)) + repr(seen(done))
