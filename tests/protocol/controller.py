"""The real controller's decision over the model's pods: what is decided is done, unless the controller crashes before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from stepfence.core.canonical import parse
from stepfence.core.decide import Decided, decide
from stepfence.core.model import Body, Run
from stepfence.core.words import At
from stepfence.core.world import JobFact, PodFact
from stepfence.core.world import World as Facts
from stepfence.testing.builders import body
from tests.protocol.actors import Pod, Status
from tests.protocol.world import World

GRACE = 3


def reconcile(world: World, *, crash: bool = False) -> None:
    """One pass of the real decision; a crash comes between the write and what was to be done."""
    decided: list[Decided] = []
    for pod in world.pods:
        if pod.reported and pod.status is Status.TERMINAL:
            pod.confirmed_at = pod.confirmed_at or world.now
    world.keep_assumption()
    world.execute(_edit(world, decided), refresh=True)
    if crash:
        return
    doomed = {pod.uid for pod in decided[-1].delete_pods}
    for pod in world.pods:
        if pod.uid in doomed and world.rules.delete_overdue_pods:
            pod.deleting, pod.deletion_at = True, world.now + timedelta(seconds=GRACE)
        if pod.deletion_at is not None and world.now >= pod.deletion_at and pod.alive and pod.status is Status.RUNNING:
            pod.die()  # the kubelet's SIGKILL
    create = decided[-1].create
    if create is not None and all(pod.job != create.job for pod in world.pods):
        world.start_pod(create.job)


def _edit(world: World, decided: list[Decided]) -> Callable[[Run, At], tuple[Run, None]]:
    def edit(run: Run, at: At) -> tuple[Run, None]:
        decided.append(decide(run, _facts(world, run), at))
        return decided[-1].run, None

    return edit


def _facts(world: World, run: Run) -> Facts:
    jobs = {pod.job: pod for pod in world.pods}
    worker = run.worker
    made = tuple(_job(name, world) for name in jobs)
    missing = worker is not None and worker.job not in jobs
    never = (JobFact(worker.job, worker.number, gone=True, seen=False),) if worker is not None and missing else ()
    return Facts(jobs=made + never, pods=tuple(_pod(pod) for pod in world.pods), mark=run.uid, bodies=_bodies(run))


def _job(name: str, world: World) -> JobFact:
    pods = [pod for pod in world.pods if pod.job == name]
    done = all(pod.status is not Status.RUNNING for pod in pods)
    return JobFact(name, int(name.rpartition("-")[2]), f"{name}-uid", pods[0].heard_at, done=done)


def _pod(pod: Pod) -> PodFact:
    return PodFact(
        name=pod.name,
        uid=pod.uid,
        job=pod.job,
        created_at=pod.heard_at,
        terminal=pod.status is Status.TERMINAL,
        confirmed=pod.confirmed_at is not None,
        deletion_at=pod.deletion_at,
        gone=pod.status is Status.GONE,
        exit_code=1 if pod.confirmed_at is not None else None,
    )


def _bodies(run: Run) -> dict[str, Body]:
    return {key: body(parse(given.result)) for key, given in run.spec.decisions.items() if given.result is not None}
