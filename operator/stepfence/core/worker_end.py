"""How a worker ended, and what follows: which ends count as failures, and when the next worker may start."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from stepfence.core.fencing import Release
from stepfence.core.lifecycle import end_if_settled, set_ending
from stepfence.core.model import Run, Worker
from stepfence.core.words import At, Outcome
from stepfence.core.world import JobFact, PodFact, World, pod_over

__all__ = ["DELETED", "fail_at_limit", "living_pods", "note_end", "note_exit_code", "released", "start_given_up_at"]

CRASHED, DELETED, DISRUPTED, LOST = "Crashed", "Deleted", "Disrupted", "Lost"
# Ends by the worker's own word: its pod may still be on its way out. An error is a crash that said so.
_RELEASED = frozenset({Release.DRAINED.value, Release.HALTED.value, Release.FINISHED.value, Release.FAILED.value, CRASHED})
# Ends that say nothing against the worker.
_EXCUSED = frozenset({Release.DRAINED.value, Release.HALTED.value, Release.FINISHED.value, DELETED, DISRUPTED, "NameTaken"})
_EXIT_CODES = {75: Release.DRAINED.value, 76: Release.HALTED.value, 77: Release.FAILED.value}


def living_pods(run: Run, world: World, job: str, at: At) -> tuple[PodFact, ...]:
    """Return the pods of a Job that are not over."""
    return tuple(pod for pod in world.pods_of(job) if not pod_over(pod, run.holder, world.lease_renewed_at, at))


def released(worker: Worker) -> bool:
    """Whether the worker ended by its own word, so that its pod may still be on its way out."""
    return worker.exit_reason in _RELEASED and worker.pod_uid is not None


def note_end(run: Run, world: World, at: At) -> Run:
    """Record the end of the current worker, once: why, whether it counts, and from when the next may start."""
    worker = run.worker
    if worker is None or worker.ended_at is not None or run.holder is not None:
        return run
    end = _end(run, worker, world, at)
    if end is None:
        return run
    reason, message = end
    failures, retry_at = _consequence(run, worker, reason, at)
    ended = replace(worker, exit_reason=reason, message=message, failures=failures, retry_at=retry_at, ended_at=at.now)
    return replace(run, worker=ended)


def _end(run: Run, worker: Worker, world: World, at: At) -> tuple[str, str] | None:
    """Return reason and message of the worker's end; None while it has not ended."""
    job = world.job(worker.job)
    if job is not None and job.foreign:
        return "NameTaken", f"the name {job.name} is taken by an object that is not ours"
    if world.not_creatable and job is not None and job.gone and not job.seen:
        return "JobInvalid", (world.not_created or "")[:1024]
    if job is not None and job.suspended and not job.done:
        return None  # a queueing tool has it: another pod comes in the same Job
    if worker.exit_reason in {*_RELEASED, Release.ERROR.value} and worker.pod_uid is not None:
        return _released(worker, world)
    if living_pods(run, world, worker.job, at):
        return _given_up(worker, job, world, at)
    pods = world.pods_of(worker.job)
    if pods or (job is not None and (job.done or (job.gone and (job.seen or worker.pod_uid is not None)))):
        last = next((pod for pod in pods if pod.uid == worker.pod_uid), pods[-1] if pods else None)
        return _by_pod(worker, last)
    return _given_up(worker, job, world, at)


def _released(worker: Worker, world: World) -> tuple[str, str]:
    reason = CRASHED if worker.exit_reason == Release.ERROR.value else worker.exit_reason
    pod = world.pod(worker.pod_uid or "")
    return reason, _exit_text(pod) if pod is not None and reason == CRASHED else ""


def _by_pod(worker: Worker, pod: PodFact | None) -> tuple[str, str]:
    """Name an end that the worker itself did not announce. Exit codes are for people: only the ledger and the pod's marks count."""
    if worker.exit_reason:
        return worker.exit_reason, worker.message
    if pod is None:
        return DELETED, "the Job has no pod any more"
    if pod.disrupted:
        return DISRUPTED, f"pod {pod.name} was evicted or preempted"
    if pod.deletion_at is not None:
        return DELETED, f"pod {pod.name} was deleted"
    if pod.exit_code is None:
        return LOST, pod.message or f"pod {pod.name} is gone"
    return CRASHED, _exit_text(pod)


def _exit_text(pod: PodFact) -> str:
    if pod.exit_code is None:
        return ""
    named = _EXIT_CODES.get(pod.exit_code)
    text = f"exit code {pod.exit_code}" + (f" ({named}, but the run was not released)" if named else "")
    text += " without finish" if pod.exit_code == 0 else ""
    return f"{text}: {pod.message}" if pod.message else text


def start_given_up_at(job: JobFact | None, pod: PodFact | None, at: At) -> datetime | None:
    """Return when a worker whose pod cannot start is given up; None when nothing says that it cannot."""
    since = pod.created_at if pod is not None else job.started_at if job is not None else None
    return None if since is None else since + timedelta(seconds=at.settings.start_failed_after)


def _given_up(worker: Worker, job: JobFact | None, world: World, at: At) -> tuple[str, str] | None:
    """A pod that cannot start, or is refused, makes a failed worker after a while."""
    pod = next((pod for pod in world.pods_of(worker.job) if pod.problem is not None and pod.problem.fatal), None)
    problem = (pod.problem.reason, pod.problem.message) if pod is not None and pod.problem is not None else None
    if pod is None and world.refused is not None and job is not None and not world.pods_of(worker.job):
        problem = ("PodCreateRefused", world.refused)
    moment = start_given_up_at(job, pod, at)
    return problem if problem is not None and moment is not None and at.now >= moment else None


def _consequence(run: Run, worker: Worker, reason: str, at: At) -> tuple[int, datetime | None]:
    """Return failures in a row and from when the next worker may start.

    A worker that brought a step to Done or finally Failed starts the count anew. A drained, halted, evicted or deleted one counts neither
    way, but two workers that brought nothing forward never start within one back-off.
    """
    if worker.progressed:
        return 0, None
    if reason in _EXCUSED or run.spec.suspend or run.terminal:
        soonest = worker.started_at + timedelta(seconds=at.settings.backoff_base)
        return worker.failures, soonest if soonest > at.now else None
    pause = min(at.settings.backoff_base * 2.0 ** min(worker.failures, 30), at.settings.backoff_cap)
    return worker.failures + 1, at.now + timedelta(seconds=pause)


def note_exit_code(run: Run, world: World) -> Run:
    """Add the exit code to a crash that was announced before the pod had ended."""
    worker = run.worker
    if worker is None or worker.ended_at is None or worker.exit_reason != CRASHED or worker.message or run.terminal:
        return run
    pod = world.pod(worker.pod_uid or "")
    text = "" if pod is None or not (pod.terminal or pod.gone) else _exit_text(pod)
    return replace(run, worker=replace(worker, message=text)) if text else run


def fail_at_limit(run: Run, world: World, at: At) -> Run:
    """End the run when too many workers in a row brought nothing forward. The last one's reason is kept."""
    worker = run.worker
    if worker is None or worker.ended_at is None or worker.failures <= run.spec.backoff_limit or run.terminal:
        return run
    lingers = living_pods(run, world, worker.job, at) and at.now < worker.ended_at + timedelta(seconds=at.settings.lease)
    if lingers and worker.exit_reason == CRASHED:
        return run  # its exit code is about to be known
    last = f"{worker.exit_reason}: {worker.message}" if worker.message else worker.exit_reason
    count = f"{worker.failures} worker{'s in a row' if worker.failures > 1 else ''}"
    message = f"{count} brought nothing forward (backoffLimit {run.spec.backoff_limit}); the last one: {last}"
    run = replace(run, worker=replace(worker, retry_at=None))
    return end_if_settled(set_ending(run, Outcome.FAILED, "BackoffLimitExceeded", message[:1024], at), at)
