"""What happens to a run as a whole: accept, activity, end. R12 and R15 live here."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from stepfence.core.canonical import fresh_id
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Body, Ending, Entry, Hold, Run, StepSpec
from stepfence.core.plan import plan_problems, take_spec_plan
from stepfence.core.recovery import must_be_settled, needs_person
from stepfence.core.words import At, Outcome, State

__all__ = [
    "accept",
    "active_for",
    "deadline_at",
    "end_if_settled",
    "entries",
    "fail_run",
    "finish",
    "halt_run",
    "halting_steps",
    "hold_behind",
    "keep_time",
    "request_cancel",
    "require_active",
    "set_ending",
    "waits_for_people",
]

_BEHIND = "LedgerBehind"
_LONGEST_MESSAGE = 1024  # as the CRD bounds it


def entries(run: Run) -> list[tuple[StepSpec, Entry]]:
    """Return planned steps that have an entry, in plan order."""
    if run.plan is None:
        return []
    return [(step, run.ledger[step.id]) for step in run.plan.steps if step.id in run.ledger]


def halting_steps(run: Run, at: At) -> list[tuple[StepSpec, Entry]]:
    """Return the steps that wait for a person now."""
    return [(step, entry) for step, entry in entries(run) if needs_person(run, entry, step, at)]


def waits_for_people(run: Run, at: At) -> bool:
    """Whether nothing can go on before a person acts: a question is open, or the run is suspended."""
    return run.spec.suspend or run.hold is not None or bool(halting_steps(run, at))


def require_active(run: Run, at: At) -> None:
    """Raise `Refused` unless the run may begin something (R15)."""
    if run.terminal:
        raise Refused(Code.TERMINAL, f"the run is {run.outcome}: a terminal run never begins anything again")
    if run.ending is not None or run.spec.cancel:
        raise Refused(Code.CANCELLED, "the run is ending: " + (run.ending.reason if run.ending else "Cancelled"))
    end = deadline_at(run)
    if end is not None and at.now >= end:
        raise Refused(Code.CANCELLED, f"the run is past activeDeadlineSeconds={run.spec.active_deadline}")
    if run.spec.suspend:
        raise Refused(Code.HELD, "the run is suspended (spec.suspend)")
    if run.hold is not None:
        raise Refused(Code.HELD, f"the run is held: {run.hold.reason}", question=f"run.{run.hold.question}")
    if run.holder is not None and run.holder.draining:
        raise Refused(Code.DRAINING, "the worker is draining: it begins nothing new")
    for step, entry in halting_steps(run, at):
        code = Code.AWAITING_APPROVAL if entry.state is State.AWAITING_APPROVAL else Code.HALTED
        raise Refused(code, f"step {step.id!r} waits for a person", question=f"{step.id}.{entry.question}")


def accept(run: Run, at: At) -> Run:
    """Take a new run on: fix its identity and start, take the plan of the spec. Bad specs end before any worker starts."""
    if run.started_at is not None or run.terminal:
        return run
    run = replace(run, run_id=run.identity, started_at=at.now)
    problems = list(run.spec.problems)
    if run.spec.steps is not None:
        problem = plan_problems(run.spec.steps, at.settings)
        problems += [f"spec.{problem}"] if problem else []
    if problems:
        return end_if_settled(set_ending(run, Outcome.FAILED, "InvalidSpec", "; ".join(problems), at), at)
    return take_spec_plan(run, at)


def set_ending(run: Run, outcome: Outcome, reason: str, message: str, at: At) -> Run:
    """Decide the end; it becomes the outcome when nothing is open. The first decision stays."""
    if run.terminal or run.ending is not None:
        return run
    return replace(run, ending=Ending(outcome, reason, _sentence(message), at.now))


def request_cancel(run: Run, at: At) -> Run:
    """Record the first sight of `spec.cancel`: from here it is one-way."""
    if not run.spec.cancel or run.terminal or run.cancel_requested_at is not None:
        return run
    run = replace(run, cancel_requested_at=at.now)
    return set_ending(run, Outcome.CANCELLED, "Cancelled", "cancelled by spec.cancel", at)


def end_if_settled(run: Run, at: At) -> Run:
    """Turn a decided end into the outcome once no step is InFlight and no Create, Payment or Delete is in doubt (R12)."""
    if run.ending is None or run.terminal:
        return run
    for step, entry in entries(run):
        if entry.state is State.IN_FLIGHT:
            return run
        if entry.state is State.UNKNOWN and must_be_settled(step) and not entry.abandoned:
            return run
    end = run.ending
    return _end(run, end.outcome, end.reason, end.message, at)


def _end(run: Run, outcome: Outcome, reason: str, message: str, at: At) -> Run:
    run = keep_time(run, at, stopped=True)
    return replace(run, outcome=outcome, reason=reason, message=_sentence(message), finished_at=at.now, hold=None)


def _sentence(text: str) -> str:
    """Cut what people read to what the object holds: an end that is refused for its length could never be stored."""
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"


def finish(run: Run, result: Body | None, at: At) -> Run:
    """Record success: the worker's own word under the current token, with nothing open. Repeated, it changes nothing.

    Raises `Refused` CANCELLED, TERMINAL, PLAN_MISSING, HELD, NOT_SETTLED, or what stops a begin.
    """
    if run.outcome is Outcome.SUCCEEDED:
        return run
    if run.terminal:
        raise Refused(Code.TERMINAL, f"the run is {run.outcome}")
    if run.ending is not None or run.spec.cancel:
        raise Refused(Code.CANCELLED, "the run is ending: it cannot succeed any more")
    if run.plan is None:
        raise Refused(Code.PLAN_MISSING, "a run without a plan cannot finish: submit the plan first")
    if run.hold is not None:
        raise Refused(Code.HELD, f"the run is held: {run.hold.reason}", question=f"run.{run.hold.question}")
    still_open = [
        step.id for step, entry in entries(run) if entry.state in (State.IN_FLIGHT, State.UNKNOWN, State.AWAITING_APPROVAL, State.APPROVED)
    ]
    if still_open:
        require_active(run, at)
        raise Refused(Code.NOT_SETTLED, f"steps are still open: {', '.join(still_open)}")
    skipped = [step.id for step in run.plan.steps if run.ledger.get(step.id, _NEVER).state is State.PLANNED]
    message = f"skipped: {', '.join(skipped)}" if skipped else ""
    return replace(_end(run, Outcome.SUCCEEDED, "Finished", message, at), result=result)


_NEVER = Entry(state=State.PLANNED, key="")


def fail_run(run: Run, reason: str, message: str, at: At) -> Run:
    """Stop every further begin; the run is Failed when nothing is open."""
    return end_if_settled(set_ending(run, Outcome.FAILED, reason, message, at), at)


def halt_run(run: Run, reason: str, message: str, at: At) -> Run:
    """Open a question about the run itself; a hold that is already open stays."""
    if run.hold is not None:
        return run
    if run.terminal or run.ending is not None:
        raise Refused(Code.CANCELLED if not run.terminal else Code.TERMINAL, "the run is ending")
    return replace(run, hold=Hold(fresh_id(at.nonce, "run"), reason, message, at.now))


def hold_behind(run: Run, message: str, at: At, *, anew: bool = True) -> Run:
    """Hold a run whose ledger is older than what is known of it, until a person answers (I11); one that ends begins nothing more anyway.

    What is open already, a hold or a question about a step, gets a fresh id: its answer may stand in the spec, given before anybody knew
    this. So does, with `anew`, one that is held for this.
    """
    if run.terminal or run.ending is not None:
        return run
    held = run.hold
    if held is not None and held.reason == _BEHIND:
        return _ask_anew(replace(run, hold=replace(held, question=fresh_id(at.nonce, "run"))), at) if anew else run
    before = "" if held is None else f". It was held before ({held.reason}: {held.message})"
    return _ask_anew(replace(run, hold=Hold(fresh_id(at.nonce, "run"), _BEHIND, _sentence(message + before), at.now)), at)


def _ask_anew(run: Run, at: At) -> Run:
    asked = {step: entry for step, entry in run.ledger.items() if entry.question is not None}
    return replace(run, ledger={**run.ledger, **{step: replace(entry, question=fresh_id(at.nonce, step)) for step, entry in asked.items()}})


def active_for(run: Run, now: datetime) -> float:
    """Return seconds of active time: what people take is not counted."""
    return run.active_seconds + (0.0 if run.active_since is None else max(0.0, (now - run.active_since).total_seconds()))


def deadline_at(run: Run) -> datetime | None:
    """Return when the active deadline passes if nobody interrupts; None while the clock stands or there is none."""
    if run.spec.active_deadline is None or run.active_since is None or run.ending is not None:
        return None
    return run.active_since + timedelta(seconds=max(0.0, run.spec.active_deadline - run.active_seconds))


def keep_time(run: Run, at: At, *, stopped: bool = False) -> Run:
    """Start or stop the clock of active time, and decide the end when the deadline has passed."""
    if run.terminal or run.started_at is None:
        return run
    end = deadline_at(run)
    if end is not None and at.now >= end and not stopped:
        limit = run.spec.active_deadline
        run = set_ending(run, Outcome.FAILED, "DeadlineExceeded", f"active for longer than activeDeadlineSeconds={limit}", at)
    stopped = stopped or waits_for_people(run, at)
    if stopped and run.active_since is not None:
        return replace(run, active_seconds=active_for(run, at.now), active_since=None)
    if not stopped and run.active_since is None:
        return replace(run, active_since=at.now)
    return run
