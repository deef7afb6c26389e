"""What people decide: one answer a question, used once, recorded with who, when and why (I10, R2, R6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stepfence.core.canonical import digest, fresh_id
from stepfence.core.errors import Code, Refused
from stepfence.core.fencing import lose_overdue
from stepfence.core.lifecycle import end_if_settled, entries, set_ending
from stepfence.core.model import Answer, Body, Decision, Entry, Hold, Run, StepSpec
from stepfence.core.recovery import needs_person
from stepfence.core.steps import Cue, Event, advance
from stepfence.core.words import At, Outcome, State, Verdict

__all__ = ["Answered", "answer", "catch_up", "take_decisions"]

_EVENTS = {
    Verdict.APPROVE: Event.APPROVE,
    Verdict.DENY: Event.DENY,
    Verdict.HAPPENED: Event.HAPPENED,
    Verdict.DID_NOT_HAPPEN: Event.DID_NOT_HAPPEN,
    Verdict.ABANDON: Event.ABANDON,
}
_FITS = {
    State.AWAITING_APPROVAL: (Verdict.APPROVE, Verdict.DENY),
    State.UNKNOWN: (Verdict.HAPPENED, Verdict.DID_NOT_HAPPEN, Verdict.ABANDON),
}
_KEPT_HOLD_ANSWERS = 16
# What a person who names no result says: it happened, and there is nothing to tell.
_NOTHING = Body(digest("null"), 4, "null")


@dataclass(frozen=True, slots=True)
class Answered:
    """One decision that was taken: its key, the recorded answer. `answer.refused` says why it had no effect."""

    key: str
    answer: Answer


def take_decisions(run: Run, bodies: Mapping[str, Body], at: At) -> tuple[Run, list[Answered]]:
    """Apply every decision of the spec that answers an open question; `bodies` has the result of each key that brings one, as it is kept.

    A decision for a question that is not open (answered, replaced, never asked) changes nothing. One that cannot be accepted is recorded
    as refused and the question is asked anew under a fresh id, for a decision is written once and could never be corrected.
    """
    taken: list[Answered] = []
    for key, decision in sorted(run.spec.decisions.items()):
        try:
            run, recorded = answer(run, key, decision, bodies.get(key), at)
        except Refused:
            continue
        taken.append(Answered(key, recorded))
    return run, taken


def answer(run: Run, key: str, decision: Decision, result: Body | None, at: At) -> tuple[Run, Answer]:
    """Apply one decision. Raises `Refused(NO_SUCH_QUESTION)` when that question is not open."""
    step_id, _, question = key.rpartition(".")
    if run.hold is not None and step_id == "run" and question == run.hold.question and not run.terminal:
        return _answer_hold(run, run.hold, decision, at)
    for step, entry in entries(run):
        if step.id == step_id and entry.question == question and needs_person(run, entry, step, at):
            return _answer_step(run, step, entry, decision, result, at)
    raise Refused(Code.NO_SUCH_QUESTION, f"question {key!r} is not open", field=f"spec.decisions[{key}]")


def _recorded(question: str, decision: Decision, at: At, refused: str = "") -> Answer:
    return Answer(
        question=question,
        verdict=decision.verdict,
        by=decision.by,
        at=at.now,
        reason=decision.reason,
        force=decision.force,
        refused=refused,
    )


def _answer_hold(run: Run, hold: Hold, decision: Decision, at: At) -> tuple[Run, Answer]:
    fits = decision.verdict in (Verdict.RESUME, Verdict.ABANDON)
    if decision.problem or not fits:
        why = decision.problem or f"{decision.verdict} does not answer a hold: Resume or Abandon"
        recorded = _recorded(hold.question, decision, at, why)
        hold_again = replace(hold, question=fresh_id(at.nonce, "run", hold.question))
        return replace(run, hold=hold_again, hold_answers=_kept(run, recorded)), recorded
    recorded = _recorded(hold.question, decision, at)
    run = replace(run, hold=None, hold_answers=_kept(run, recorded))
    if decision.verdict is Verdict.ABANDON:
        run = end_if_settled(set_ending(run, Outcome.FAILED, "Abandoned", decision.reason or hold.reason, at), at)
    return run, recorded


def _kept(run: Run, recorded: Answer) -> tuple[Answer, ...]:
    return (*run.hold_answers, recorded)[-_KEPT_HOLD_ANSWERS:]


def _answer_step(run: Run, step: StepSpec, entry: Entry, decision: Decision, result: Body | None, at: At) -> tuple[Run, Answer]:
    question = entry.question or ""
    recorded = _recorded(question, decision, at)
    cue = Cue(
        at=at,
        result=result or _NOTHING,
        force=decision.force,
        answer=recorded,
        asked_at=at.now,
        reason=f"Decided{decision.verdict}",
        message=decision.reason,
    )
    try:
        _require_fitting(decision, entry.state)
        after = advance(entry, step, _EVENTS[decision.verdict], cue)
    except Refused as refused:
        recorded = replace(recorded, refused=refused.detail)
        after = replace(entry.with_answer(recorded), question=fresh_id(at.nonce, step.id, question))
    run = replace(run, ledger={**run.ledger, step.id: after})
    if after.abandoned and not entry.abandoned:
        run = set_ending(run, Outcome.FAILED, "Abandoned", f"step {step.id!r} was abandoned", at)
    return end_if_settled(run, at), recorded


def _require_fitting(decision: Decision, state: State) -> None:
    if decision.problem:
        raise Refused(Code.BAD_REQUEST, decision.problem)
    if decision.verdict not in _FITS[state]:
        raise Refused(Code.WRONG_VERDICT, f"{decision.verdict} does not answer a question about a step that is {state}")


def catch_up(run: Run, bodies: Mapping[str, Body], at: At) -> tuple[Run, list[Answered]]:
    """Bring a run up to the hour: overdue steps and approvals first, then what people decided."""
    return take_decisions(lose_overdue(run, at), bodies, at)
