"""THE transition table of a step. Docs and tests are generated from it; nothing else changes a state."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepfence.core import moves
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Entry, StepSpec
from stepfence.core.moves import Change, Cue, Event, Guard
from stepfence.core.words import State

__all__ = ["TABLE", "Cue", "Event", "Row", "advance"]


@dataclass(frozen=True, slots=True)
class Row:
    """In `source`, on `event`, if `guard` holds: `change` the entry, which is then in `target`. The first row that fits is taken."""

    source: State
    event: Event
    guard: Guard | None
    target: State
    change: Change
    rule: str


S, E = State, Event
TABLE: tuple[Row, ...] = (
    Row(
        S.PLANNED,
        E.BEGIN,
        moves.approval_due,
        S.AWAITING_APPROVAL,
        moves.ask,
        "a Delete, or a step with `approval`, waits for a person",
    ),
    Row(S.PLANNED, E.BEGIN, None, S.IN_FLIGHT, moves.start, "intent is durable before the action (I1)"),
    Row(S.APPROVED, E.BEGIN, moves.approval_due, S.AWAITING_APPROVAL, moves.ask, "an approval that expired is asked anew (R11)"),
    Row(S.APPROVED, E.BEGIN, None, S.IN_FLIGHT, moves.start, "an approved step performs the payload that the person saw"),
    Row(
        S.FAILED,
        E.BEGIN,
        moves.attempts_left_approval_due,
        S.AWAITING_APPROVAL,
        moves.ask,
        "an approval covers all attempts until it expires",
    ),
    Row(S.FAILED, E.BEGIN, moves.attempts_left, S.IN_FLIGHT, moves.start, "attempts left: only sure failures count"),
    Row(
        S.UNKNOWN,
        E.BEGIN,
        moves.may_begin_again,
        S.IN_FLIGHT,
        moves.start,
        "Read; Upsert after R1; ResendWithKey inside the key's life (R10)",
    ),
    Row(S.AWAITING_APPROVAL, E.APPROVE, moves.request_open, S.APPROVED, moves.approved, "a person's answer, used once (I10)"),
    Row(S.AWAITING_APPROVAL, E.DENY, None, S.DENIED, moves.denied, "settled: the agent may go on by another step"),
    Row(
        S.AWAITING_APPROVAL,
        E.EXPIRE,
        moves.request_expired,
        S.PLANNED,
        moves.expired,
        "an entry that goes back keeps its counters (R11)",
    ),
    Row(S.APPROVED, E.EXPIRE, moves.approval_expired, S.PLANNED, moves.expired, "an approval does not last for ever (R11)"),
    Row(S.IN_FLIGHT, E.COMPLETE, moves.is_last_attempt, S.DONE, moves.succeed, "one durable result a step (I5)"),
    Row(
        S.IN_FLIGHT,
        E.FAIL,
        moves.older_unresolved,
        S.UNKNOWN,
        moves.fail_but_doubt_remains,
        "fail cannot clear an older doubt (R4)",
    ),
    Row(S.IN_FLIGHT, E.FAIL, moves.is_last_attempt, S.FAILED, moves.fail_last, "the worker knows that nothing happened"),
    Row(
        S.IN_FLIGHT,
        E.LOSE,
        moves.is_last_attempt,
        S.UNKNOWN,
        moves.lost,
        "new claim, release, deadline plus margin, lost holder, or the worker's word",
    ),
    Row(S.UNKNOWN, E.COMPLETE, moves.is_recorded_alone, S.DONE, moves.succeed, "positive evidence is always welcome (R13)"),
    Row(S.FAILED, E.COMPLETE, moves.is_last_attempt, S.DONE, moves.succeed, "positive evidence, if no later attempt began (R13)"),
    Row(
        S.PLANNED,
        E.COMPLETE,
        moves.is_last_attempt,
        S.DONE,
        moves.succeed,
        "positive evidence for a failed attempt whose approval expired",
    ),
    Row(
        S.AWAITING_APPROVAL,
        E.COMPLETE,
        moves.is_last_attempt,
        S.DONE,
        moves.succeed,
        "positive evidence while the next attempt is being asked",
    ),
    Row(S.APPROVED, E.COMPLETE, moves.is_last_attempt, S.DONE, moves.succeed, "positive evidence before the next attempt began"),
    Row(S.DENIED, E.COMPLETE, moves.is_last_attempt, S.DONE, moves.succeed, "positive evidence for the attempt before the denial"),
    Row(S.UNKNOWN, E.PROBE_HAPPENED, moves.is_last_attempt, S.DONE, moves.succeed, "the provider knows the key"),
    Row(S.UNKNOWN, E.PROBE_DID_NOT, moves.asked_late_enough, S.FAILED, moves.did_not, "counts only if asked after R1 held (R2)"),
    Row(
        S.UNKNOWN,
        E.PROBE_CANNOT_TELL,
        moves.is_last_attempt,
        S.UNKNOWN,
        moves.cannot_tell,
        "back-off until it gives up; then a person is asked",
    ),
    Row(S.UNKNOWN, E.HAPPENED, moves.none_may_land, S.DONE, moves.succeed, "a person says so, with the result"),
    Row(S.UNKNOWN, E.DID_NOT_HAPPEN, moves.counts_or_forced, S.FAILED, moves.did_not, "from when it counts (R1), or by force"),
    Row(S.UNKNOWN, E.ABANDON, None, S.UNKNOWN, moves.abandoned, "marked; the run is Failed when no other step is open (R12)"),
)


def advance(entry: Entry, step: StepSpec, event: Event, cue: Cue) -> Entry:
    """Return the entry after `event`; raise `Refused` when no row of the table fits. Pure."""
    for row in TABLE:
        if row.source is entry.state and row.event is event and (row.guard is None or row.guard(entry, step, cue)):
            return replace(row.change(entry, step, cue), state=row.target)
    raise Refused(
        _refusal(entry, event, cue),
        f"step {step.id!r} is {entry.state} (attempt {entry.attempt}): {event} does not apply",
    )


def _refusal(entry: Entry, event: Event, cue: Cue) -> Code:
    if event in (Event.COMPLETE, Event.FAIL, Event.LOSE) or event.startswith("probe"):
        return Code.ATTEMPT_MISMATCH if cue.attempt != entry.attempt else Code.NOT_IN_FLIGHT
    if event in (Event.APPROVE, Event.DENY, Event.HAPPENED, Event.ABANDON):
        return Code.NO_SUCH_QUESTION
    return Code.TOO_EARLY if event in (Event.DID_NOT_HAPPEN, Event.EXPIRE) else Code.HALTED
