"""Each rule taken out by itself, named after what it closes. A fixture does it with `monkeypatch`, so that it is back afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from stepfence.core import answers, fencing, ledger, lifecycle, moves, recovery, reports, steps, summary
from stepfence.core.errors import Code, Refused
from stepfence.core.ledger import Begin, BeginAnswer, Go
from stepfence.core.model import Entry, Run, StepSpec
from stepfence.core.moves import Cue, Guard
from stepfence.core.steps import Event
from stepfence.core.words import Action, At, Recovery, Settings, State
from tests.protocol.world import Rules

Patch = pytest.MonkeyPatch
TakenOut = Callable[[Patch], Rules]


def _everywhere(patch: Patch, name: str, function: Callable[..., Any]) -> None:
    """Replace a function in every module of the core that uses it."""
    for module in (answers, fencing, ledger, lifecycle, moves, recovery, reports, summary):
        if hasattr(module, name):
            patch.setattr(module, name, function)


def _guard(patch: Patch, event: Event, old: Guard | None, new: Guard | None, *sources: State) -> None:
    """Replace a guard in the rows of an event."""
    table = tuple(
        replace(row, guard=new) if row.event is event and row.guard is old and (not sources or row.source in sources) else row
        for row in steps.TABLE
    )
    if table == steps.TABLE:
        raise AssertionError(f"no row of {event} has that guard")
    patch.setattr(steps, "TABLE", table)


def settle_time(patch: Patch) -> Rules:
    """V1, R1: a confirmed end counts at once."""

    def counts_from(entry: Entry, step: StepSpec, settings: Settings) -> datetime | None:
        moments = [attempt.terminated_at or attempt.deadline + timedelta(seconds=settings.margin) for attempt in entry.unresolved]
        return max(moments, default=None)

    _everywhere(patch, "did_not_happen_counts_from", counts_from)
    return Rules()


def early_no_of_a_probe(patch: Patch) -> Rules:
    """V2, R2: a probe's "no" counts from when it is reported, not from when it was asked."""

    def late(entry: Entry, step: StepSpec, cue: Cue) -> bool:
        return moves.is_last_attempt(entry, step, cue) and recovery.counts(entry, step, cue.at.now, cue.at.settings)

    def probe(run: Run, report: Any, verdict: Any, result: Any, *, asked_at: datetime, give_up: bool, at: At) -> Any:
        return real(run, report, verdict, result, asked_at=at.now, give_up=give_up, at=at)

    real = reports.probe
    _guard(patch, Event.PROBE_DID_NOT, moves.asked_late_enough, late)
    patch.setattr(reports, "probe", probe)
    return Rules()


def early_no_of_a_person(patch: Patch) -> Rules:
    """V2, R2: an early answer is admitted and waits in the spec until it counts."""
    real = answers.answer

    def patient(run: Run, key: str, decision: Any, result: Any, at: At) -> Any:
        changed, recorded = real(run, key, decision, result, at)
        if recorded.refused:
            raise Refused(Code.TOO_EARLY, "kept for later")
        return changed, recorded

    patch.setattr(answers, "answer", patient)
    return Rules(admission=False)


def one_request_id(patch: Patch) -> Rules:
    """V3, R3: any caller under the token is told to go on with the attempt in flight."""

    def in_flight(entry: Entry, step: StepSpec, call: Begin, changed: bool, at: At) -> BeginAnswer:
        return BeginAnswer(Go.GO, entry, step, time_left=1.0)

    patch.setattr(ledger, "_in_flight", in_flight)
    return Rules()


def compare_and_swap(patch: Patch) -> Rules:
    """V3, R3: a write does not check the version that it was decided on."""
    return Rules(compare_and_swap=False)


def older_doubt(patch: Patch) -> Rules:
    """V4, R4: a sure failure clears older attempts too."""
    _guard(patch, Event.FAIL, moves.older_unresolved, lambda *_: False)
    return Rules()


def named_attempt(patch: Patch) -> Rules:
    """V5, R5: a report is about whatever attempt is in flight."""

    def latest(cue: Cue, entry: Entry) -> Cue:
        return replace(cue, attempt=entry.attempt)

    real = steps.advance

    def advance(entry: Entry, step: StepSpec, event: Event, cue: Cue) -> Entry:
        return real(entry, step, event, latest(cue, entry))

    for module in (reports, fencing, answers, ledger):
        patch.setattr(module, "advance", advance)
    return Rules()


def fresh_question_ids(patch: Patch) -> Rules:
    """V6, V7, R6: a step's question has the same id each time."""
    _everywhere(patch, "fresh_id", lambda *_: "same")
    return Rules(admission=False)


def no_go_after_the_deadline(patch: Patch) -> Rules:
    """V8, R8: a repeated begin is told to go with the whole time-out, whenever it comes."""
    real = ledger._in_flight

    def in_flight(entry: Entry, step: StepSpec, call: Begin, changed: bool, at: At) -> BeginAnswer | None:
        last = entry.recorded(entry.attempt)
        if last is not None and last.request_id == call.request_id:
            return BeginAnswer(Go.GO, entry, step, time_left=float(step.timeout))
        return real(entry, step, call, changed, at)

    patch.setattr(ledger, "_in_flight", in_flight)
    return Rules()


def pod_of_each_attempt(patch: Patch) -> Rules:
    """V9, R9: one pod's end is taken for the end of all."""

    def note(run: Run, pod_uid: str, when: datetime) -> Run:
        ended = {
            name: replace(entry, open=tuple(replace(a, terminated_at=a.terminated_at or when) for a in entry.open))
            for name, entry in run.ledger.items()
        }
        return replace(run, ledger=ended)

    patch.setattr(fencing, "note_terminated", note)
    return Rules()


def life_of_the_key(patch: Patch) -> Rules:
    """V10, R10: a resend is allowed up to the last second of the key's life."""

    def allowed(entry: Entry, step: StepSpec, at: At) -> bool:
        if step.recovery is not Recovery.RESEND_WITH_KEY or step.key_ttl is None or entry.first_started_at is None:
            return False
        return at.now < entry.first_started_at + timedelta(seconds=step.key_ttl)

    patch.setattr(recovery, "resend_allowed", allowed)
    return Rules()


def expiry(patch: Patch) -> Rules:
    """V11, R11: an approval, once given, holds for ever."""

    def covers(entry: Entry, step: StepSpec, now: datetime) -> bool:
        return entry.approved_at is not None or not (step.approval or step.action is Action.DELETE)

    patch.setattr(recovery, "approval_covers", covers)
    return Rules()


def expiry_of_requests(patch: Patch) -> Rules:
    """V11, R11: an expired request can still be approved."""
    _guard(patch, Event.APPROVE, moves.request_open, None)
    return Rules()


def settle_before_the_end(patch: Patch) -> Rules:
    """V12, R12: a decided end is the outcome at once."""

    def end_now(run: Run, at: At) -> Run:
        if run.ending is None or run.terminal:
            return run
        return lifecycle._end(run, run.ending.outcome, run.ending.reason, run.ending.message, at)

    _everywhere(patch, "end_if_settled", end_now)
    return Rules()


def welcome_truth(patch: Patch) -> Rules:
    """V13, R13: a success is only heard while its attempt is in flight."""
    table = tuple(row for row in steps.TABLE if row.event is not Event.COMPLETE or row.source is State.IN_FLIGHT)
    patch.setattr(steps, "TABLE", table)
    return Rules()


def overdue_is_lost(patch: Patch) -> Rules:
    """V14, R14: a hung call keeps its step for as long as its pod lives."""
    _everywhere(patch, "lose_overdue", lambda run, _: run)
    return Rules(delete_overdue_pods=False)


def active_run(patch: Patch) -> Rules:
    """V15, R15: begin does not ask whether the run is active."""
    patch.setattr(ledger, "require_active", lambda *_: None)
    return Rules()


def settle_before_an_upsert_is_rerun(patch: Patch) -> Rules:
    """V16, R1: an Upsert is rerun at once, as a Read is."""
    real = recovery.may_begin_again_at

    def at_once(entry: Entry, step: StepSpec, at: At) -> datetime | None:
        return None if real(entry, step, at) is None else at.now

    _everywhere(patch, "may_begin_again_at", at_once)
    return Rules()


def surely_not_is_sure(patch: Patch) -> Rules:
    """V18: a worker that has sent says that it surely did not: a thread still sends, a redirect was answered, a stop was raised."""
    return Rules(sure=False)


def success_alone(patch: Patch) -> Rules:
    """V17: a success of an Upsert's older attempt is Done at once, though the newer one is still on its way."""
    _everywhere(patch, "may_land_until", lambda *_, **__: None)
    return Rules()
