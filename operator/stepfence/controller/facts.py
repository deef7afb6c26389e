"""Jobs and pods as the API server shows them, read into the core's facts. Ends are believed from the kubelet's reports alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from stepfence.core.world import JobFact, PodFact, PodProblem
from stepfence.schema import CONTAINER_ANNOTATION, WORKER_LABEL
from stepfence.schema.times import parse_time
from stepfence.stores.kube_pods import end_reported

__all__ = ["controller_of", "job_fact", "pod_fact"]

Object = Mapping[str, Any]

# Waiting reasons that a new pod of the same template would have too.
_FATAL = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ErrInvalidImageName",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
    }
)
_MESSAGE = 512


def controller_of(metadata: Object) -> Object | None:
    """Return the owner reference of the controlling object."""
    found: Object | None = next((owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")), None)
    return found


def job_fact(job: Object, run_uid: str) -> JobFact:
    """Read a Job; `foreign` when the run of that uid does not control it, or its number is not the one in its name."""
    metadata, spec, status = job["metadata"], job.get("spec") or {}, job.get("status") or {}
    owner = controller_of(metadata)
    number = (metadata.get("labels") or {}).get(WORKER_LABEL, "")
    ours = owner is not None and owner.get("uid") == run_uid and metadata["name"].rpartition("-")[2] == number
    return JobFact(
        name=metadata["name"],
        number=int(number) if number.isdigit() else 0,
        uid=metadata["uid"],
        started_at=_time(status.get("startTime")) or _time(metadata.get("creationTimestamp")),
        done=any(item["type"] in ("Complete", "Failed") and item["status"] == "True" for item in status.get("conditions") or ()),
        deleting="deletionTimestamp" in metadata,
        suspended=bool(spec.get("suspend", False)),
        foreign=not ours,
    )


def pod_fact(pod: Object, *, gone: bool = False) -> PodFact:
    """Read a pod; `gone` for the last state of one that the API server no longer has."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    owner = controller_of(metadata) or {}
    confirmed = end_reported(pod)
    exit_code, message = _exit(pod)
    return PodFact(
        name=metadata["name"],
        uid=metadata["uid"],
        job=str(owner.get("name", "")) if owner.get("kind") == "Job" else "",
        created_at=_time(metadata.get("creationTimestamp")),
        terminal=confirmed or status.get("phase") in ("Succeeded", "Failed"),
        confirmed=confirmed,
        deletion_at=_time(metadata.get("deletionTimestamp")),
        disrupted=_condition(status, "DisruptionTarget", "True") is not None,
        gone=gone,
        exit_code=exit_code,
        message=message,
        problem=_problem(status),
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else parse_time(text)


def _exit(pod: Object) -> tuple[int | None, str]:
    """Return the exit code that people should read, of the worker's container if it failed, and what was said with it."""
    named = (pod["metadata"].get("annotations") or {}).get(CONTAINER_ANNOTATION) or pod["spec"]["containers"][0]["name"]
    ends = [
        (item["name"] != named, end)
        for item in (pod.get("status") or {}).get("containerStatuses") or ()
        if (end := (item.get("state") or {}).get("terminated")) is not None
    ]
    if not ends:
        return None, str((pod.get("status") or {}).get("message") or "")[:_MESSAGE]
    _, end = min(ends, key=lambda found: (found[1].get("exitCode", 0) == 0, found[0]))
    reason = end.get("reason", "")
    said = end.get("message") or (reason if reason not in ("Error", "Completed") else "")
    return end.get("exitCode", 0), str(said).strip()[-_MESSAGE:]


def _problem(status: Object) -> PodProblem | None:
    for item in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = (item.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _FATAL:
            return PodProblem(waiting["reason"], str(waiting.get("message") or "")[:_MESSAGE], fatal=True)
    unscheduled = _condition(status, "PodScheduled", "False")
    if unscheduled is not None and unscheduled.get("reason") == "Unschedulable":
        return PodProblem("Unschedulable", str(unscheduled.get("message") or "")[:_MESSAGE], fatal=False)
    return None


def _condition(status: Object, kind: str, value: str) -> Object | None:
    found: Object | None = next((item for item in status.get("conditions") or () if item["type"] == kind and item["status"] == value), None)
    return found
