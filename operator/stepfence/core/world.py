"""What the controller knows of Jobs and pods when it decides: facts, gathered by the caller, never looked up here.

A pod or Job that does not stand in a `World` is unknown, not gone: what is gone is said so. So a stale cache can delay a decision but
never fence out a worker that lives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from stepfence.core.model import Body, Holder
from stepfence.core.words import At

__all__ = ["JobFact", "PodFact", "PodProblem", "World", "job_name", "last_sign", "lease_expired", "pod_over"]


@dataclass(frozen=True, slots=True)
class JobFact:
    """One Job of the run. `done`: it has the condition Complete or Failed. `started_at`: its start, or its last resume by a queueing tool.

    `gone`: the API server has none of that name; `seen`: it had one before. `foreign`: the name is taken by an object that is not ours.
    """

    name: str
    number: int
    uid: str = ""
    started_at: datetime | None = None
    done: bool = False
    deleting: bool = False
    suspended: bool = False
    gone: bool = False
    seen: bool = True
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class PodProblem:
    """Why a pod does not start. `fatal`: a new pod of the same template would not either."""

    reason: str
    message: str
    fatal: bool


@dataclass(frozen=True, slots=True)
class PodFact:
    """One pod of a worker.

    `terminal`: phase Succeeded or Failed, whoever set it. `confirmed`: the kubelet reported every container terminated; nothing else
    confirms an end. `deletion_at`: the moment at which its grace has passed (`metadata.deletionTimestamp`). `gone`: the
    API server has no such pod; what else stands here was seen before.
    """

    name: str
    uid: str
    job: str = ""
    created_at: datetime | None = None
    terminal: bool = False
    confirmed: bool = False
    deletion_at: datetime | None = None
    disrupted: bool = False
    gone: bool = False
    exit_code: int | None = None
    message: str = ""
    problem: PodProblem | None = None


@dataclass(frozen=True, slots=True)
class World:
    """All that is known beside the run itself.

    `refused`: message of the FailedCreate event of a Job without a pod. `not_created`: why the API server refused the Job itself;
    `not_creatable`: it would refuse the same again.
    `lease_renewed_at`: last renewal of the worker's own Lease. `identity`: uid that owns the spent identity; None while not asked.
    `mark`: uid in the run's identity annotation. `bodies`: the result of each decision that brings one, as it is kept.
    """

    jobs: tuple[JobFact, ...] = ()
    pods: tuple[PodFact, ...] = ()
    refused: str | None = None
    not_created: str | None = None
    not_creatable: bool = False
    lease_renewed_at: datetime | None = None
    identity: str | None = None
    mark: str | None = None
    bodies: Mapping[str, Body] = field(default_factory=dict)

    def job(self, name: str) -> JobFact | None:
        """Return what is known of that Job; None when nothing is."""
        return next((job for job in self.jobs if job.name == name), None)

    def pod(self, uid: str) -> PodFact | None:
        """Return what is known of that pod; None when nothing is."""
        return next((pod for pod in self.pods if pod.uid == uid), None)

    def pods_of(self, job: str) -> tuple[PodFact, ...]:
        """Return the known pods of a Job."""
        return tuple(pod for pod in self.pods if pod.job == job)


def job_name(run: str, uid: str, number: int) -> str:
    """Return `<run, cut to 45>-<5 of uid hash>-<number>`, 57 characters at most."""
    return f"{run[:45].rstrip('-')}-{hashlib.sha256(uid.encode()).hexdigest()[:5]}-{number}"


def last_sign(holder: Holder, lease_renewed_at: datetime | None) -> datetime:
    """Return the holder's last sign of life: a ledger write, or a renewal of the worker's own Lease."""
    return holder.renewed_at if lease_renewed_at is None else max(holder.renewed_at, lease_renewed_at)


def lease_expired(holder: Holder, lease_renewed_at: datetime | None, now: datetime) -> bool:
    """Whether the claim's lease has run out. By itself this takes nothing away."""
    return now >= last_sign(holder, lease_renewed_at) + timedelta(seconds=holder.lease)


def pod_over(pod: PodFact, holder: Holder | None, lease_renewed_at: datetime | None, at: At) -> bool:
    """Whether a pod is over: terminal, gone, or lost.

    Lost: marked for deletion, its grace passed, and, when it is the holder, its lease expired too.
    """
    if pod.gone or pod.terminal:
        return True
    if pod.deletion_at is None or at.now < pod.deletion_at:
        return False
    return holder is None or holder.pod_uid != pod.uid or lease_expired(holder, lease_renewed_at, at.now)
