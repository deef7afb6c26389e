"""Claims and what ends them: one active token a run (I2, I3, I8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from stepfence.core.errors import Code, Refused
from stepfence.core.lifecycle import end_if_settled, entries, require_active
from stepfence.core.model import Entry, Holder, Run, StepSpec
from stepfence.core.steps import Cue, Event, advance
from stepfence.core.words import At, State, Token

__all__ = [
    "Claim",
    "HolderFact",
    "Release",
    "claim",
    "drain",
    "lose_all",
    "lose_overdue",
    "note_terminated",
    "overdue",
    "release",
    "require_token",
    "settle",
    "vouches",
]


class HolderFact(StrEnum):
    """What is known of the holder's pod."""

    ALIVE = "Alive"
    OVER = "Over"  # terminal, gone, or lost beyond its lease and grace


class Release(StrEnum):
    """Why a worker let go; for people, and for the back-off: drained and halted workers never count."""

    DRAINED = "Drained"
    HALTED = "Halted"
    FINISHED = "Finished"
    FAILED = "Failed"
    ERROR = "Error"


@dataclass(frozen=True, slots=True)
class Claim:
    """The pod that claims, by its API-checked identity, and the random id of the call."""

    pod: str
    pod_uid: str
    request_id: str
    lease: int


def require_token(run: Run, token: int, pod_uid: str) -> None:
    """Raise `Refused(FENCED)` unless the caller is the holder under the current token (I2)."""
    if token != run.token:
        raise Refused(
            Code.FENCED,
            f"token {token} is not the current one ({run.token}): another worker claimed the run, or it was settled",
        )
    if run.holder is None or run.holder.pod_uid != pod_uid:
        raise Refused(Code.FENCED, "this pod does not hold the run: claim it again")


def vouches(run: Run, pod_uid: str) -> bool:
    """Whether the run itself names that pod: as its holder, or in an attempt that is kept (R9, R13). It was its worker when it claimed.

    So its word is heard when the Job that made it is gone, as that of a worker on a lost node, or one that a person deleted.
    """
    if run.holder is not None and run.holder.pod_uid == pod_uid:
        return True
    return any(attempt.pod_uid == pod_uid for entry in run.ledger.values() for attempt in entry.open)


def claim(run: Run, call: Claim, holder: HolderFact, at: At) -> tuple[Run, bool]:
    """Give the run to the calling pod under the next token, every InFlight step turned Unknown in the same write (I3).

    Returns the run and whether anything changed: a repeated request id gets the recorded claim. Raises `Refused`: TERMINAL, CANCELLED,
    HELD, HALTED, AWAITING_APPROVAL, or HOLDER_ALIVE while another pod that holds the run is alive.
    """
    current = run.holder
    if current is not None and current.request_id == call.request_id and current.pod_uid == call.pod_uid:
        return run, False
    if run.terminal:
        raise Refused(Code.TERMINAL, f"the run is {run.outcome}")
    if current is not None and current.pod_uid != call.pod_uid and holder is HolderFact.ALIVE:
        raise Refused(Code.HOLDER_ALIVE, f"pod {current.pod!r} holds the run and is alive", retry_after=5)
    require_active(replace(run, holder=None), at)
    taken = Holder(
        pod=call.pod,
        pod_uid=call.pod_uid,
        request_id=call.request_id,
        claimed_at=at.now,
        renewed_at=at.now,
        lease=call.lease,
        # A pod that was told to go is still going when another of its processes claims (R15).
        draining=current is not None and current.pod_uid == call.pod_uid and current.draining,
    )
    # A word about an earlier claim, or an end noted after a release, says nothing about a worker that claims again.
    worker = run.worker
    if worker is not None:
        worker = replace(worker, pod_uid=call.pod_uid, exit_reason="", message="", retry_at=None, ended_at=None)
    return replace(lose_all(run, "WorkerLost", at, token=Token(run.token + 1)), holder=taken, worker=worker), True


def settle(run: Run, reason: str, at: At) -> Run:
    """Fence out a holder that is over, by the same write as a claim, without starting a pod to find out."""
    if run.holder is None:
        return run
    return end_if_settled(replace(lose_all(run, reason, at, token=Token(run.token + 1)), holder=None), at)


def release(run: Run, reason: Release, at: At) -> Run:
    """Let the run go: what is InFlight becomes Unknown in the same write (R13); the token stays, with nobody to use it."""
    # Why the controller told the pod to go stays: a worker that hung and then drained was not simply drained.
    worker = run.worker if run.worker is None else replace(run.worker, exit_reason=run.worker.exit_reason or reason.value)
    return end_if_settled(replace(lose_all(run, "Released", at), holder=None, worker=worker), at)


def drain(run: Run) -> Run:
    """Tell the holder to go: it begins nothing new. Repeating changes nothing."""
    if run.holder is None or run.holder.draining:
        return run
    return replace(run, holder=replace(run.holder, draining=True))


def lose_all(run: Run, reason: str, at: At, token: Token | None = None) -> Run:
    """Turn every InFlight step Unknown, each with a fresh question id (I3, R6); with `token`, grow the fencing token too."""
    inflight = [(step, entry) for step, entry in entries(run) if entry.state is State.IN_FLIGHT]
    run = _lose(run, inflight, reason, at)
    return run if token is None else replace(run, token=token)


def lose_overdue(run: Run, at: At) -> Run:
    """Turn InFlight steps Unknown that are past their deadline plus margin; expire approvals (R3, R11)."""
    late = [(step, entry) for step, entry in entries(run) if entry.state is State.IN_FLIGHT and overdue(entry, at)]
    run = _lose(run, late, "DeadlineExceeded", at)
    ledger = dict(run.ledger)
    for step, entry in entries(run):
        if entry.state in (State.AWAITING_APPROVAL, State.APPROVED):
            try:
                ledger[step.id] = advance(entry, step, Event.EXPIRE, Cue(at=at))
            except Refused:
                continue
    return run if ledger == run.ledger else replace(run, ledger=ledger)


def overdue(entry: Entry, at: At) -> bool:
    """Whether the last attempt is past its deadline plus margin."""
    last = entry.recorded(entry.attempt)
    return last is None or (at.now - last.deadline).total_seconds() >= at.settings.margin


def _lose(run: Run, which: Iterable[tuple[StepSpec, Entry]], reason: str, at: At) -> Run:
    lost: dict[str, Entry] = {
        step.id: advance(entry, step, Event.LOSE, Cue(at=at, attempt=entry.attempt, reason=reason, message="")) for step, entry in which
    }
    return replace(run, ledger={**run.ledger, **lost}) if lost else run


def note_terminated(run: Run, pod_uid: str, when: datetime) -> Run:
    """Record that the kubelet reported every container of that pod terminated, on each attempt that it began (R1, R9)."""
    ledger = dict(run.ledger)
    for step_id, entry in run.ledger.items():
        marked = tuple(
            replace(attempt, terminated_at=when) if attempt.pod_uid == pod_uid and attempt.terminated_at is None else attempt
            for attempt in entry.open
        )
        if marked != entry.open:
            ledger[step_id] = replace(entry, open=marked)
    return run if ledger == run.ledger else replace(run, ledger=ledger)
