"""What people decide: one answer a question, used once; approvals and their expiry (I10, R2, R6, R11)."""

from dataclasses import replace
from typing import Any

import pytest

from stepfence.core import answers, fencing, ledger, lifecycle, reports
from stepfence.core.errors import Code, Refused
from stepfence.core.fencing import Release
from stepfence.core.model import Decision, Run
from stepfence.core.summary import questions_of
from stepfence.core.words import Action, Outcome, Recovery, State, Verdict
from stepfence.schema import decode
from stepfence.testing.builders import at, begun, body, claimed, new_run, report, seconds, step, with_decision

JANE: dict[str, Any] = {"by": "jane", "reason": "seen in the dashboard"}


def doubt(**asked: Any) -> Run:
    """A payment that began at second 0 and was lost at second 20."""
    run, _ = begun(claimed(new_run(step(**asked))))
    return reports.lose(run, report(run), "TimedOut", "", at(20))[0]


def asking(**asked: Any) -> Run:
    """A payment that waits for approval since second 0; the worker has gone."""
    with pytest.raises(ledger.RefusedAfter) as refused:
        begun(claimed(new_run(step(**{"approval": True, **asked}))))
    run = refused.value.run
    assert (refused.value.code, refused.value.question) == (Code.AWAITING_APPROVAL, key(run))
    return fencing.release(run, Release.HALTED, at(1))


def key(run: Run) -> str:
    return f"pay.{run.ledger['pay'].question}"


def take(run: Run, after: float, verdict: Verdict, at_key: str | None = None, **known: Any) -> Run:
    decision = Decision(verdict, **{**JANE, **known})
    results = {key(run): body("re_9")} if verdict is Verdict.HAPPENED else {}
    return answers.catch_up(with_decision(run, at_key or key(run), decision), results, at(after))[0]


def test_happened_is_done_with_the_persons_result_and_is_recorded() -> None:
    run = take(doubt(), 30, Verdict.HAPPENED)
    entry = run.ledger["pay"]
    assert (entry.state, entry.result, entry.open, entry.question) == (State.DONE, body("re_9"), (), None)
    (given,) = entry.answers
    assert (given.verdict, given.by, given.reason, given.at, given.verified, given.refused) == (
        Verdict.HAPPENED,
        "jane",
        "seen in the dashboard",
        seconds(30),
        False,
        "",
    )


def test_did_not_happen_lets_the_step_begin_again_under_the_same_key() -> None:
    run = take(doubt(), 70, Verdict.DID_NOT_HAPPEN)
    entry = run.ledger["pay"]
    assert (entry.state, entry.failures, entry.question) == (State.FAILED, 0, None)
    again, answer = begun(claimed(run, 71), 71)
    assert (answer.outcome, answer.entry.attempt, answer.entry.key) == (ledger.Go.GO, 2, entry.key)
    assert len(again.ledger["pay"].open) == 1


@pytest.mark.parametrize("verdict", [Verdict.DID_NOT_HAPPEN, Verdict.APPROVE, Verdict.DENY, Verdict.RESUME])
def test_what_cannot_be_accepted_is_recorded_and_asked_anew(verdict: Verdict) -> None:
    before = doubt()
    run = take(before, 69, verdict)
    entry = run.ledger["pay"]
    assert entry.state is State.UNKNOWN
    assert entry.question not in (None, before.ledger["pay"].question)
    assert entry.asked_at == before.ledger["pay"].asked_at
    assert entry.answers[-1].refused
    assert take(run, 80, verdict, at_key=key(before)) == with_decision(run, key(before), Decision(verdict, **JANE))


def test_the_new_question_takes_the_right_answer() -> None:
    run = take(doubt(), 69, Verdict.DID_NOT_HAPPEN)
    run = take(run, 70, Verdict.DID_NOT_HAPPEN)
    assert run.ledger["pay"].state is State.FAILED
    assert [answer.refused != "" for answer in run.ledger["pay"].answers] == [True, False]


def test_a_result_that_cannot_be_kept_exactly_is_refused_by_name_and_asked_anew() -> None:
    document = {
        "metadata": {"namespace": "support", "name": "refund", "uid": "uid-1"},
        "spec": {"decisions": {"pay.abcdefghjk": {"verdict": "Happened", "result": {"id": "\ud800"}}}},
    }
    (decision,) = decode(document).spec.decisions.values()
    assert (decision.result, decision.problem[:18]) == (None, "result is no JSON ")
    run = doubt()
    run, given = answers.answer(run, key(run), decision, None, at(30))
    assert given.refused == decision.problem
    assert run.ledger["pay"].state is State.UNKNOWN
    held = lifecycle.halt_run(claimed(new_run(step())), "Odd", "", at(1))
    assert held.hold is not None
    assert answers.answer(held, f"run.{held.hold.question}", replace(decision, verdict=Verdict.RESUME), None, at(2))[0].hold is not None


def test_force_is_recorded() -> None:
    run = take(doubt(), 21, Verdict.DID_NOT_HAPPEN, force=True)
    assert run.ledger["pay"].state is State.FAILED
    assert run.ledger["pay"].answers[0].force


@pytest.mark.parametrize("stale", ["pay.abcdefghjk", "pay", "pay.", "other.abcdefghjk", "run.abcdefghjk", ".", ""])
def test_an_answer_to_what_is_not_asked_changes_nothing(stale: str) -> None:
    run = doubt()
    with pytest.raises(Refused) as refused:
        answers.answer(run, stale, Decision(Verdict.HAPPENED), None, at(80))
    assert refused.value.code is Code.NO_SUCH_QUESTION
    assert answers.take_decisions(with_decision(run, stale, Decision(Verdict.HAPPENED)), {}, at(80))[1] == []


def test_a_question_that_is_not_listed_yet_cannot_be_answered() -> None:
    run = doubt(probe_give_up=300)
    assert questions_of(run, at(369)) == ()
    with pytest.raises(Refused):
        answers.answer(run, key(run), Decision(Verdict.HAPPENED), None, at(369))
    assert [question.key for question in questions_of(run, at(370))] == [key(run)]
    assert take(run, 370, Verdict.HAPPENED).ledger["pay"].state is State.DONE


def test_each_doubt_has_a_question_of_its_own() -> None:
    run = doubt()
    first = key(run)
    run, _ = begun(claimed(take(run, 70, Verdict.DID_NOT_HAPPEN), 71), 71)
    run = fencing.settle(run, "WorkerLost", at(72))
    assert key(run) != first
    assert take(run, 200, Verdict.HAPPENED, at_key=first).ledger == run.ledger


def test_an_answer_to_one_question_never_touches_another() -> None:
    run = claimed(new_run(step("pay"), step("notify", Action.CREATE)))
    run, _ = begun(run)
    run, _ = begun(run, 1, "notify")
    run = fencing.settle(run, "WorkerLost", at(2))
    before = run.ledger["notify"]
    assert len({question.key for question in questions_of(run, at(3))}) == 2
    after = take(run, 80, Verdict.HAPPENED)
    assert (after.ledger["pay"].state, after.ledger["notify"]) == (State.DONE, before)


def test_abandon_settles_its_own_step_and_the_run_fails() -> None:
    run = take(doubt(), 30, Verdict.ABANDON)
    entry = run.ledger["pay"]
    assert (entry.state, entry.abandoned, run.outcome, run.reason) == (State.UNKNOWN, True, Outcome.FAILED, "Abandoned")
    truth, _ = reports.complete(run, report(run), body("re_9"), at(31))
    assert (truth.ledger["pay"].state, truth.outcome) == (State.DONE, Outcome.FAILED)


def test_after_abandon_the_run_waits_for_its_other_open_steps() -> None:
    run = claimed(new_run(step("pay"), step("notify", Action.CREATE)))
    run, _ = begun(run)
    run, _ = begun(run, 1, "notify")
    run, _ = reports.lose(run, report(run), "TimedOut", "", at(2))
    run = take(run, 3, Verdict.ABANDON)
    assert (run.outcome, run.ending is not None) == (None, True)
    run, _ = reports.complete(run, report(run, name="notify"), body(), at(4))
    assert run.outcome is Outcome.FAILED


def test_an_approved_step_performs_what_the_person_saw() -> None:
    with pytest.raises(ledger.RefusedAfter) as asked:
        begun(claimed(new_run(step(approval=True))), payload={"amount": 1})
    run = asked.value.run
    (question,) = questions_of(run, at(1))
    assert question.payload == '{"amount":1}'
    run = claimed(take(fencing.release(run, Release.HALTED, at(1)), 5, Verdict.APPROVE), 6)
    _, answer = begun(run, 6, payload={"amount": 2})
    assert (answer.outcome, answer.payload_changed) == (ledger.Go.GO, True)
    assert answer.entry.payload == body({"amount": 1})


def test_denied_is_settled() -> None:
    run = take(asking(), 5, Verdict.DENY)
    assert (run.ledger["pay"].state, run.ledger["pay"].message) == (State.DENIED, JANE["reason"])
    claimed_again, answer = begun(claimed(run, 6), 6)
    assert answer.outcome is ledger.Go.DENIED
    assert lifecycle.finish(claimed_again, None, at(7)).outcome is Outcome.SUCCEEDED


def test_a_delete_asks_though_its_plan_says_nothing() -> None:
    with pytest.raises(ledger.RefusedAfter) as asked:
        begun(claimed(new_run(step(action=Action.DELETE))))
    assert asked.value.run.ledger["pay"].state is State.AWAITING_APPROVAL


@pytest.mark.parametrize(("second", "state"), [(59, State.APPROVED), (60, State.PLANNED)])
def test_a_request_expires(second: float, state: State) -> None:
    assert take(asking(approval_expires=60), second, Verdict.APPROVE).ledger["pay"].state is state


def test_a_late_approval_hits_no_later_request() -> None:
    run = asking(approval_expires=60)
    old = key(run)
    run = claimed(fencing.lose_overdue(run, at(60)), 61)
    with pytest.raises(ledger.RefusedAfter) as asked:
        begun(run, 61)
    again = asked.value.run
    assert key(again) != old
    assert take(again, 62, Verdict.APPROVE, at_key=old).ledger == again.ledger


@pytest.mark.parametrize(("second", "goes"), [(64, True), (65, False)])
def test_an_approval_expires(second: float, goes: bool) -> None:
    run = claimed(take(asking(approval_expires=60), 5, Verdict.APPROVE), 6)
    if goes:
        assert begun(run, second)[1].outcome is ledger.Go.GO
    else:
        with pytest.raises(ledger.RefusedAfter):
            begun(run, second)
        assert fencing.lose_overdue(run, at(second)).ledger["pay"].state is State.PLANNED


def test_an_approval_covers_all_attempts_until_it_expires() -> None:
    run = claimed(take(asking(approval_expires=60, attempts=3), 5, Verdict.APPROVE), 6)
    run, _ = begun(run, 6)
    run, _ = reports.fail(run, report(run), "Declined", "", final=False, retry_after=None, at=at(7))
    run, second = begun(run, 10)
    assert (second.outcome, second.entry.attempt) == (ledger.Go.GO, 2)
    run, _ = reports.fail(run, report(run, 2), "Declined", "", final=False, retry_after=None, at=at(11))
    with pytest.raises(ledger.RefusedAfter):
        begun(run, 65)


def test_a_doubt_whose_approval_is_over_is_asked_about_and_not_rerun() -> None:
    run = claimed(take(asking(approval_expires=60, recovery=Recovery.RESEND_WITH_KEY, key_ttl=3600), 5, Verdict.APPROVE), 6)
    run, _ = begun(run, 6)
    run, _ = reports.lose(run, report(run), "TimedOut", "", at(64))
    assert questions_of(run, at(64)) == ()
    assert [question.key for question in questions_of(run, at(65))] == [key(run)]


def test_a_hold_takes_resume_or_abandon_once() -> None:
    held = lifecycle.halt_run(claimed(new_run(step())), "LooksWrong", "odd amount", at(5))
    assert held.hold is not None
    at_key = f"run.{held.hold.question}"
    wrong, given = answers.answer(held, at_key, Decision(Verdict.HAPPENED), None, at(6))
    assert given.refused
    assert wrong.hold is not None
    assert wrong.hold.question != held.hold.question
    on, given = answers.answer(wrong, f"run.{wrong.hold.question}", Decision(Verdict.RESUME), None, at(7))
    assert (on.hold, given.refused, len(on.hold_answers)) == (None, "", 2)
    over, _ = answers.answer(held, at_key, Decision(Verdict.ABANDON), None, at(8))
    assert (over.outcome, over.reason) == (Outcome.FAILED, "Abandoned")
    for stale in (at_key, f"run.{wrong.hold.question}"):
        with pytest.raises(Refused):
            answers.answer(on, stale, Decision(Verdict.ABANDON), None, at(9))


@pytest.mark.parametrize(("asked", "verdict"), [(doubt(), Verdict.DID_NOT_HAPPEN), (asking(), Verdict.APPROVE)], ids=["doubt", "approval"])
def test_what_an_older_ledger_asks_is_asked_anew_for_its_answer_may_be_one_of_before_what_was_lost(asked: Run, verdict: Verdict) -> None:
    answered = with_decision(asked, key(asked), Decision(verdict, **JANE))
    held = lifecycle.hold_behind(answered, "it is older", at(80))
    assert answers.catch_up(held, {}, at(81)) == (held, [])
    assert [question.key for question in questions_of(held, at(81))] == [f"run.{held.hold.question if held.hold else ''}", key(held)]
    assert replace(held.ledger["pay"], question=asked.ledger["pay"].question) == asked.ledger["pay"]
    assert lifecycle.hold_behind(held, "it is older", at(82, nonce="2"), anew=False) == held
    again = lifecycle.hold_behind(held, "it is older", at(82, nonce="2"))
    assert len({key(asked), key(held), key(again)}) == 3


def test_a_hold_that_is_open_when_the_ledger_turns_out_to_be_older_is_told_as_far_as_there_is_room() -> None:
    held = lifecycle.halt_run(claimed(new_run(step())), "PriceChanged", "x" * 1024, at(1))
    hold = lifecycle.hold_behind(held, "it is older", at(2)).hold
    assert hold is not None
    assert (len(hold.message), hold.message[:52], hold.message[-2:]) == (1024, "it is older. It was held before (PriceChanged: xxxxx", "x…")


def test_the_record_of_answers_to_holds_is_bounded() -> None:
    run = lifecycle.halt_run(claimed(new_run(step())), "LooksWrong", "", at(5))
    for turn in range(40):
        assert run.hold is not None
        run, _ = answers.answer(run, f"run.{run.hold.question}", Decision(Verdict.HAPPENED), None, at(6 + turn))
    assert len(run.hold_answers) == 16


def test_a_terminal_run_takes_no_answer() -> None:
    run = replace(doubt(), outcome=Outcome.FAILED)
    with pytest.raises(Refused):
        answers.answer(run, key(run), Decision(Verdict.HAPPENED), None, at(80))


def test_an_answer_is_taken_while_the_run_is_suspended_or_ends() -> None:
    run = doubt()
    assert take(replace(run, spec=replace(run.spec, suspend=True)), 30, Verdict.HAPPENED).ledger["pay"].state is State.DONE
    ended = take(lifecycle.fail_run(run, "Gone", "", at(25)), 30, Verdict.HAPPENED)
    assert (ended.ledger["pay"].state, ended.outcome) == (State.DONE, Outcome.FAILED)


def test_a_sure_failure_on_top_of_a_doubt_leaves_the_doubt_to_a_person() -> None:
    run, _ = begun(claimed(doubt(action=Action.UPSERT), 70), 70)
    run, _ = reports.fail(run, report(run, 2), "Declined", "", final=True, retry_after=None, at=at(75))
    assert run.ledger["pay"].state is State.UNKNOWN
    assert take(run, 76, Verdict.HAPPENED).ledger["pay"].state is State.DONE
