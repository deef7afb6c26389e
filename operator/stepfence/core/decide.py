"""What the controller does next about one run: decided here, done elsewhere.

`decide` is level-triggered and pure: the same run, world and hour give the same decision, and a decision that was carried out half or
twice does no harm. Order: the new run is accepted, cancel is seen, the ends of pods are noted, a holder that is over is fenced out,
people's answers and deadlines take effect; then the worker's end is accounted for and the next one numbered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from stepfence.core.answers import catch_up
from stepfence.core.dismissal import dismissals, hung, spare_jobs
from stepfence.core.fencing import drain, note_terminated, settle
from stepfence.core.lifecycle import accept, end_if_settled, halt_run, keep_time, request_cancel, set_ending, waits_for_people
from stepfence.core.model import Run, Worker
from stepfence.core.moments import wake_at
from stepfence.core.words import NO_TOKEN, At, Outcome, Verdict
from stepfence.core.worker_end import DELETED, fail_at_limit, living_pods, note_end, note_exit_code, released
from stepfence.core.world import World, job_name, last_sign, lease_expired, pod_over

__all__ = ["Decided", "JobDelete", "PodDelete", "WorkerPlan", "decide"]


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """A Job to create: its number is recorded in the run of the same decision, or was before. The same again is the same Job."""

    number: int
    job: str


@dataclass(frozen=True, slots=True)
class PodDelete:
    """A pod to delete gracefully, under its uid."""

    name: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobDelete:
    """A Job to delete with its pods, under its uid."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Decided:
    """The run as it shall be stored, and then what to do, in this order. `wake_at`: when time alone changes the decision.

    `spend` and `mark`: before the first worker, the run's identity must be spent, or its object marked with its own uid; then decide again.
    """

    run: Run
    create: WorkerPlan | None = None
    delete_pods: tuple[PodDelete, ...] = ()
    delete_jobs: tuple[JobDelete, ...] = ()
    spend: bool = False
    mark: bool = False
    wake_at: datetime | None = None


def decide(run: Run, world: World, at: At) -> Decided:
    """Return the run's next value and what to do in the world. Raises nothing: what cannot be judged yet waits."""
    after = _bring_up(run, world, at)
    after = note_exit_code(note_end(after, world, at), world)
    after = fail_at_limit(after, world, at)
    after, start = _next_worker(after, world, at)
    if not run.terminal:
        after = replace(after, worker_problem=_problem(after, world, at))
    return Decided(
        run=after,
        create=start.create,
        delete_pods=tuple(PodDelete(pod.name, pod.uid, reason) for pod, reason in dismissals(after, world, at)),
        delete_jobs=tuple(JobDelete(job.name, job.uid) for job in spare_jobs(after, world, at)),
        spend=start.spend,
        mark=start.mark,
        wake_at=wake_at(after, world, at),
    )


def _bring_up(run: Run, world: World, at: At) -> Run:
    """Bring the run up to the hour and to what is known of its pods."""
    if run.terminal:
        return _let_go(run, world, at)
    run = _missing_ledger(accept(run, at), world, at)
    run = request_cancel(run, at)
    for pod in world.pods:
        run = note_terminated(run, pod.uid, at.now) if pod.confirmed else run
    run = _holder(run, world, at)
    run = _take_answers(run, world, at)
    return end_if_settled(keep_time(run, at), at)


def _let_go(run: Run, world: World, at: At) -> Run:
    """A terminal run has nothing to fence: its last holder is dropped when its pod is over."""
    pod = world.pod(run.holder.pod_uid) if run.holder is not None else None
    over = pod is not None and pod_over(pod, run.holder, world.lease_renewed_at, at)
    return replace(run, holder=None) if over else run


def _missing_ledger(run: Run, world: World, at: At) -> Run:
    """Hold an object that carries another one's mark and has no ledger: it was restored from a backup (I11)."""
    fresh = run.worker is None and run.token == NO_TOKEN and not run.ledger
    if not fresh or world.mark in (None, run.uid) or run.hold is not None or run.ending is not None or run.terminal or _resumed(run):
        return run
    message = f"the object was marked as run {world.mark} and has no ledger: what that run did is not known here"
    return halt_run(run, "LedgerMissing", message, at)


def _resumed(run: Run) -> bool:
    """Whether a person let a run without a ledger go on. Before the first worker there is no other hold."""
    return any(answer.verdict is Verdict.RESUME and not answer.refused for answer in run.hold_answers)


def _holder(run: Run, world: World, at: At) -> Run:
    """Fence out a holder that is over; tell one that is marked for deletion to drain; note why one is told to go."""
    holder = run.holder
    pod = world.pod(holder.pod_uid) if holder is not None else None
    if holder is None or pod is None:
        return run  # what is not known is alive
    if pod_over(pod, holder, world.lease_renewed_at, at):
        run = _blame(run, DELETED) if holder.draining else run
        return settle(run, "WorkerLost", at)
    run = drain(run) if pod.deletion_at is not None else run
    reason = hung(run, world, at)
    return _blame(run, reason) if reason is not None and pod.deletion_at is None else run


def _blame(run: Run, reason: str) -> Run:
    worker = run.worker
    return run if worker is None or worker.exit_reason else replace(run, worker=replace(worker, exit_reason=reason))


def _take_answers(run: Run, world: World, at: At) -> Run:
    """Let overdue steps and people's answers take effect; one that brings a result waits for the body."""
    spec = run.spec
    ready = {key: given for key, given in spec.decisions.items() if given.result is None or key in world.bodies}
    run, _ = catch_up(replace(run, spec=replace(spec, decisions=ready)), world.bodies, at)
    return replace(run, spec=spec)


@dataclass(frozen=True, slots=True)
class _Start:
    create: WorkerPlan | None = None
    spend: bool = False
    mark: bool = False


def _next_worker(run: Run, world: World, at: At) -> tuple[Run, _Start]:
    """Number the next worker, or say what must be done before the first one."""
    worker = run.worker
    if run.terminal or run.ending is not None or run.deleting or run.holder is not None or waits_for_people(run, at):
        return run, _Start()
    if worker is not None and worker.ended_at is None:
        job = world.job(worker.job)
        never_made = job is not None and job.gone and not job.seen and worker.pod_uid is None
        return run, _Start(WorkerPlan(worker.number, worker.job)) if never_made else _Start()
    if worker is None:
        run, before = _identity(run, world, at)
        if before.spend or before.mark or run.terminal or run.ending is not None:
            return run, before
    elif (worker.retry_at is not None and at.now < worker.retry_at) or _in_the_way(run, worker, world, at):
        return run, _Start()
    number = 1 if worker is None else worker.number + 1
    following = Worker(
        number=number,
        job=job_name(run.name, run.uid, number),
        template_hash=run.spec.template_hash,
        started_at=at.now,
        failures=0 if worker is None else worker.failures,
    )
    return replace(run, worker=following), _Start(WorkerPlan(number, following.job))


def _in_the_way(run: Run, worker: Worker, world: World, at: At) -> bool:
    """Whether a pod of the last worker lives that did not release the run itself."""
    living = living_pods(run, world, worker.job, at)
    return any(pod.uid != worker.pod_uid for pod in living) or (bool(living) and not released(worker))


def _identity(run: Run, world: World, at: At) -> tuple[Run, _Start]:
    """An identity is spent once (I11): asked for and marked before the first worker, unless a person said to go on."""
    if run.spec.run_id is not None and not _resumed(run):
        if world.identity is None:
            return run, _Start(spend=True)
        if world.identity != run.uid:
            message = f"run id {run.identity} was spent by another object (uid {world.identity})"
            return end_if_settled(set_ending(run, Outcome.FAILED, "AlreadyRan", message, at), at), _Start()
    return run, _Start(mark=world.mark != run.uid)


def _problem(run: Run, world: World, at: At) -> tuple[str, str] | None:
    """Return why there is no working worker, as people should read it."""
    worker = run.worker
    if run.terminal:
        return None
    if run.holder is not None:
        if not lease_expired(run.holder, world.lease_renewed_at, at.now):
            return None
        since = last_sign(run.holder, world.lease_renewed_at).isoformat(timespec="seconds")
        return "Unresponsive", f"pod {run.holder.pod} gave no sign of life since {since}"
    if worker is None or worker.ended_at is not None:
        return None
    if world.not_created is not None:
        return "JobCreateRefused", world.not_created[:1024]
    problem = next((pod.problem for pod in world.pods_of(worker.job) if pod.problem is not None), None)
    if problem is not None:
        return problem.reason, problem.message[:1024]
    if world.refused is not None and not world.pods_of(worker.job):
        return "PodCreateRefused", world.refused[:1024]
    return None
