"""The NetworkPolicies are there, choose the pods that they mean, and do not stand in the way of a run."""

from collections.abc import Callable

from e2e.install import NAMESPACE
from e2e.pods.api import Object
from e2e.pods.runs import read
from e2e.pods.world import Space

_KNOCK = "import socket; socket.create_connection(('stepfence-gateway.stepfence-system', 8443), 5)"
POLICIES = {
    "stepfence-default-deny": {"controller", "gateway"},
    "stepfence-controller": {"controller"},
    "stepfence-gateway": {"gateway"},
}


def test_each_policy_is_applied_and_chooses_the_servers_that_it_names(space: Space) -> None:
    path = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"
    found = {each["metadata"]["name"]: each["spec"]["podSelector"].get("matchLabels", {}) for each in space.world.api.items(path)}
    assert found.keys() == POLICIES.keys()
    for name, labels in found.items():
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        chosen = space.world.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods", selector)
        assert {pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in chosen} == POLICIES[name]


def test_a_worker_reaches_the_gateway_under_the_policies_and_who_else_does_is_reported(
    space: Space, record_property: Callable[[str, object], None]
) -> None:
    space.start(space.spec("reaches", read()))
    space.until_phase("reaches", "Succeeded")
    stranger = space.spec("stranger", read(), command=("python", "-c", _KNOCK)).manifest()["spec"]["template"]["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"}, "spec": {**stranger, **_restricted(stranger)}}
    space.apply(pod)
    phase = space.until("end of the stranger", lambda: _ended(space))
    if phase == "Failed":
        record_property("network-policy-enforced", "true")


def _restricted(spec: Object) -> Object:
    """What Pod Security asks of a pod that no controller of ours fills in."""
    (container,) = spec["containers"]
    closed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {"restartPolicy": "Never", "securityContext": pod, "containers": [{**container, "securityContext": closed}]}


def _ended(space: Space) -> str | None:
    phase = space.kubectl("get", "pod", "stranger", "-o", "jsonpath={.status.phase}")
    return phase if phase in {"Succeeded", "Failed"} else None
