"""What is believed of Jobs and pods."""

from __future__ import annotations

from typing import Any

import pytest

from stepfence.controller.facts import job_fact, pod_fact
from stepfence.testing.clock import EPOCH

NOW = "2026-01-02T03:04:05Z"
ENDED = {"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": NOW}}}
RUNNING: dict[str, Any] = {"state": {"running": {}}}


def pod(status: dict[str, Any], containers: tuple[str, ...] = ("main",), **metadata: Any) -> dict[str, Any]:
    owner = {"kind": "Job", "name": "refund-1", "uid": "job-1", "controller": True}
    base = {"name": "p", "uid": "u", "creationTimestamp": NOW, "ownerReferences": [owner]}
    return {"metadata": {**base, **metadata}, "spec": {"containers": [{"name": name} for name in containers]}, "status": status}


def job(**changes: Any) -> dict[str, Any]:
    owner = {"kind": "AgentRun", "name": "refund", "uid": "run-1", "controller": True}
    labels = {"stepfence.dev/worker": "2"}
    metadata = {"name": "refund-abcde-2", "uid": "job-1", "creationTimestamp": NOW, "ownerReferences": [owner], "labels": labels}
    return {"metadata": {**metadata, **changes.pop("metadata", {})}, "spec": {}, "status": {}, **changes}


@pytest.mark.parametrize(
    ("status", "containers", "confirmed", "terminal"),
    [
        ({"containerStatuses": [ENDED]}, ("main",), True, True),
        ({"phase": "Failed"}, ("main",), False, True),
        ({"phase": "Failed", "containerStatuses": [RUNNING]}, ("main",), False, True),
        ({"phase": "Running", "containerStatuses": [ENDED, RUNNING]}, ("main", "proxy"), False, False),
        ({"containerStatuses": [ENDED]}, ("main", "proxy"), False, False),
        ({"containerStatuses": [ENDED], "initContainerStatuses": [RUNNING]}, ("main",), False, False),
        ({"containerStatuses": [ENDED], "ephemeralContainerStatuses": [RUNNING]}, ("main",), False, False),
        (
            {
                "phase": "Failed",
                "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}}],
            },
            ("main",),
            False,
            True,
        ),
        ({}, ("main",), False, False),
    ],
    ids=[
        "every container reported terminated: confirmed",
        "a phase alone: terminal, not confirmed",
        "a phase set over a running container (garbage collection): not confirmed",
        "one container of two still runs: not even terminal",
        "one container of two not reported",
        "a sidecar still runs",
        "a debugger still runs",
        "the kubelet could not find the container",
        "nothing reported",
    ],
)
def test_the_end_of_a_pod(status: dict[str, Any], containers: tuple[str, ...], confirmed: bool, terminal: bool) -> None:
    fact = pod_fact(pod(status, containers))
    assert (fact.confirmed, fact.terminal) == (confirmed, terminal)


@pytest.mark.parametrize(
    ("reason", "shown", "fatal"),
    [
        ("ImagePullBackOff", True, True),
        ("ErrImagePull", True, True),
        ("InvalidImageName", True, True),
        ("CreateContainerConfigError", True, True),
        ("ContainerCreating", False, False),
        ("PodInitializing", False, False),
    ],
)
def test_a_waiting_container(reason: str, shown: bool, fatal: bool) -> None:
    for field in ("containerStatuses", "initContainerStatuses"):
        problem = pod_fact(pod({field: [{"state": {"waiting": {"reason": reason, "message": "why"}}}]})).problem
        assert (problem is not None) is shown
        if problem is not None:
            assert (problem.reason, problem.message, problem.fatal) == (reason, "why", fatal)


def test_a_pod_that_finds_no_node_is_shown_and_not_given_up() -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
    problem = pod_fact(pod({"conditions": [scheduled]})).problem
    assert problem is not None
    assert (problem.reason, problem.fatal) == ("Unschedulable", False)


@pytest.mark.parametrize(
    ("ends", "annotations", "expected"),
    [
        ([("main", 3, "Error", "")], {}, (3, "")),
        ([("main", 137, "OOMKilled", "")], {}, (137, "OOMKilled")),
        ([("main", 1, "Error", "ValueError: no order\n")], {}, (1, "ValueError: no order")),
        ([("proxy", 0, "Completed", ""), ("main", 2, "Error", "")], {}, (2, "")),
        ([("proxy", 9, "Error", ""), ("main", 2, "Error", "")], {"kubectl.kubernetes.io/default-container": "main"}, (2, "")),
        ([("main", 0, "Completed", "")], {}, (0, "")),
        ([], {}, (None, "")),
    ],
    ids=["a code", "out of memory", "what the program said", "the container that failed", "the worker's own first", "success", "none"],
)
def test_the_exit_for_people(ends: list[tuple[str, int, str, str]], annotations: dict[str, str], expected: tuple[int | None, str]) -> None:
    statuses = [
        {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}
        for name, code, reason, message in ends
    ]
    names = tuple(name for name, *_ in ends) or ("main",)
    fact = pod_fact(pod({"containerStatuses": statuses}, names, annotations=annotations))
    assert (fact.exit_code, fact.message) == expected


def test_marks_of_a_pod() -> None:
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    fact = pod_fact(pod({"conditions": [disrupted]}, deletionTimestamp=NOW), gone=True)
    assert (fact.job, fact.deletion_at, fact.disrupted, fact.gone) == ("refund-1", EPOCH, True, True)


@pytest.mark.parametrize(
    ("changes", "uid", "foreign"),
    [
        ({}, "run-1", False),
        ({}, "run-2", True),
        ({"metadata": {"ownerReferences": []}}, "run-1", True),
        ({"metadata": {"labels": {"stepfence.dev/worker": "3"}}}, "run-1", True),
        ({"metadata": {"labels": {}}}, "run-1", True),
    ],
    ids=["ours", "of another run", "of nobody", "with another number", "without a number"],
)
def test_whose_job_it_is(changes: dict[str, Any], uid: str, foreign: bool) -> None:
    assert job_fact(job(**changes), uid).foreign is foreign


@pytest.mark.parametrize(
    ("conditions", "done"),
    [
        ([], False),
        ([("FailureTarget", "True")], False),
        ([("Failed", "True")], True),
        ([("Complete", "True")], True),
        ([("Failed", "False")], False),
    ],
)
def test_a_job_is_done(conditions: list[tuple[str, str]], done: bool) -> None:
    status = {"conditions": [{"type": kind, "status": value} for kind, value in conditions]}
    assert job_fact(job(status=status), "run-1").done is done


def test_a_resumed_job_started_when_it_was_resumed() -> None:
    fact = job_fact(job(status={"startTime": "2026-01-02T04:00:00Z"}, spec={"suspend": True}), "run-1")
    assert fact.started_at is not None
    assert (fact.started_at > EPOCH, fact.suspended) == (True, True)
