"""Which pods and Jobs are told to go: nothing runs while a person thinks, after the end, or without a sign of life (R14)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from stepfence.core.fencing import overdue
from stepfence.core.lifecycle import entries, halting_steps, waits_for_people
from stepfence.core.model import Run
from stepfence.core.words import At, Outcome, State
from stepfence.core.worker_end import living_pods, released
from stepfence.core.world import JobFact, PodFact, World, last_sign, pod_over

__all__ = ["dismissals", "hung", "idle_dismissal_at", "linger_until", "spare_jobs", "unresponsive_at"]

STEP_OVERDUE, UNRESPONSIVE = "StepOverdue", "Unresponsive"


def hung(run: Run, world: World, at: At) -> str | None:
    """Return why the holder counts as hung: a step past its deadline plus margin (R14), or no sign of life for too long."""
    holder = run.holder
    if holder is None:
        return None
    for _, entry in entries(run):
        last = entry.recorded(entry.attempt)
        mine = last is not None and last.pod_uid == holder.pod_uid
        unsettled = entry.state is State.IN_FLIGHT or (entry.state is State.UNKNOWN and entry.reason == "DeadlineExceeded")
        if mine and unsettled and overdue(entry, at):
            return STEP_OVERDUE
    moment = unresponsive_at(run, world, at)
    return UNRESPONSIVE if moment is not None and at.now >= moment else None


def unresponsive_at(run: Run, world: World, at: At) -> datetime | None:
    """Return when a silent holder is deleted: `unresponsive` after its lease ran out, and not while a call of its may still last."""
    holder = run.holder
    if holder is None:
        return None
    moment = last_sign(holder, world.lease_renewed_at) + timedelta(seconds=holder.lease + at.settings.unresponsive)
    for _, entry in entries(run):
        last = entry.recorded(entry.attempt)
        if entry.state is State.IN_FLIGHT and last is not None and last.pod_uid == holder.pod_uid:
            moment = max(moment, last.deadline + timedelta(seconds=at.settings.margin))
    return moment


def idle_dismissal_at(run: Run, at: At) -> datetime | None:
    """Return from when a pod of the current worker has no business any more; None while it has.

    Suspended: at once, its drain settles what is in flight. Otherwise nothing in flight is cut off, and a worker that can see the end
    itself is given a lease's time to leave, so that its logs stay.
    """
    lease = timedelta(seconds=at.settings.lease)
    if run.terminal:
        cut_off = run.outcome is Outcome.CANCELLED or run.reason == "DeadlineExceeded"
        return (run.finished_at or at.now) + (timedelta(0) if cut_off else lease)
    if run.spec.suspend:
        return at.now
    if any(entry.state is State.IN_FLIGHT for entry in run.ledger.values()):
        return None
    if run.ending is None and not waits_for_people(run, at):
        return None
    asked = [entry.asked_at for _, entry in halting_steps(run, at) if entry.asked_at is not None]
    asked += [run.hold.since] if run.hold is not None else []
    return max(asked, default=at.now) + lease


def linger_until(run: Run, at: At) -> datetime | None:
    """Return until when a pod that released the run may take to end by itself."""
    worker = run.worker
    if worker is None:
        return None
    return (worker.ended_at or worker.started_at) + timedelta(seconds=at.settings.lease)


def dismissals(run: Run, world: World, at: At) -> Iterator[tuple[PodFact, str]]:
    """Yield each pod to delete now, with the reason."""
    for pod in world.pods:
        if pod.deletion_at is not None or pod_over(pod, run.holder, world.lease_renewed_at, at):
            continue
        reason = _dismissed(run, pod, world, at)
        if reason is not None:
            yield pod, reason


def _dismissed(run: Run, pod: PodFact, world: World, at: At) -> str | None:
    worker = run.worker
    holds = run.holder is not None and run.holder.pod_uid == pod.uid
    if holds:
        reason = hung(run, world, at)
        if reason is not None:
            return reason
    if holds or (worker is not None and worker.ended_at is None and pod.job == worker.job):
        moment = idle_dismissal_at(run, at)
        if moment is not None and not holds and pod.uid != (worker.pod_uid if worker else None):
            moment = at.now  # it has not claimed the run yet, and would only be refused
        return "NothingToDo" if moment is not None and at.now >= moment else None
    leaves = worker is not None and (pod.job != worker.job or (released(worker) and pod.uid == worker.pod_uid))
    until = linger_until(run, at)
    return None if leaves and until is not None and at.now < until else "WorkerEnded"


def spare_jobs(run: Run, world: World, at: At) -> Iterator[JobFact]:
    """Yield each Job to delete now: of a lost worker, one that makes no pod and is not wanted, old ones beyond the history limit."""
    ended = run.worker is None or run.worker.ended_at is not None
    number = run.worker.number if run.worker is not None else 0
    kept = 0
    limit = at.settings.history if run.spec.history is None else run.spec.history
    for job in sorted(world.jobs, key=lambda fact: -fact.number):
        if job.gone or job.foreign or job.deleting:
            continue
        former = job.number < number or ended
        if job.done:
            kept += 1
            spare = former and kept > limit
        elif former:
            spare = not living_pods(run, world, job.name, at) and _makes_no_end(world.pods_of(job.name))
        else:
            spare = not world.pods_of(job.name) and _unwanted(run, at)
        if spare:
            yield job


def _makes_no_end(pods: tuple[PodFact, ...]) -> bool:
    """Whether a Job will not end by itself: it has no pod, or one whose end nobody reports."""
    return all(not pod.terminal and not pod.gone for pod in pods)


def _unwanted(run: Run, at: At) -> bool:
    moment = idle_dismissal_at(run, at)
    return moment is not None and (run.terminal or run.spec.suspend or at.now >= moment)
