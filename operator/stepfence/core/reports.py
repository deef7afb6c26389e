"""A worker's word on one attempt of one step: complete, fail, lose, probe. Rules R2, R4, R5 and R13."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from stepfence.core.errors import Code, Refused
from stepfence.core.fencing import require_token
from stepfence.core.ledger import entry_of, planned, put, until
from stepfence.core.lifecycle import end_if_settled
from stepfence.core.model import Body, Entry, Run
from stepfence.core.moves import counted
from stepfence.core.recovery import did_not_happen_counts_from, machine_may_settle, may_land_until
from stepfence.core.steps import Cue, Event, advance
from stepfence.core.words import At, State, Verdict

__all__ = ["Report", "complete", "fail", "lose", "probe", "probe_leave"]

# A provider may ask for a pause; none is waited for longer than a day.
_LONGEST_PAUSE = 86400.0
_PROBED = {Verdict.HAPPENED: Event.PROBE_HAPPENED, Verdict.DID_NOT_HAPPEN: Event.PROBE_DID_NOT}


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says of one attempt of one step (R5)."""

    step: str
    attempt: int
    token: int
    pod_uid: str


def complete(run: Run, report: Report, result: Body | None, at: At) -> tuple[Run, Entry]:
    """Record that the attempt succeeded: also under an old token, also in a terminal run (R13). Final (I5).

    Raises `Refused` ATTEMPT_MISMATCH or NOT_IN_FLIGHT when the attempt is not recorded as one that may still have succeeded, FENCED when
    the caller is neither the attempt's pod nor the holder.
    """
    step = planned(run, report.step)
    entry = entry_of(run, step)
    if entry.state is State.DONE:
        return run, entry
    recorded = entry.recorded(report.attempt)
    if recorded is not None and recorded.pod_uid != report.pod_uid:
        require_token(run, report.token, report.pod_uid)
    if recorded is not None and entry.state is State.UNKNOWN:
        wait = until(may_land_until(entry, step, at.settings, besides=report.attempt), at)
        if wait > 0:
            detail = f"another attempt of step {step.id!r} may still land and undo what a later step sets: say it again, or let it be rerun"
            raise Refused(Code.BUSY, detail, retry_after=wait)
    after = advance(entry, step, Event.COMPLETE, Cue(at=at, attempt=report.attempt, result=result))
    return end_if_settled(_progress(put(run, step.id, after)), at), after


def _progress(run: Run) -> Run:
    return run if run.worker is None or run.worker.progressed else replace(run, worker=replace(run.worker, progressed=True))


def fail(run: Run, report: Report, reason: str, message: str, *, final: bool, retry_after: float | None, at: At) -> tuple[Run, Entry]:
    """Record that the attempt surely did not happen. Repeated after it took effect, it answers the record."""
    step = planned(run, report.step)
    entry = entry_of(run, step)
    recorded = entry.recorded(report.attempt)
    if recorded is not None and recorded.failed and entry.state is not State.IN_FLIGHT:
        return run, entry
    require_token(run, report.token, report.pod_uid)
    pause = min(max(retry_after or 0.0, min(step.backoff * 2.0 ** min(entry.failures, 12), 3600.0)), _LONGEST_PAUSE)
    spent = final or entry.failures + counted(reason) >= step.attempts
    retry_at = None if spent else at.now + timedelta(seconds=pause)
    cue = Cue(at=at, attempt=report.attempt, reason=reason, message=message, final=final, retry_at=retry_at)
    after = advance(entry, step, Event.FAIL, cue)
    run = put(run, step.id, after)
    run = _progress(run) if spent and after.state is State.FAILED else run
    return end_if_settled(run, at), after


def lose(run: Run, report: Report, reason: str, message: str, at: At) -> tuple[Run, Entry]:
    """Record that nobody can tell whether the attempt happened. Repeated after it took effect, it answers the record."""
    step = planned(run, report.step)
    entry = entry_of(run, step)
    if entry.state is State.UNKNOWN and report.attempt == entry.attempt:
        return run, entry
    require_token(run, report.token, report.pod_uid)
    after = advance(entry, step, Event.LOSE, Cue(at=at, attempt=report.attempt, reason=reason, message=message))
    return put(run, step.id, after), after


def probe_leave(run: Run, report: Report, at: At) -> float:
    """Return how many seconds until a probe may start: 0 when R1 holds now, so that a "no" asked from now on counts (R2)."""
    require_token(run, report.token, report.pod_uid)
    step = planned(run, report.step)
    entry = entry_of(run, step)
    if entry.state is not State.UNKNOWN or report.attempt != entry.attempt:
        raise Refused(Code.ATTEMPT_MISMATCH, f"step {step.id!r} is {entry.state} (attempt {entry.attempt}): nothing to probe")
    if not machine_may_settle(run, entry, step, at):
        raise Refused(Code.HALTED, f"step {step.id!r} waits for a person", question=f"{step.id}.{entry.question}")
    return until(did_not_happen_counts_from(entry, step, at.settings), at)


def probe(
    run: Run, report: Report, verdict: Verdict | None, result: Body | None, *, asked_at: datetime, give_up: bool, at: At
) -> tuple[Run, Entry]:
    """Record a probe's answer: happened, did not happen, or (None) cannot tell. A "no" asked before R1 held is refused, not kept (R2)."""
    step = planned(run, report.step)
    entry = entry_of(run, step)
    recorded = entry.recorded(report.attempt)
    again = verdict is Verdict.DID_NOT_HAPPEN and entry.state is State.FAILED and recorded is not None and recorded.failed
    if entry.state is State.DONE or again:
        return run, entry
    require_token(run, report.token, report.pod_uid)
    event = Event.PROBE_CANNOT_TELL if verdict is None else _PROBED[verdict]
    if event is Event.PROBE_DID_NOT and entry.state is State.UNKNOWN and report.attempt == entry.attempt:
        wait = until(did_not_happen_counts_from(entry, step, at.settings), replace(at, now=min(asked_at, at.now)))
        if wait > 0:
            raise Refused(
                Code.TOO_EARLY,
                "this probe was started before its answer could count (R1): probe again",
                retry_after=wait,
            )
    asked = min(asked_at, at.now)
    cue = Cue(at=at, attempt=report.attempt, result=result, give_up=give_up, asked_at=asked, reason="ProbeFoundNothing")
    after = advance(entry, step, event, cue)
    if after == entry:
        return run, entry
    run = put(run, step.id, after)
    return end_if_settled(_progress(run) if after.state is State.DONE else run, at), after
