"""When time alone changes what is decided or shown, so that nobody has to look in between."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from stepfence.core.dismissal import idle_dismissal_at, linger_until, unresponsive_at
from stepfence.core.lifecycle import deadline_at, entries
from stepfence.core.model import Entry, Run, StepSpec
from stepfence.core.recovery import did_not_happen_counts_from, gives_up_at
from stepfence.core.words import At, Settings, State
from stepfence.core.worker_end import living_pods, start_given_up_at
from stepfence.core.world import World, last_sign

__all__ = ["wake_at"]


def wake_at(run: Run, world: World, at: At) -> datetime | None:
    """Return the soonest moment after now at which the decision, or what people read, changes by itself."""
    candidates = [*_worker_moments(run, world, at), *_pod_moments(run, world)]
    if not run.terminal:
        candidates += [moment for step, entry in entries(run) for moment in _step_moments(entry, step, at.settings)]
        candidates.append(deadline_at(run))
    return min((moment for moment in candidates if moment is not None and moment > at.now), default=None)


def _step_moments(entry: Entry, step: StepSpec, settings: Settings) -> Iterator[datetime | None]:
    if entry.state is State.IN_FLIGHT:
        last = entry.recorded(entry.attempt)
        yield None if last is None else last.deadline + timedelta(seconds=settings.margin)
    if entry.state is State.UNKNOWN:
        yield did_not_happen_counts_from(entry, step, settings)
        yield gives_up_at(entry, step, settings)
        if step.key_ttl is not None and entry.first_started_at is not None:
            yield entry.first_started_at + timedelta(seconds=step.key_ttl - step.timeout - settings.margin)
    if step.approval_expires is not None:
        since = entry.asked_at if entry.state is State.AWAITING_APPROVAL else entry.approved_at
        yield None if since is None else since + timedelta(seconds=step.approval_expires)


def _worker_moments(run: Run, world: World, at: At) -> Iterator[datetime | None]:
    worker, holder = run.worker, run.holder
    if holder is not None and not run.terminal:
        yield last_sign(holder, world.lease_renewed_at) + timedelta(seconds=holder.lease)
        yield unresponsive_at(run, world, at)
    if worker is None:
        return
    lives = bool(living_pods(run, world, worker.job, at))
    if worker.ended_at is not None:
        yield worker.retry_at
        yield linger_until(run, at) if lives else None
    elif not run.terminal and holder is None:
        job = world.job(worker.job)
        if job is not None and job.started_at is not None and not job.suspended:
            yield job.started_at + timedelta(seconds=at.settings.create_refused_after)
        if world.refused is not None:
            yield start_given_up_at(job, None, at)
        for pod in world.pods_of(worker.job):
            yield start_given_up_at(job, pod, at) if pod.problem is not None and pod.problem.fatal else None
    yield idle_dismissal_at(run, at) if lives else None


def _pod_moments(run: Run, world: World) -> Iterator[datetime | None]:
    for pod in world.pods:
        if pod.gone or pod.terminal or pod.deletion_at is None:
            continue
        yield pod.deletion_at
        if run.holder is not None and run.holder.pod_uid == pod.uid:
            yield last_sign(run.holder, world.lease_renewed_at) + timedelta(seconds=run.holder.lease)
