"""Each hole of the step protocol, walked move by move: closed by its rule, and open again when that rule alone is taken out.

A story returns whether the harm could be done.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stepfence.core import answers, fencing, ledger, lifecycle, recovery, reports, summary
from stepfence.core.errors import Refused
from stepfence.core.fencing import HolderFact
from stepfence.core.ledger import Go
from stepfence.core.model import Decision, Run
from stepfence.core.words import Action, Recovery, State, Verdict
from stepfence.testing.builders import at, begun, body, claimed, new_run, report, step, with_decision
from tests.protocol import rules
from tests.protocol.rules import TakenOut
from tests.protocol.world import Rules

NO = Decision(Verdict.DID_NOT_HAPPEN, by="jane")
Story = Callable[[Rules], bool]


def refused(call: Callable[[], object]) -> bool:
    """Whether the core says no."""
    try:
        call()
    except Refused:
        return True
    return False


def paying(**asked: Any) -> Run:
    """A run whose only step is a payment that began at second 0 (time-out 60, settle 10, margin 10)."""
    run, _ = begun(claimed(new_run(step(**asked))))
    return run


def key(run: Run, name: str = "pay") -> str:
    return f"{name}.{run.ledger[name].question}"


def state(run: Run, name: str = "pay") -> State:
    return run.ledger[name].state


def said(run: Run, after: float, decision: Decision = NO, at_key: str | None = None) -> Run:
    """The run after the controller has seen that decision."""
    changed, _ = answers.catch_up(with_decision(run, at_key or key(run), decision), {}, at(after))
    return changed


def lost(run: Run, after: float, attempt: int = 1) -> Run:
    changed, _ = reports.lose(run, report(run, attempt), "TimedOut", "", at(after))
    return changed


def v1_a_request_lands_after_its_pod_was_seen_to_end(out: Rules) -> bool:
    run = fencing.settle(fencing.note_terminated(paying(), "pod-1-uid", at(5).now), "WorkerLost", at(5))
    return state(said(run, 6)) is State.FAILED  # the request may land until second 15


def v2_an_early_no_of_a_probe_is_believed_later(out: Rules) -> bool:
    run = lost(paying(probe_give_up=300), 20)
    asked_early = lambda: reports.probe(  # noqa: E731
        run, report(run), Verdict.DID_NOT_HAPPEN, None, asked_at=at(21).now, give_up=False, at=at(75)
    )
    return not refused(asked_early)


def v2_an_early_no_of_a_person_waits_in_the_spec(out: Rules) -> bool:
    run = lost(paying(), 20)
    question = summary.questions_of(run, at(21))[0]
    if out.admission and not question.accepts_did_not_happen:
        return False  # the API server refuses the patch
    early = with_decision(run, question.key, NO)
    seen_early, _ = answers.catch_up(early, {}, at(21))
    seen_later, _ = answers.catch_up(seen_early, {}, at(75))
    return state(seen_later) is State.FAILED


def v3_two_calls_of_one_claim_begin_the_same_step(out: Rules) -> bool:
    run = paying()
    return not refused(lambda: begun(run, 1, request_id="the other call"))


def v3_two_replicas_write_what_they_decided_on_the_same_version(out: Rules) -> bool:
    run = claimed(new_run(step()))
    first, told_first = begun(run, request_id="one")
    second_reads = first if out.compare_and_swap else run  # on a conflict it reads again and decides again
    try:
        _, told_second = begun(second_reads, request_id="two")
    except Refused:
        return False
    return told_first.outcome is told_second.outcome is Go.GO


def v4_a_sure_failure_of_a_resend_forgets_the_first_attempt(out: Rules) -> bool:
    run = lost(paying(recovery=Recovery.RESEND_WITH_KEY, key_ttl=3600), 20)
    run, _ = begun(run, 21)
    run, _ = reports.fail(run, report(run, 2), "Refused", "", final=False, retry_after=None, at=at(22))
    return state(run) is State.FAILED


def v5_a_late_copy_of_an_older_failure_hits_the_attempt_in_flight(out: Rules) -> bool:
    run = paying(attempts=3)
    run, _ = reports.fail(run, report(run), "Refused", "", final=False, retry_after=None, at=at(1))
    run, _ = begun(run, 5)
    late = lambda: reports.fail(run, report(run), "Refused", "", final=False, retry_after=None, at=at(6))  # noqa: E731
    return not refused(late)


def v6_the_second_answer_to_one_question_hits_the_next(out: Rules) -> bool:
    run = lost(paying(), 20)
    old = key(run)
    run = said(run, 80)
    run, _ = begun(run, 81)
    run = lost(run, 100, attempt=2)
    again = said(run, 160, at_key=old)
    return state(again) is State.FAILED


def v7_a_later_patch_keeps_an_earlier_force(out: Rules) -> bool:
    run = lost(paying(), 20)
    first = key(run)
    run = said(run, 21, replace(NO, force=True))
    run, _ = begun(run, 22)
    run = lost(run, 30, attempt=2)
    merged = replace(NO, force=run.spec.decisions[first].force) if key(run) == first else NO
    return state(said(run, 31, merged)) is State.FAILED


def v8_a_repeated_begin_is_told_to_go_after_the_time_out(out: Rules) -> bool:
    run, _ = begun(claimed(new_run(step())), request_id="r1")  # the reply is lost
    return not refused(lambda: begun(run, 65, request_id="r1"))


def v9_the_end_of_another_pod_is_taken_for_the_end_of_this_one(out: Rules) -> bool:
    run = claimed(lost(paying(recovery=Recovery.RESEND_WITH_KEY, key_ttl=300), 1), 2, pod="pod-2")
    run, _ = begun(run, 3, pod="pod-2")
    run = fencing.settle(fencing.note_terminated(run, "pod-2-uid", at(5).now), "WorkerLost", at(5))
    entry, planned = run.ledger["pay"], ledger.planned(run, "pay")
    return recovery.counts(entry, planned, at(20).now, at().settings)  # pod-1 may send until second 70


def v10_a_resend_lands_after_the_life_of_the_key(out: Rules) -> bool:
    run = lost(paying(recovery=Recovery.RESEND_WITH_KEY, key_ttl=100), 20)
    return not refused(lambda: begun(run, 31))  # time-out and margin end at second 101


def v11_an_approved_step_begins_days_later(out: Rules) -> bool:
    run = asked_and_approved(expires=60)
    run = claimed(run, 100)
    return not refused(lambda: begun(run, 100))


def asked_and_approved(expires: int) -> Run:
    run = claimed(new_run(step(approval_expires=expires)))
    try:
        begun(run)
    except ledger.RefusedAfter as asked:
        run = fencing.release(asked.run, fencing.Release.HALTED, at(1))
    approved, _ = answers.answer(run, key(run), Decision(Verdict.APPROVE), None, at(2))
    return approved


def v11_an_approval_arrives_for_a_request_that_expired(out: Rules) -> bool:
    run = claimed(new_run(step(approval_expires=60)))
    try:
        begun(run)
    except ledger.RefusedAfter as asked:
        run = asked.run
    late, _ = answers.answer(run, key(run), Decision(Verdict.APPROVE), None, at(60))
    return state(late) is State.APPROVED


def v12_a_cancelled_run_ends_while_a_step_is_open(out: Rules) -> bool:
    run = paying()
    run = lifecycle.request_cancel(replace(run, spec=replace(run.spec, cancel=True)), at(5))
    return lifecycle.end_if_settled(run, at(5)).terminal


def v13_the_true_answer_of_a_zombie_is_refused(out: Rules) -> bool:
    run = claimed(paying(), 20, pod="pod-2")  # the token has grown, the step is Unknown
    late = lambda: reports.complete(run, report(run, token=1), body("re_9"), at(25))  # noqa: E731
    return refused(late)


def v13_the_true_answer_after_the_workers_own_time_out_is_refused(out: Rules) -> bool:
    run = lost(paying(), 60)
    return refused(lambda: reports.complete(run, report(run), body("re_9"), at(61)))


def v14_a_hung_call_keeps_its_step_for_ever(out: Rules) -> bool:
    run, _ = answers.catch_up(paying(), {}, at(3600))
    return not summary.questions_of(run, at(3600))


@pytest.mark.parametrize("why", ["held", "cancelling", "draining", "halted", "ending"])
@pytest.mark.parametrize("rule", ["real", "without rule"])
def test_v15_begin_is_refused_while_the_run_is(why: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = claimed(new_run(step("pay"), step("other", Action.CREATE)))
    stopped = {
        "held": lambda: replace(run, spec=replace(run.spec, suspend=True)),
        "cancelling": lambda: replace(run, spec=replace(run.spec, cancel=True)),
        "draining": lambda: fencing.drain(run),
        "halted": lambda: lost(begun(run)[0], 1),
        "ending": lambda: lifecycle.fail_run(lost(begun(run)[0], 1), "Gone", "", at(1)),
    }[why]()
    if rule == "without rule":
        rules.active_run(monkeypatch)
    assert refused(lambda: begun(stopped, 2, "other")) is (rule == "real")


def v16_an_upsert_is_rerun_before_its_first_request_can_have_landed(out: Rules) -> bool:
    run = lost(claimed_upsert(), 20)
    _, again = begun(run, 21)
    return again.outcome is Go.GO


def claimed_upsert() -> Run:
    run, _ = begun(claimed(new_run(step(action=Action.UPSERT), step("later", Action.UPSERT))))
    return run


def v17_an_older_success_is_done_while_a_newer_attempt_may_land(out: Rules) -> bool:
    run = lost(claimed_upsert(), 60)
    run = claimed(run, 70, pod="pod-2", holder=HolderFact.OVER)
    run, again = begun(run, 70, pod="pod-2")
    assert again.outcome is Go.GO
    run, _ = reports.lose(run, report(run, 2, pod="pod-2"), "TimedOut", "", at(75))
    zombie = report(run, 1, token=1)
    early = lambda: reports.complete(run, zombie, body(), at(80))  # noqa: E731
    after, _ = reports.complete(run, zombie, body(), at(140))
    assert state(after) is State.DONE, "once the newer one can no longer land it is welcome"
    return not refused(early)


def v18_a_worker_that_has_sent_says_that_it_surely_did_not(out: Rules) -> bool:
    run = paying(attempts=3, backoff=0)
    if not out.sure:
        run, _ = reports.fail(run, report(run), "KeyError", "a task still sends", final=False, retry_after=None, at=at(2))
    else:
        run = lost(run, 2)
    return not refused(lambda: begun(run, 3))


STORIES: tuple[tuple[Story, TakenOut], ...] = (
    (v1_a_request_lands_after_its_pod_was_seen_to_end, rules.settle_time),
    (v2_an_early_no_of_a_probe_is_believed_later, rules.early_no_of_a_probe),
    (v2_an_early_no_of_a_person_waits_in_the_spec, rules.early_no_of_a_person),
    (v3_two_calls_of_one_claim_begin_the_same_step, rules.one_request_id),
    (v3_two_replicas_write_what_they_decided_on_the_same_version, rules.compare_and_swap),
    (v4_a_sure_failure_of_a_resend_forgets_the_first_attempt, rules.older_doubt),
    (v5_a_late_copy_of_an_older_failure_hits_the_attempt_in_flight, rules.named_attempt),
    (v6_the_second_answer_to_one_question_hits_the_next, rules.fresh_question_ids),
    (v7_a_later_patch_keeps_an_earlier_force, rules.fresh_question_ids),
    (v8_a_repeated_begin_is_told_to_go_after_the_time_out, rules.no_go_after_the_deadline),
    (v9_the_end_of_another_pod_is_taken_for_the_end_of_this_one, rules.pod_of_each_attempt),
    (v10_a_resend_lands_after_the_life_of_the_key, rules.life_of_the_key),
    (v11_an_approved_step_begins_days_later, rules.expiry),
    (v11_an_approval_arrives_for_a_request_that_expired, rules.expiry_of_requests),
    (v12_a_cancelled_run_ends_while_a_step_is_open, rules.settle_before_the_end),
    (v13_the_true_answer_of_a_zombie_is_refused, rules.welcome_truth),
    (v13_the_true_answer_after_the_workers_own_time_out_is_refused, rules.welcome_truth),
    (v14_a_hung_call_keeps_its_step_for_ever, rules.overdue_is_lost),
    (v16_an_upsert_is_rerun_before_its_first_request_can_have_landed, rules.settle_before_an_upsert_is_rerun),
    (v17_an_older_success_is_done_while_a_newer_attempt_may_land, rules.success_alone),
    (v18_a_worker_that_has_sent_says_that_it_surely_did_not, rules.surely_not_is_sure),
)


@pytest.mark.parametrize(("story", "rule"), STORIES, ids=[story.__name__ for story, _ in STORIES])
def test_closed_by_its_rule(story: Story, rule: TakenOut) -> None:
    assert not story(Rules())


@pytest.mark.parametrize(("story", "rule"), STORIES, ids=[story.__name__ for story, _ in STORIES])
def test_open_without_its_rule(story: Story, rule: TakenOut, monkeypatch: pytest.MonkeyPatch) -> None:
    assert story(rule(monkeypatch))
