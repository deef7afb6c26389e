"""Who may settle a step whose outcome is unknown, and from when "it did not happen" counts (rules R1, R2, R10)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from stepfence.core.model import Entry, Run, StepSpec
from stepfence.core.words import HALTING_ACTIONS, Action, At, Recovery, Settings, State

__all__ = [
    "MAX_UNRESOLVED",
    "approval_covers",
    "approval_due",
    "counts",
    "did_not_happen_counts_from",
    "gives_up_at",
    "machine_may_settle",
    "may_begin_again_at",
    "may_land_until",
    "must_be_settled",
    "needs_person",
    "resend_allowed",
]

# Beginnings of one step that nobody could resolve: after so many, more of the same tells nothing new, and a person is asked.
MAX_UNRESOLVED = 16


def did_not_happen_counts_from(entry: Entry, step: StepSpec, settings: Settings) -> datetime | None:
    """Return when "it did not happen" begins to count (R1); None when nothing is unresolved, so that it counts at once.

    For every unresolved attempt: its pod confirmed terminal plus `settleSeconds`, or its deadline plus margin, whichever is first.
    """
    moments = []
    for attempt in entry.unresolved:
        moment = attempt.deadline + timedelta(seconds=settings.margin)
        if attempt.terminated_at is not None:
            moment = min(moment, attempt.terminated_at + timedelta(seconds=step.settle))
        moments.append(moment)
    return max(moments, default=None)


def counts(entry: Entry, step: StepSpec, asked_at: datetime, settings: Settings) -> bool:
    """Whether a "did not happen" that was asked at `asked_at` counts (R1)."""
    moment = did_not_happen_counts_from(entry, step, settings)
    return moment is None or asked_at >= moment


def may_land_until(entry: Entry, step: StepSpec, settings: Settings, *, besides: int | None = None) -> datetime | None:
    """Return until when an attempt `besides` that one (or any of several) may still overwrite what a later step sets (V16).

    None when no success can come too early: other types count their effects, and a provider that honours keys drops the second request.
    """
    if step.action is not Action.UPSERT or step.recovery is Recovery.RESEND_WITH_KEY:
        return None
    others = tuple(attempt for attempt in entry.unresolved if attempt.number != besides)
    if besides is None and len(others) < 2:
        return None
    return did_not_happen_counts_from(replace(entry, open=others), step, settings)


def approval_due(entry: Entry, step: StepSpec, now: datetime) -> bool:
    """Whether a person must approve before the next beginning: a Delete always, others when the plan says so."""
    return (step.approval or step.action is Action.DELETE) and not approval_covers(entry, step, now)


def approval_covers(entry: Entry, step: StepSpec, now: datetime) -> bool:
    """Whether a given approval still covers an attempt that begins now (R11)."""
    if not (step.approval or step.action is Action.DELETE):
        return True
    if entry.approved_at is None:
        return False
    return step.approval_expires is None or now < entry.approved_at + timedelta(seconds=step.approval_expires)


def resend_allowed(entry: Entry, step: StepSpec, at: At) -> bool:
    """Whether a resend under the same key surely lands inside the provider's key lifetime (R10)."""
    if step.recovery is not Recovery.RESEND_WITH_KEY or step.key_ttl is None or entry.first_started_at is None:
        return False
    latest = at.now + timedelta(seconds=step.timeout + at.settings.margin)
    return latest < entry.first_started_at + timedelta(seconds=step.key_ttl)


def may_begin_again_at(entry: Entry, step: StepSpec, at: At) -> datetime | None:
    """Return from when a machine may begin this Unknown step again, or None when it may not at all (I4).

    A Read at once, an Upsert after R1 (V16), a resend at once while the key lives. Sure failures on top of an older doubt use up the
    step's attempts and its back-off as they do without one.
    """
    if entry.final or entry.failures >= step.attempts or not approval_covers(entry, step, at.now):
        return None
    if step.action is not Action.READ and len(entry.unresolved) >= MAX_UNRESOLVED:
        return None
    soonest = entry.retry_at or at.now
    if resend_allowed(entry, step, at):
        return soonest
    if step.recovery is not Recovery.RERUN:
        return None
    if step.action is Action.READ:
        return soonest
    return max(soonest, did_not_happen_counts_from(entry, step, at.settings) or at.now)


def gives_up_at(entry: Entry, step: StepSpec, settings: Settings) -> datetime | None:
    """Return when probing gives up by itself: `giveUpAfterSeconds` after the latest moment at which R1 must hold."""
    if step.recovery is not Recovery.PROBE or step.probe_give_up is None:
        return None
    ends = [attempt.deadline + timedelta(seconds=settings.margin) for attempt in entry.unresolved]
    start = max(ends, default=entry.asked_at)
    return None if start is None else start + timedelta(seconds=step.probe_give_up)


def machine_may_settle(run: Run, entry: Entry, step: StepSpec, at: At) -> bool:
    """Whether a worker may still settle this Unknown step, so that no person is asked (R6)."""
    if entry.abandoned or run.ending is not None or run.terminal:
        return False
    if step.recovery is Recovery.PROBE:
        give_up = gives_up_at(entry, step, at.settings)
        return not entry.gave_up and give_up is not None and at.now < give_up
    return may_begin_again_at(entry, step, at) is not None


def must_be_settled(step: StepSpec) -> bool:
    """Whether no terminal phase may leave this step Unknown (R12): by type alone, whatever its recovery."""
    return step.action in HALTING_ACTIONS


def needs_person(run: Run, entry: Entry, step: StepSpec, at: At) -> bool:
    """Whether this step waits for a person now: it is listed in `status.questions` and halts the run (R6)."""
    if run.terminal:
        return False
    if entry.state is State.AWAITING_APPROVAL:
        return run.ending is None
    if entry.state is not State.UNKNOWN or entry.abandoned:
        return False
    if run.ending is not None:
        return must_be_settled(step)
    return not machine_may_settle(run, entry, step, at)
