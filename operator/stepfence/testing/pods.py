"""Worker pods that exist only as facts: who they are, whether they live."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from stepfence.core.errors import Code, Refused
from stepfence.core.fencing import HolderFact
from stepfence.core.model import Run
from stepfence.core.words import At
from stepfence.core.world import JobFact, PodFact, World, pod_over
from stepfence.ports import Caller, Clock, RunKey, WorkerIdentity

__all__ = ["MemoryGate", "Pod"]


@dataclass
class Pod:
    """One worker pod. `deletion_at` is when its grace has passed."""

    name: str
    uid: str
    job: str
    key: RunKey
    run_uid: str
    created_at: datetime
    terminated: bool = False
    vanished: bool = False
    exit_code: int | None = None
    deletion_at: datetime | None = None

    def fact(self) -> PodFact:
        """Return what a controller would see of it."""
        return PodFact(
            name=self.name,
            uid=self.uid,
            job=self.job,
            created_at=self.created_at,
            terminal=self.terminated,
            confirmed=self.terminated,
            deletion_at=self.deletion_at,
            gone=self.vanished,
            exit_code=self.exit_code,
        )


@dataclass
class MemoryGate:
    """The `WorkerGate` of a process: a pod's uid is its bearer token."""

    clock: Clock
    pods: dict[str, Pod] = field(default_factory=dict)
    leases: dict[str, datetime] = field(default_factory=dict)

    async def identify(self, bearer: str, address: str = "") -> Caller:  # noqa: ARG002  (the port's shape)
        """See `WorkerGate.identify`. The token of a pod whose object is gone is no longer good."""
        pod = self.pods.get(bearer)
        if pod is None or pod.vanished:
            raise Refused(Code.UNAUTHENTICATED, "this token is not known")
        return Caller(pod.key.namespace, pod.name, pod.uid)

    async def worker_of(self, caller: Caller) -> WorkerIdentity | None:
        """See `WorkerGate.worker_of`."""
        pod = self.pods.get(caller.pod_uid)
        return None if pod is None else WorkerIdentity(pod.key.name, pod.run_uid, pod.job)

    async def holder(self, run: Run) -> HolderFact:
        """See `WorkerGate.holder`."""
        pod = self.pods.get(run.holder.pod_uid) if run.holder is not None else None
        if pod is None:
            return HolderFact.OVER
        over = pod_over(pod.fact(), run.holder, self.leases.get(pod.job), At(self.clock.now(), ""))
        return HolderFact.OVER if over else HolderFact.ALIVE

    async def renew(self, run: Run, caller: Caller) -> None:  # noqa: ARG002  (the port's shape)
        """See `WorkerGate.renew`."""
        self.leases[self.pods[caller.pod_uid].job] = self.clock.now()

    def world(self, run: Run, jobs: tuple[str, ...]) -> World:
        """Return what a controller would know of that run's workers."""
        pods = tuple(pod.fact() for pod in self.pods.values() if pod.run_uid == run.uid)
        current = run.worker.job if run.worker is not None else ""
        facts = tuple(self._job(name, number, pods) for number, name in enumerate(jobs, start=1))
        if current and current not in jobs:
            facts = (*facts, JobFact(current, run.worker.number if run.worker else 0, gone=True, seen=False))
        return World(jobs=facts, pods=pods, lease_renewed_at=self.leases.get(current))

    def _job(self, name: str, number: int, pods: tuple[PodFact, ...]) -> JobFact:
        mine = [pod for pod in pods if pod.job == name]
        return JobFact(name, number, uid=f"uid-of-{name}", done=bool(mine) and all(pod.terminal or pod.gone for pod in mine))
