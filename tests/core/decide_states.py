"""What tests of the controller's decisions start from: facts, and runs in the states that matter."""

from __future__ import annotations

from typing import Any

from stepfence.core.decide import Decided, decide
from stepfence.core.fencing import Release, release
from stepfence.core.model import Run, StepSpec
from stepfence.core.world import JobFact, PodFact, PodProblem, World, job_name
from stepfence.testing.builders import POD, at, begun, claimed, new_run, seconds, step

JOB_1, JOB_2 = (job_name("refund", "uid-1", number) for number in (1, 2))


def job(number: int = 1, **facts: Any) -> JobFact:
    return JobFact(name=job_name("refund", "uid-1", number), number=number, uid=f"job-{number}", started_at=seconds(1), **facts)


def pod(number: int = 1, name: str = POD, **facts: Any) -> PodFact:
    facts.setdefault("created_at", seconds(1))
    return PodFact(name=name, uid=f"{name}-uid", job=job_name("refund", "uid-1", number), **facts)


def world(*facts: JobFact | PodFact, **rest: Any) -> World:
    jobs = tuple(fact for fact in facts if isinstance(fact, JobFact))
    pods = tuple(fact for fact in facts if isinstance(fact, PodFact))
    rest.setdefault("mark", "uid-1")
    return World(jobs=jobs, pods=pods, **rest)


LIVE = world(job(), pod())
NO_JOB = world(JobFact(name=JOB_1, number=1, gone=True, seen=False))
NO_IMAGE = PodProblem("ImagePullBackOff", "no such image", fatal=True)
TERMINATED = pod(terminal=True, confirmed=True, exit_code=137)


def started(*steps: StepSpec, **spec: Any) -> Run:
    """A run whose worker 1 is recorded at second 0."""
    return decide(new_run(*(steps or (step(),)), **spec), world(), at()).run


def held(*steps: StepSpec, **spec: Any) -> Run:
    """The same, claimed by its pod at second 2."""
    return claimed(started(*steps, **spec), 2)


def in_flight(*steps: StepSpec, **spec: Any) -> Run:
    """The same, with step `pay` begun at second 3."""
    return begun(held(*steps, **spec), 3)[0]


def doubtful(**spec: Any) -> Run:
    """The same, its pod killed and the run settled at second 5."""
    return decide(in_flight(**spec), world(job(), TERMINATED), at(5)).run


def released(reason: Release, now: float = 8) -> Run:
    """A run whose worker let it go."""
    return release(held(), reason, at(now))


def worker(decided: Decided) -> tuple[int, str, int]:
    """The worker's number, how it ended (empty while it has not), and failures in a row."""
    found = decided.run.worker
    assert found is not None
    return found.number, found.exit_reason if found.ended_at else "", found.failures


def question(run: Run) -> str:
    """The key of the question about step `pay`."""
    return f"pay.{run.ledger['pay'].question}"
