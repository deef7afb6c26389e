"""Names, labels and annotations that stand on Kubernetes objects."""

from __future__ import annotations

import hashlib

from stepfence.core.world import job_name

__all__ = [
    "CONTAINER_ANNOTATION",
    "GATEWAY_CA_ANNOTATION",
    "GROUP",
    "IDENTITY_ANNOTATION",
    "PLURAL",
    "PRESTOP_ANNOTATION",
    "PRESTOP_COMMAND_ANNOTATION",
    "PUT_AT_ANNOTATION",
    "RECORD_PLURAL",
    "RUN_LABEL",
    "RUN_UID_LABEL",
    "TOKEN_AUDIENCE",
    "VERSION",
    "WORKER_LABEL",
    "identity_record_name",
    "job_name",
    "record_name",
]

GROUP = "stepfence.dev"
VERSION = "v1alpha1"
PLURAL = "agentruns"
RECORD_PLURAL = "agentrunrecords"
RUN_LABEL = "stepfence.dev/run"
RUN_UID_LABEL = "stepfence.dev/run-uid"
WORKER_LABEL = "stepfence.dev/worker"
IDENTITY_ANNOTATION = "stepfence.dev/identity"
# When a body that stood in a record already was put again.
PUT_AT_ANNOTATION = "stepfence.dev/put-at"
PRESTOP_ANNOTATION = "stepfence.dev/prestop"
PRESTOP_COMMAND_ANNOTATION = "stepfence.dev/prestop-command"
GATEWAY_CA_ANNOTATION = "stepfence.dev/gateway-ca"
CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
TOKEN_AUDIENCE = "stepfence"  # noqa: S105  (an audience, no secret)


def record_name(run_uid: str, digest: str) -> str:
    """Return the name of a body's record: `<run uid>-<first 16 hex of the digest>`."""
    return f"{run_uid}-{digest.removeprefix('sha256:')[:16]}"


def identity_record_name(run_id: str) -> str:
    """Return the name of the record that keeps a spent identity."""
    return f"id-{hashlib.sha256(run_id.encode()).hexdigest()[:40]}"
