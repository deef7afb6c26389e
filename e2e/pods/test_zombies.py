"""A node is cut off: its workers live on and come back. They are fenced; what they truly did is heard."""

from dataclasses import dataclass

import pytest

from e2e import install
from e2e.pods import processes
from e2e.pods.api import Object
from e2e.pods.outside import Outside
from e2e.pods.runs import notify, preferring, read, refund
from e2e.pods.world import Space
from e2e.provider.wire import Fault, Happening, Route

# Gone soon after its node: else Kubernetes waits minutes before it marks the pod.
SOON = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    for taint in ("not-ready", "unreachable")
]
CUT_SECONDS = 90


@dataclass
class Far:
    """The far node, and a provider on it that its pods reach even while it is cut off."""

    node: str
    url: str
    provider: Outside
    shared: Outside


@pytest.fixture
def far(space: Space) -> Far:
    processes.require_faults(space.world)
    node = space.world.nodes[-1]
    install.apply_provider(space.world.target, space.namespace, node=node, name="far-provider")
    (pod,) = space.world.api.items(f"/api/v1/namespaces/{space.namespace}/pods", "app.kubernetes.io/name=far-provider")
    shared = space.provider
    space.use_own_provider("far-provider", start=False)
    return Far(node, f"http://{pod['status']['podIP']}:8080", space.provider, shared)


def pod_fields(node: str) -> Object:
    return {**preferring(node), "tolerations": SOON}


def test_a_worker_on_a_lost_node_is_fenced_and_its_late_truth_is_heard(space: Space, far: Far) -> None:
    cluster = processes.require_faults(space.world)
    # One worker is inside a payment that is answered while its node is cut off; the other inside a query, with a payment to come.
    far.provider.tell(Route.CREATE_REFUND, run=space.id_of("paying"), after=Fault(delay_seconds=10))
    far.provider.tell(Route.READ_ORDER, run=space.id_of("looking"), before=Fault(delay_seconds=10))
    fields = pod_fields(far.node)
    space.start(space.spec("paying", refund(), notify(), provider=far.url, pod=fields, grace=10))
    space.start(space.spec("looking", read(), refund(), provider=far.url, pod=fields, grace=1))
    far.provider.wait_for(Happening.EFFECT, run=space.id_of("paying"), step="pay")
    far.provider.wait_for(Happening.REQUEST, run=space.id_of("looking"), step="look")
    zombies = {name: space.holder_pod(name) for name in ("paying", "looking")}
    for pod in zombies.values():
        assert space.kubectl("get", "pod", pod, "-o", "jsonpath={.spec.nodeName}") == far.node
    # The next worker must not go to the far node's provider, which nobody reaches now.
    space.patch("looking", {"template": {"spec": space.spec("looking").manifest()["spec"]["template"]["spec"]}})
    with cluster.isolated(far.node):
        _, question = space.until_question("paying", "Reconcile", seconds=CUT_SECONDS)
        assert not question["workerTerminated"], "nobody can confirm the end of a worker on a lost node"
        assert not question["acceptsDidNotHappen"]
        run = space.until_phase("looking", "Succeeded", seconds=CUT_SECONDS)
        assert run.holder.get("pod") != zombies["looking"]
        assert run.token >= 2
    cluster.wait_node(far.node, ready=True)
    space.until_done("paying", "pay")
    run = space.until_phase("paying", "Succeeded", seconds=90)
    assert "answers" not in run.entry("pay"), "the worker's own late word settled the question, no person did"
    assert run.token == 3, "its claim, its settlement, the claim of the worker after it"
    space.until("far provider that is reached", far.provider.answers)
    assert len(far.provider.effects(run=space.id_of("paying"), step="pay")) == 1
    assert far.provider.effects(run=space.id_of("looking")) == [], "the fenced worker began nothing after its query"
    assert len(far.shared.effects(run=space.id_of("looking"), step="pay")) == 1
