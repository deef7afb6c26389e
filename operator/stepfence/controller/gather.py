"""Everything that a decision needs to know beside the run: from the caches, and from the API server where a cache cannot be trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from stepfence.controller.cache import Cache
from stepfence.controller.cluster import Cluster
from stepfence.controller.facts import job_fact, pod_fact
from stepfence.core.model import Run
from stepfence.core.words import At
from stepfence.core.world import JobFact, PodFact, World, lease_expired
from stepfence.ports import RunKey
from stepfence.schema import IDENTITY_ANNOTATION

__all__ = ["Gatherer", "Refusal"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the API server refused the Job of that name."""

    job: str
    message: str
    invalid: bool


class Gatherer:
    """Reads the world of one run. In the steady state it asks the API server nothing."""

    def __init__(self, cache: Cache, cluster: Cluster) -> None:
        self._cache, self._cluster = cache, cluster

    async def world(self, run: Run, refusal: Refusal | None, at: At) -> World:
        """Return what is known, apart from the results that people's decisions bring.

        Raises `Refused`, `Unknown` when the API server must be asked and does not answer.
        """
        jobs = await self._jobs(run)
        expired = run.holder is not None and lease_expired(run.holder, None, at.now)
        pods = await self._pods(run, jobs, verify=expired)
        worker = run.worker
        renewed = None
        if expired and run.holder is not None and worker is not None:
            renewed = await self._cluster.lease_renewed_at(run.namespace, worker.job, run.holder.pod_uid)
        ours = refusal if refusal is not None and worker is not None and refusal.job == worker.job else None
        return World(
            jobs=jobs,
            pods=pods,
            refused=await self._refused(run, jobs, pods, at),
            not_created=ours.message if ours is not None else None,
            not_creatable=ours.invalid if ours is not None else False,
            lease_renewed_at=renewed,
            mark=await self._mark(run),
        )

    async def _jobs(self, run: Run) -> tuple[JobFact, ...]:
        """The cached Jobs, and for certain the one of the current worker: a cache that lags must not make a second one."""
        jobs, worker = self._cache.jobs(run.uid), run.worker
        if worker is None or worker.ended_at is not None or any(job.name == worker.job for job in jobs):
            return jobs
        document = await self._cluster.job(run.namespace, worker.job)
        if document is None:
            return (*jobs, JobFact(name=worker.job, number=worker.number, gone=True, seen=False))
        return (*jobs, job_fact(document, run.uid))

    async def _pods(self, run: Run, jobs: tuple[JobFact, ...], *, verify: bool) -> tuple[PodFact, ...]:
        """The cached pods of the run's Jobs, and for certain the holder: what a cache does not show may be there, or no more."""
        holder, worker = run.holder, run.worker
        names = {job.name for job in jobs} | ({worker.job} if worker is not None else set())
        known = {
            pod.uid: pod for pod in self._cache.pods(run.uid) if pod.job in names or (holder is not None and pod.uid == holder.pod_uid)
        }
        shown = known.get(holder.pod_uid) if holder is not None else None
        # To a watch by label a pod is gone too when it only lost the label.
        if holder is None or (shown is not None and not shown.gone and not verify):
            return tuple(known.values())
        document = await self._cluster.pod(run.namespace, holder.pod)
        if document is not None and document["metadata"]["uid"] == holder.pod_uid:
            known[holder.pod_uid] = pod_fact(document)
        else:
            job = worker.job if worker is not None else ""
            seen = known.get(holder.pod_uid) or PodFact(name=holder.pod, uid=holder.pod_uid, job=job)
            known[holder.pod_uid] = replace(seen, gone=True)
        return tuple(known.values())

    async def _refused(self, run: Run, jobs: tuple[JobFact, ...], pods: tuple[PodFact, ...], at: At) -> str | None:
        """Ask for FailedCreate Events only when a Job should have had its pod for a while."""
        worker = run.worker
        job = next((job for job in jobs if worker is not None and worker.ended_at is None and job.name == worker.job), None)
        if job is None or job.gone or job.foreign or job.done or job.suspended or job.started_at is None or run.terminal:
            return None
        if any(pod.job == job.name for pod in pods) or at.now < job.started_at + timedelta(seconds=at.settings.create_refused_after):
            return None
        document = await self._cluster.job(run.namespace, job.name)
        status = (document or {}).get("status") or {}
        if document is None or any(status.get(count) for count in ("active", "failed", "succeeded")):
            return None  # it has or had a pod that the cache does not show yet
        return await self._cluster.create_refused(run.namespace, job.uid)

    async def _mark(self, run: Run) -> str | None:
        """Read the identity mark, which matters only before the first worker."""
        if run.worker is not None or run.terminal:
            return None
        document = await self._cluster.run_object(RunKey(run.namespace, run.name))
        if document is None or document["metadata"]["uid"] != run.uid:
            return None
        found: str | None = (document["metadata"].get("annotations") or {}).get(IDENTITY_ANNOTATION)
        return found
