"""Builders of AgentRuns whose workers do what the test tells them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

IMAGE = "stepfence-samples:dev"
AGENTS = "agents"
# `sh` stays process 1, so that the agent can be killed by SIGKILL from inside its pod.
_BESIDE_SHELL = "python /agents/scripted.py; exit $?"
_STARTED_ANEW = "while :; do python /agents/scripted.py; code=$?; case $code in 0|75|76|77) exit $code;; esac; done"


def read(step: str = "look", **more: Any) -> Object:
    """A query: begun again freely."""
    return {"step": step, "action": "Read", "call": "order", **more}


def refund(step: str = "pay", **more: Any) -> Object:
    """A payment."""
    return {"step": step, "action": "Payment", "call": "refund", **more}


def notify(step: str = "tell", **more: Any) -> Object:
    """A message."""
    return {"step": step, "action": "Create", "call": "notification", **more}


def ticket(step: str = "mark", **more: Any) -> Object:
    """A field that is set to a value."""
    return {"step": step, "action": "Upsert", "call": "ticket", **more}


def delete(step: str = "drop", **more: Any) -> Object:
    """A deletion."""
    return {"step": step, "action": "Delete", "call": "record", **more}


@dataclass
class RunSpec:
    """What a test wants of a run. `planned` has further fields of `spec.plan.steps`, by step id.

    `grace` is the pod's termination grace in seconds; short, for tests wait for it.
    """

    name: str
    script: Sequence[Object]
    provider: str
    planned: dict[str, Object] = field(default_factory=dict)
    restarts: bool = False
    grace: int = 2
    image: str = IMAGE
    command: Sequence[str] | None = None
    pod: Object = field(default_factory=dict)
    spec: Object = field(default_factory=dict)
    by_worker: bool = False

    def manifest(self) -> Object:
        """The AgentRun."""
        script = {"script": list(self.script)}
        spec: Object = {"input": script, "template": {"spec": self._pod()}, **self.spec}
        if not self.by_worker:
            spec["plan"] = {"steps": [self._step(op) for op in steps_of(self.script)]}
        return {"apiVersion": "stepfence.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": self.name}, "spec": spec}

    def _step(self, op: Object) -> Object:
        timing = {"timeoutSeconds": 60, "settleSeconds": 1}
        return {"id": op["step"], "action": op["action"], **timing, **self.planned.get(op["step"], {})}

    def _pod(self) -> Object:
        shell = _STARTED_ANEW if self.restarts else _BESIDE_SHELL
        container = {
            "name": "worker",
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": list(self.command or ("sh", "-c", shell)),
            "env": [{"name": "PROVIDER_URL", "value": self.provider}],
            "volumeMounts": [{"name": "agents", "mountPath": "/agents"}],
        }
        volume = {"name": "agents", "configMap": {"name": AGENTS}}
        return {"terminationGracePeriodSeconds": self.grace, "containers": [container], "volumes": [volume], **self.pod}


def steps_of(script: Sequence[Object]) -> list[Object]:
    """The operations of a script that are steps, those side by side too."""
    found: list[Object] = []
    for op in script:
        if "step" in op:
            found.append(op)
        found += steps_of(op.get("parallel", ()))
    return found


def preferring(node: str) -> Object:
    """Pod fields that send a worker to a node as long as it takes pods."""
    wish = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": wish}]}}}
