"""Begin a step, or answer what is recorded of it. Rules R3, R8, R15."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from stepfence.core.canonical import step_key
from stepfence.core.errors import Code, Refused
from stepfence.core.fencing import overdue, require_token
from stepfence.core.lifecycle import halt_run, require_active
from stepfence.core.model import Body, Entry, Run, StepSpec
from stepfence.core.recovery import did_not_happen_counts_from, machine_may_settle, may_begin_again_at
from stepfence.core.steps import Cue, Event, advance
from stepfence.core.words import At, Recovery, State, StepId, Token

__all__ = ["Begin", "BeginAnswer", "Go", "RefusedAfter", "begin", "entry_of", "payload_lost", "planned", "put", "until"]

# Reason of the hold of a run of which a step would perform a payload that is not there any more.
PAYLOAD_LOST = "PayloadLost"


class Go(StrEnum):
    """What `begin` answers when it does not refuse."""

    GO = "Go"
    DONE = "Done"
    FAILED = "Failed"
    DENIED = "Denied"
    WAIT = "Wait"
    PROBE = "Probe"


@dataclass(frozen=True, slots=True)
class Begin:
    """A worker asks to begin a step. `request_id` is random for each call of the SDK (R3)."""

    step: str
    token: int
    pod_uid: str
    request_id: str
    payload: Body


@dataclass(frozen=True, slots=True)
class BeginAnswer:
    """`time_left` and `retry_after` in seconds; `payload_changed` when the recorded payload differs from the one brought."""

    outcome: Go
    entry: Entry
    step: StepSpec
    time_left: float = 0.0
    retry_after: float = 0.0
    payload_changed: bool = False


def planned(run: Run, step_id: str) -> StepSpec:
    """Return the planned step; raise `Refused` PLAN_MISSING or UNKNOWN_STEP (I6)."""
    if run.plan is None:
        raise Refused(Code.PLAN_MISSING, "the run has no plan yet: submit it before the first step")
    step = run.plan.step(step_id)
    if step is None:
        raise Refused(Code.UNKNOWN_STEP, f"step {step_id!r} is not in the plan", field="step")
    return step


def entry_of(run: Run, step: StepSpec) -> Entry:
    """Return the entry, or the one that a step has before its first beginning."""
    return run.ledger.get(step.id) or Entry(state=State.PLANNED, key=step_key(run.identity, step.id))


def put(run: Run, step_id: StepId, entry: Entry) -> Run:
    """Return the run with that entry. Entries are never removed (I5)."""
    return replace(run, ledger={**run.ledger, step_id: entry})


def begin(run: Run, call: Begin, at: At) -> tuple[Run, BeginAnswer]:
    """Begin a step, or answer what is recorded of it. Intent is in the returned run: save it before saying Go (I1).

    Raises `Refused`: FENCED, TERMINAL, CANCELLED, HELD, DRAINING, HALTED, AWAITING_APPROVAL, BUSY, PAYLOAD_CHANGED, PLAN_MISSING,
    UNKNOWN_STEP. A refusal of the kind HALTED or AWAITING_APPROVAL may come with a run to save: see `begin_or_halt`.
    """
    require_token(run, call.token, call.pod_uid)
    step = planned(run, call.step)
    entry = entry_of(run, step)
    if run.terminal:
        require_active(run, at)
    changed = entry.payload is not None and entry.payload.digest != call.payload.digest
    if changed and run.plan is not None and run.plan.appended(step.id):
        raise Refused(Code.PAYLOAD_CHANGED, f"step {step.id!r} was recorded with another payload", field="payload")
    settled = _settled(entry, step)
    if settled is not None:
        return run, BeginAnswer(settled, entry, step, payload_changed=changed)
    if entry.state is State.IN_FLIGHT:
        repeated = _in_flight(entry, step, call, changed, at)
        if repeated is not None:
            return run, repeated
        cue = Cue(at=at, attempt=entry.attempt, reason="DeadlineExceeded")
        entry = advance(entry, step, Event.LOSE, cue)
        run = put(run, step.id, entry)
    return _begin_now(run, entry, step, call, changed, at)


def _settled(entry: Entry, step: StepSpec) -> Go | None:
    if entry.state is State.DONE:
        return Go.DONE
    if entry.state is State.DENIED:
        return Go.DENIED
    if entry.state is State.FAILED and (entry.final or entry.failures >= step.attempts):
        return Go.FAILED
    return None


def _in_flight(entry: Entry, step: StepSpec, call: Begin, changed: bool, at: At) -> BeginAnswer | None:
    """Answer a begin of a step that is InFlight; None when its time is over, so that it must be lost first (R3, R8)."""
    last = entry.recorded(entry.attempt)
    if last is None or overdue(entry, at):
        return None
    left = (last.deadline - at.now).total_seconds()
    if last.request_id == call.request_id and last.pod_uid == call.pod_uid and last.token == call.token:
        if left > 0:
            return BeginAnswer(Go.GO, entry, step, time_left=left, payload_changed=changed)
        # No go past the deadline (R8). Who asks again has had none, and can say so of this attempt before it becomes a doubt.
        late = f"attempt {entry.attempt} of step {step.id!r} is past its deadline"
        raise Refused(Code.BEGIN_EXPIRED, late, retry_after=max(1.0, left + at.settings.margin), attempt=entry.attempt)
    raise Refused(
        Code.BUSY,
        f"attempt {entry.attempt} of step {step.id!r} is in flight",
        retry_after=max(1.0, left + at.settings.margin),
    )


def _begin_now(run: Run, entry: Entry, step: StepSpec, call: Begin, changed: bool, at: At) -> tuple[Run, BeginAnswer]:
    try:
        require_active(run, at)
    except Refused as refused:
        # What was lost on the way here must be saved all the same, so the refusal comes with the run.
        raise RefusedAfter(refused, run) from refused
    if entry.state is State.UNKNOWN and step.recovery is Recovery.PROBE and machine_may_settle(run, entry, step, at):
        wait = until(did_not_happen_counts_from(entry, step, at.settings), at)
        return run, BeginAnswer(Go.PROBE, entry, step, retry_after=wait, payload_changed=changed)
    moment = may_begin_again_at(entry, step, at) if entry.state is State.UNKNOWN else entry.retry_at
    if moment is not None and moment > at.now:
        return run, BeginAnswer(Go.WAIT, entry, step, retry_after=until(moment, at), payload_changed=changed)
    if any(attempt.request_id == call.request_id for attempt in entry.open):
        # A late copy: its attempt is over, and nobody waits for a new one under this id (R3).
        return run, BeginAnswer(Go.WAIT, entry, step, retry_after=1.0, payload_changed=changed)
    cue = Cue(at=at, token=Token(call.token), request_id=call.request_id, pod_uid=call.pod_uid, payload=call.payload)
    after = advance(entry, step, Event.BEGIN, cue)
    run = put(run, step.id, after)
    if after.state is State.AWAITING_APPROVAL:
        asked = Refused(Code.AWAITING_APPROVAL, f"step {step.id!r} waits for approval", question=f"{step.id}.{after.question}")
        raise RefusedAfter(asked, run)
    return run, BeginAnswer(Go.GO, after, step, time_left=float(step.timeout), payload_changed=changed)


def payload_lost(run: Run, call: Begin, answer: BeginAnswer, at: At) -> RefusedAfter:
    """Return the refusal of a begin (of `run` as it was before) whose recorded payload is lost: no other one may be performed for it.

    A doubt that a probe should resolve is left to a person, since the probe does not know what to look for. Any other step holds the run.
    """
    step, entry = answer.step, answer.entry
    recorded = entry.payload.digest if entry.payload is not None else "unknown"
    lost = f"the recorded payload of step {step.id!r} ({recorded}) is lost or damaged"
    if answer.outcome is Go.PROBE:
        entry = advance(entry, step, Event.PROBE_CANNOT_TELL, Cue(at=at, attempt=entry.attempt, message=lost, give_up=True))
        return RefusedAfter(Refused(Code.HALTED, lost, question=f"{step.id}.{entry.question}"), put(run, step.id, entry))
    why = f"{lost}, and the worker brings another one ({call.payload.digest}), which must not be performed in its place"
    what = "Restore the record, or run a worker that brings the recorded payload, and answer Resume; or answer Abandon"
    run = halt_run(run, PAYLOAD_LOST, f"{why}. {what}", at)
    question = None if run.hold is None else f"run.{run.hold.question}"
    return RefusedAfter(Refused(Code.HELD, why, question=question), run)


class RefusedAfter(Refused):
    """A refusal that comes with a run that must be saved first: a step was lost, or a question was opened."""

    def __init__(self, refused: Refused, run: Run) -> None:
        super().__init__(
            refused.code,
            refused.detail,
            field=refused.field,
            retry_after=refused.retry_after,
            question=refused.question,
        )
        self.run = run


def until(moment: datetime | None, at: At) -> float:
    """Return seconds until that moment, 0 when it has passed or there is none."""
    return 0.0 if moment is None else max(0.0, (moment - at.now).total_seconds())
