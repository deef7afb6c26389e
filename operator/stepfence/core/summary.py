"""What people read of a run: phase, conditions, progress, questions. Derived, never read back as state."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from stepfence.core.lifecycle import entries, halting_steps
from stepfence.core.model import Entry, Run, StepSpec
from stepfence.core.recovery import counts
from stepfence.core.words import At, State, Verdict

__all__ = ["Condition", "Phase", "Question", "QuestionKind", "Summary", "new_doubts", "phase_of", "questions_of", "summarize"]


class Phase(StrEnum):
    """Stored for people."""

    PENDING = "Pending"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    DRAINING = "Draining"
    AWAITING_APPROVAL = "AwaitingApproval"
    NEEDS_RECONCILIATION = "NeedsReconciliation"
    HELD = "Held"
    CANCELLING = "Cancelling"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


class QuestionKind(StrEnum):
    """What a person is asked."""

    RECONCILE = "Reconcile"
    APPROVE = "Approve"
    HOLD = "Hold"


@dataclass(frozen=True, slots=True)
class Question:
    """One question that only a person can answer. `patch` is a whole command, ready to paste."""

    key: str
    step: str
    kind: QuestionKind
    since: datetime
    reason: str
    message: str
    patch: str
    payload: str | None = None
    payload_digest: str | None = None
    worker_terminated: bool = False
    accepts_did_not_happen: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """A Kubernetes condition without its times."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything derived that is stored for people."""

    phase: Phase
    progress: str
    open_step: str
    questions: tuple[Question, ...]
    conditions: tuple[Condition, ...]


def summarize(run: Run, at: At, *, full: bool = False) -> Summary:
    """Derive what people read; `full` when the ledger is at 80 % of what an object may hold."""
    questions = questions_of(run, at)
    phase = phase_of(run, at)
    return Summary(phase, _progress(run), _open_step(run, questions), questions, _conditions(run, phase, questions, full))


def phase_of(run: Run, at: At) -> Phase:
    """Precedence: terminal, NeedsReconciliation, Cancelling, Held, AwaitingApproval, Draining, Running, Scheduled, Pending."""
    if run.outcome is not None:
        return Phase(run.outcome.value)
    waiting = [entry.state for _, entry in halting_steps(run, at)]
    if State.UNKNOWN in waiting:
        return Phase.NEEDS_RECONCILIATION
    if run.ending is not None or run.spec.cancel:
        return Phase.CANCELLING
    if run.hold is not None or run.spec.suspend:
        return Phase.HELD
    if waiting:
        return Phase.AWAITING_APPROVAL
    if run.holder is not None:
        return Phase.DRAINING if run.holder.draining else Phase.RUNNING
    if run.worker is not None:
        return Phase.SCHEDULED
    return Phase.PENDING


def questions_of(run: Run, at: At) -> tuple[Question, ...]:
    """Return the open questions, the hold first, then steps in plan order."""
    found: list[Question] = []
    if run.hold is not None and not run.terminal:
        key = f"run.{run.hold.question}"
        found.append(
            Question(
                key,
                "run",
                QuestionKind.HOLD,
                run.hold.since,
                run.hold.reason,
                run.hold.message,
                _patch(run, key, Verdict.RESUME, at),
            )
        )
    found += [_question(run, step, entry, at) for step, entry in halting_steps(run, at)]
    return tuple(found)


def _question(run: Run, step: StepSpec, entry: Entry, at: At) -> Question:
    approve = entry.state is State.AWAITING_APPROVAL
    key = f"{step.id}.{entry.question}"
    seen = bool(entry.unresolved) and all(attempt.terminated_at is not None for attempt in entry.unresolved)
    return Question(
        key=key,
        step=step.id,
        kind=QuestionKind.APPROVE if approve else QuestionKind.RECONCILE,
        since=entry.asked_at or at.now,
        reason="ApprovalDue" if approve else entry.reason or "OutcomeUnknown",
        message=_ask_text(step, entry, approve),
        patch=_patch(run, key, Verdict.APPROVE if approve else Verdict.HAPPENED, at),
        payload=entry.payload.text if entry.payload else None,
        payload_digest=entry.payload.digest if entry.payload else None,
        worker_terminated=seen,
        accepts_did_not_happen=not approve and counts(entry, step, at.now, at.settings),
    )


def _ask_text(step: StepSpec, entry: Entry, approve: bool) -> str:
    if approve:
        return f"may step {step.id!r} ({step.action}) be performed? Answer Approve or Deny"
    return (
        f"did step {step.id!r} ({step.action}, attempt {entry.attempt}, key {entry.key}) happen? Ask the provider, then answer "
        "Happened (with its result), DidNotHappen or Abandon"
    )


def _patch(run: Run, key: str, verdict: Verdict, at: At) -> str:
    body = json.dumps({"spec": {"decisions": {key: {"verdict": verdict.value}}}}, separators=(",", ":"))
    command = f"{at.settings.command} -n {run.namespace}"
    return f"{command} patch agentruns.stepfence.dev {run.name} --field-manager=stepfence --type=merge -p '{body}'"


def _progress(run: Run) -> str:
    done = sum(1 for entry in run.ledger.values() if entry.state is State.DONE)
    return f"{done}/{len(run.plan.steps) if run.plan else 0}"


def _open_step(run: Run, questions: tuple[Question, ...]) -> str:
    asked = [question.step for question in questions if question.kind is not QuestionKind.HOLD]
    open_states = (State.IN_FLIGHT, State.UNKNOWN, State.AWAITING_APPROVAL)
    moving = [step.id for step, entry in entries(run) if entry.state in open_states and not run.terminal]
    return next(iter([*asked, *moving]), "")


_KSTATUS = {
    Phase.SUCCEEDED: ("True", "False", "False"),
    Phase.FAILED: ("False", "False", "True"),
    Phase.CANCELLED: ("False", "False", "True"),
    Phase.NEEDS_RECONCILIATION: ("False", "False", "True"),
    Phase.HELD: ("Unknown", "False", "False"),
}


def _conditions(run: Run, phase: Phase, questions: tuple[Question, ...], full: bool) -> tuple[Condition, ...]:
    ready, reconciling, stalled = _KSTATUS.get(phase, ("Unknown", "True", "False"))
    reason = run.reason or phase.value if run.terminal else phase.value
    message = run.message if run.terminal else _why(run, questions)
    first = questions[0] if questions else None
    decision = (
        Condition("DecisionNeeded", "True", f"{first.kind}Needed", f"{first.message}. Answer with: {first.patch}")
        if first
        else Condition("DecisionNeeded", "False", "NoOpenQuestion", "")
    )
    finished = "True" if run.terminal else "False"
    return (
        Condition("Ready", ready, reason, message),
        Condition("Reconciling", reconciling, reason, ""),
        Condition("Stalled", stalled, reason, message if stalled == "True" else ""),
        Condition("Finished", finished, reason if run.terminal else "NotFinished", run.message),
        _worker_ready(run),
        decision,
        Condition("LedgerWritable", "False", "NearlyFull", "the ledger is at 80 % of what the object may hold")
        if full
        else Condition("LedgerWritable", "True", "RoomLeft", ""),
    )


def _why(run: Run, questions: tuple[Question, ...]) -> str:
    if questions:
        return questions[0].message
    if run.ending is not None:
        return f"{run.ending.reason}: {run.ending.message}"
    return "suspended by spec.suspend" if run.spec.suspend else ""


def _worker_ready(run: Run) -> Condition:
    if run.worker_problem is not None and not run.terminal:
        return Condition("WorkerReady", "False", *run.worker_problem)
    if run.holder is not None and not run.terminal:
        return Condition("WorkerReady", "True", "Claimed", f"pod {run.holder.pod} holds the run")
    if run.worker is not None and run.worker.ended_at is None and not run.terminal:
        return Condition("WorkerReady", "False", "Starting", f"worker {run.worker.number} has not claimed the run yet")
    reason = run.worker.exit_reason if run.worker is not None and run.worker.exit_reason else "NoWorker"
    return Condition("WorkerReady", "False", reason, run.worker.message if run.worker else "")


def new_doubts(before: Run, after: Run) -> list[StepSpec]:
    """Return the steps that became Unknown from one version of a run to another."""
    old = {step: entry.state for step, entry in before.ledger.items()}
    return [step for step, entry in entries(after) if entry.state is State.UNKNOWN and old.get(step.id) is not State.UNKNOWN]
