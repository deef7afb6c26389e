"""Guards and changes of the transition table: what each row asks and does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from stepfence.core import recovery
from stepfence.core.canonical import fresh_id
from stepfence.core.model import Answer, Attempt, Body, Entry, StepSpec
from stepfence.core.words import NO_TOKEN, Action, At, Token

__all__ = ["NOT_STARTED", "Change", "Cue", "Event", "Guard", "counted"]

# Reason of a worker's `fail` of an attempt whose go came after its deadline (R8).
NOT_STARTED = "NotStarted"


class Event(StrEnum):
    """What can happen to a step."""

    BEGIN = "begin"
    COMPLETE = "complete"
    FAIL = "fail"
    LOSE = "lose"
    PROBE_HAPPENED = "probe: happened"
    PROBE_DID_NOT = "probe: did not happen"
    PROBE_CANNOT_TELL = "probe: cannot tell"
    APPROVE = "approve"
    DENY = "deny"
    EXPIRE = "expire"
    HAPPENED = "decision: happened"
    DID_NOT_HAPPEN = "decision: did not happen"
    ABANDON = "decision: abandon"


@dataclass(frozen=True, slots=True)
class Cue:
    """What an event brings along. `attempt` names the attempt of a report (R5); `asked_at` is when a "did not happen" was asked (R1)."""

    at: At
    token: Token = NO_TOKEN
    attempt: int = 0
    request_id: str = ""
    pod_uid: str = ""
    payload: Body | None = None
    result: Body | None = None
    reason: str = ""
    message: str = ""
    final: bool = False
    retry_at: datetime | None = None
    give_up: bool = False
    asked_at: datetime | None = None
    force: bool = False
    answer: Answer | None = None


Guard = Callable[[Entry, StepSpec, Cue], bool]
Change = Callable[[Entry, StepSpec, Cue], Entry]


# --- guards: pure questions, named as the table reads -----------------------------------------------------------------


def approval_due(entry: Entry, step: StepSpec, cue: Cue) -> bool:
    return recovery.approval_due(entry, step, cue.at.now)


def attempts_left(entry: Entry, step: StepSpec, cue: Cue) -> bool:
    return not entry.final and entry.failures < step.attempts and (entry.retry_at is None or entry.retry_at <= cue.at.now)


def attempts_left_approval_due(entry: Entry, step: StepSpec, cue: Cue) -> bool:
    return attempts_left(entry, step, cue) and approval_due(entry, step, cue)


def may_begin_again(entry: Entry, step: StepSpec, cue: Cue) -> bool:
    moment = recovery.may_begin_again_at(entry, step, cue.at)
    return moment is not None and moment <= cue.at.now


def is_last_attempt(entry: Entry, step: StepSpec, cue: Cue) -> bool:
    return cue.attempt == entry.attempt and entry.recorded(cue.attempt) is not None


def is_recorded_alone(entry: Entry, step: StepSpec, cue: Cue) -> bool:
    until = recovery.may_land_until(entry, step, cue.at.settings, besides=cue.attempt)
    return entry.recorded(cue.attempt) is not None and (until is None or cue.at.now >= until)


def none_may_land(entry: Entry, step: StepSpec, cue: Cue) -> bool:
    until = recovery.may_land_until(entry, step, cue.at.settings)
    return until is None or cue.at.now >= until


def older_unresolved(entry: Entry, step: StepSpec, cue: Cue) -> bool:
    return is_last_attempt(entry, step, cue) and any(a.number != cue.attempt for a in entry.unresolved)


def asked_late_enough(entry: Entry, step: StepSpec, cue: Cue) -> bool:
    return is_last_attempt(entry, step, cue) and cue.asked_at is not None and recovery.counts(entry, step, cue.asked_at, cue.at.settings)


def counts_or_forced(entry: Entry, step: StepSpec, cue: Cue) -> bool:
    return cue.force or recovery.counts(entry, step, cue.at.now, cue.at.settings)


def request_expired(entry: Entry, step: StepSpec, cue: Cue) -> bool:
    if step.approval_expires is None or entry.asked_at is None:
        return False
    return cue.at.now >= entry.asked_at + timedelta(seconds=step.approval_expires)


def request_open(entry: Entry, step: StepSpec, cue: Cue) -> bool:
    return not request_expired(entry, step, cue)


def approval_expired(entry: Entry, step: StepSpec, cue: Cue) -> bool:
    return not recovery.approval_covers(entry, step, cue.at.now)


# --- changes: the next entry, its state excepted ----------------------------------------------------------------------


def start(entry: Entry, step: StepSpec, cue: Cue) -> Entry:
    number = entry.attempt + 1
    begun = Attempt(
        number=number,
        token=cue.token,
        request_id=cue.request_id,
        pod_uid=cue.pod_uid,
        started_at=cue.at.now,
        deadline=cue.at.now + timedelta(seconds=step.timeout),
    )
    # A Read leaves nothing behind, so a rerun resolves its older attempts; every other type keeps them until resolved (R9).
    older = () if step.action is Action.READ else entry.unresolved
    return replace(
        entry,
        attempt=number,
        token=cue.token,
        payload=entry.payload or cue.payload,
        first_started_at=entry.first_started_at or cue.at.now,
        retry_at=None,
        reason="",
        message="",
        question=None,
        asked_at=None,
        gave_up=False,
        open=(*older, begun),
    )


def ask(entry: Entry, step: StepSpec, cue: Cue) -> Entry:
    return replace(
        entry,
        token=max(entry.token, cue.token),
        payload=entry.payload or cue.payload,
        question=fresh_id(cue.at.nonce, step.id),
        asked_at=cue.at.now,
        approved_at=None,
    )


def lost(entry: Entry, step: StepSpec, cue: Cue) -> Entry:
    return replace(
        entry,
        question=fresh_id(cue.at.nonce, step.id),
        asked_at=cue.at.now,
        reason=cue.reason,
        message=cue.message,
        gave_up=False,
    )


def counted(reason: str) -> int:
    """Whether a failure uses up an attempt: one that was never performed, for its go came too late, does not."""
    return 0 if reason == NOT_STARTED else 1


def fail_last(entry: Entry, step: StepSpec, cue: Cue) -> Entry:
    marked = tuple(replace(a, failed=True) if a.number == cue.attempt else a for a in entry.open)
    return replace(
        entry,
        open=marked,
        failures=entry.failures + counted(cue.reason),
        final=cue.final,
        retry_at=cue.retry_at,
        reason=cue.reason,
        message=cue.message,
        finished_at=cue.at.now,
    )


def fail_but_doubt_remains(entry: Entry, step: StepSpec, cue: Cue) -> Entry:
    failed = replace(fail_last(entry, step, cue), finished_at=None)
    return lost(failed, step, cue)


def did_not(entry: Entry, step: StepSpec, cue: Cue) -> Entry:
    # No attempt is forgotten before the next begin: should the answer prove wrong, a recorded success is still welcome (R13).
    resolved = tuple(replace(a, failed=True) for a in entry.open)
    said = answered(entry, step, cue)
    return replace(said, open=resolved, question=None, asked_at=None, retry_at=None, finished_at=cue.at.now, reason=cue.reason)


def succeed(entry: Entry, step: StepSpec, cue: Cue) -> Entry:
    payload = None if entry.payload is None else replace(entry.payload, text=None, record=None)
    return replace(
        answered(entry, step, cue),
        payload=payload,
        result=cue.result,
        finished_at=cue.at.now,
        retry_at=None,
        reason="",
        message="",
        question=None,
        asked_at=None,
        open=(),
    )


def cannot_tell(entry: Entry, step: StepSpec, cue: Cue) -> Entry:
    return replace(entry, gave_up=entry.gave_up or cue.give_up, message=cue.message or entry.message)


def answered(entry: Entry, step: StepSpec, cue: Cue) -> Entry:
    return entry if cue.answer is None else entry.with_answer(cue.answer)


def approved(entry: Entry, step: StepSpec, cue: Cue) -> Entry:
    return replace(answered(entry, step, cue), approved_at=cue.at.now, question=None, asked_at=None)


def denied(entry: Entry, step: StepSpec, cue: Cue) -> Entry:
    return replace(answered(entry, step, cue), question=None, asked_at=None, finished_at=cue.at.now, reason="Denied", message=cue.message)


def expired(entry: Entry, step: StepSpec, cue: Cue) -> Entry:
    return replace(entry, question=None, asked_at=None, approved_at=None)


def abandoned(entry: Entry, step: StepSpec, cue: Cue) -> Entry:
    return replace(answered(entry, step, cue), abandoned=True)
