"""The Job of one worker: the user's pod template, and what a worker needs to find and prove itself to the gateway."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepfence.core.decide import WorkerPlan
from stepfence.core.model import Run, StepSpec
from stepfence.schema import (
    CONTAINER_ANNOTATION,
    GATEWAY_CA_ANNOTATION,
    GROUP,
    PRESTOP_ANNOTATION,
    PRESTOP_COMMAND_ANNOTATION,
    RUN_LABEL,
    RUN_UID_LABEL,
    TOKEN_AUDIENCE,
    VERSION,
    WORKER_LABEL,
)

__all__ = ["MANAGED_BY", "Injection", "build_job", "run_labels"]

Document = dict[str, Any]

MANAGED_BY = ("app.kubernetes.io/managed-by", "stepfence")
IDENTITY_DIR = "/var/run/stepfence"
STATE_DIR = "/var/run/stepfence-state"
_IDENTITY_VOLUME, _STATE_VOLUME = "stepfence-identity", "stepfence-state"
_TOKEN_SECONDS = 3600
_DEFAULT_STEP_SECONDS = 60
_STATE_LIMIT = "16Mi"


@dataclass(frozen=True, slots=True)
class Injection:
    """What every worker is told: where the gateway is, whom to trust there, the operator's margin in seconds."""

    gateway_url: str
    gateway_ca: str
    margin: int


def run_labels(run: Run) -> dict[str, str]:
    """Return the labels that Jobs and pods of a run carry."""
    return {RUN_LABEL: run.name, RUN_UID_LABEL: run.uid, MANAGED_BY[0]: MANAGED_BY[1]}


def build_job(run: Run, template: Mapping[str, Any], plan: WorkerPlan, told: Injection) -> Document:
    """Return the Job of that worker. What the template sets itself stays; the worker's container is the default one, else the first."""
    given: Document = copy.deepcopy(dict(template))
    metadata, spec = given.setdefault("metadata", {}), given.setdefault("spec", {})
    labels = {**(metadata.get("labels") or {}), **run_labels(run), WORKER_LABEL: str(plan.number)}
    metadata["labels"] = labels
    annotations = metadata["annotations"] = {**(metadata.get("annotations") or {}), GATEWAY_CA_ANNOTATION: told.gateway_ca}
    container = _worker_container(spec, annotations)
    _inject_identity(spec, container, run, plan, told)
    _inject_drain(container, annotations)
    _start_once(spec)
    spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("terminationGracePeriodSeconds", _longest_step(run) + told.margin)
    _secure(spec)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": plan.job,
            "namespace": run.namespace,
            # The template's labels too: queueing tools look for theirs on the Job.
            "labels": labels,
            "ownerReferences": [_owner(run)],
        },
        # Every new worker is a decision of ours: a Job makes one pod, and no second one on its own account.
        "spec": {"backoffLimit": 0, "completions": 1, "parallelism": 1, "podReplacementPolicy": "Failed", "template": given},
    }


def _owner(run: Run) -> Document:
    # Blocking the owner's deletion would need rights on its finalizers, and wait for nothing that matters.
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "AgentRun",
        "name": run.name,
        "uid": run.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _longest_step(run: Run) -> int:
    steps: tuple[StepSpec, ...] = (run.plan.steps if run.plan is not None else run.spec.steps) or ()
    return max((step.timeout for step in steps), default=_DEFAULT_STEP_SECONDS)


def _worker_container(spec: Document, annotations: Mapping[str, str]) -> Document:
    containers: list[Document] = spec.get("containers") or [{}]
    spec["containers"] = containers
    named = annotations.get(CONTAINER_ANNOTATION)
    return next((container for container in containers if container.get("name") == named), containers[0])


def _inject_identity(spec: Document, container: Document, run: Run, plan: WorkerPlan, told: Injection) -> None:
    values = {
        "STEPFENCE_GATEWAY": told.gateway_url,
        "STEPFENCE_NAMESPACE": run.namespace,
        "STEPFENCE_RUN": run.name,
        "STEPFENCE_RUN_UID": run.uid,
        "STEPFENCE_WORKER": str(plan.number),
        "STEPFENCE_TOKEN_FILE": f"{IDENTITY_DIR}/token",
        "STEPFENCE_CA_FILE": f"{IDENTITY_DIR}/ca.crt",
        "STEPFENCE_STATE_DIR": STATE_DIR,
    }
    theirs = [item for item in container.get("env") or () if item.get("name") not in values]
    container["env"] = [{"name": name, "value": value} for name, value in values.items()] + theirs
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or ()),
        {"name": _IDENTITY_VOLUME, "mountPath": IDENTITY_DIR, "readOnly": True},
        {"name": _STATE_VOLUME, "mountPath": STATE_DIR},
    ]
    token = {"serviceAccountToken": {"audience": TOKEN_AUDIENCE, "expirationSeconds": _TOKEN_SECONDS, "path": "token"}}
    field = {"fieldPath": f"metadata.annotations['{GATEWAY_CA_ANNOTATION}']"}
    authority = {"downwardAPI": {"items": [{"path": "ca.crt", "fieldRef": field}]}}
    spec["volumes"] = [
        *(spec.get("volumes") or ()),
        {"name": _IDENTITY_VOLUME, "projected": {"sources": [token, authority]}},
        {"name": _STATE_VOLUME, "emptyDir": {"sizeLimit": _STATE_LIMIT}},
    ]


def _inject_drain(container: Document, annotations: Mapping[str, str]) -> None:
    """Let the worker drain before SIGTERM: its own hook wins, and an image without the command says so by annotation."""
    lifecycle = container.get("lifecycle") or {}
    if "preStop" in lifecycle or annotations.get(PRESTOP_ANNOTATION, "").lower() == "false":
        return
    command = annotations.get(PRESTOP_COMMAND_ANNOTATION, "stepfence drain").split()
    container["lifecycle"] = {**lifecycle, "preStop": {"exec": {"command": command}}}


def _start_once(spec: Document) -> None:
    """Let no container start again in its pod: that all of them ended must mean that the pod's work is over (R1). Sidecars may."""
    spec["restartPolicy"] = "Never"
    for container in spec["containers"]:
        for name in ("restartPolicy", "restartPolicyRules"):
            container.pop(name, None)


def _secure(spec: Document) -> None:
    """Fill in what Pod Security calls restricted, where the template leaves it open."""
    pod = spec["securityContext"] = dict(spec.get("securityContext") or {})
    if pod.get("runAsUser") != 0:
        pod.setdefault("runAsNonRoot", True)
    pod.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    for container in [*spec["containers"], *(spec.get("initContainers") or ())]:
        own = container["securityContext"] = dict(container.get("securityContext") or {})
        if own.get("runAsUser") == 0:
            own.setdefault("runAsNonRoot", False)
        if own.get("privileged"):
            continue
        own["capabilities"] = {"drop": ["ALL"], **(own.get("capabilities") or {})}
        # The API server refuses the one with the other.
        if not {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(own["capabilities"].get("add") or ()):
            own.setdefault("allowPrivilegeEscalation", False)
