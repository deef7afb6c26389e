"""Story 3: the worker is killed while no Create, Payment or Delete is in flight; the run goes on elsewhere and repeats nothing."""

from collections.abc import Iterator

import pytest

from e2e.pods.outside import HANG
from e2e.pods.runs import notify, preferring, read, refund
from e2e.pods.world import Space, World
from e2e.provider.wire import Happening, Route

SCRIPT = (read("first"), refund(), read("second"), notify())


def start_and_stop_in_second_read(space: Space, **more: object) -> str:
    """A run that has looked and paid, and whose worker is inside its second query. Returns the pod."""
    rule = space.provider.tell(Route.READ_ORDER, run=space.id_of("refund"), step="second", before=HANG)
    space.start(space.spec("refund", *SCRIPT, **more))
    space.until_hanging(rule)
    assert space.run("refund").state("pay") == "Done"
    return space.holder_pod("refund")


def require_gone_on(space: Space, old_pod: str) -> None:
    run = space.until_phase("refund", "Succeeded")
    assert run.token >= 2
    assert run.worker["number"] >= 2
    pods = {entry.step: entry.pod for entry in space.provider.entries(Happening.ANSWER, run=space.id_of("refund"))}
    assert pods["first"] == pods["pay"] == old_pod, "what was finished is replayed from the ledger, not asked again"
    assert pods["second"] != old_pod
    assert pods["tell"] != old_pod
    asked = [entry.step for entry in space.provider.entries(Happening.REQUEST, run=space.id_of("refund"))]
    assert (asked.count("first"), asked.count("pay"), asked.count("tell")) == (1, 1, 1)
    assert {each["verdict"] for entry in run.status["ledger"].values() for each in entry.get("answers", ())} == set()


def test_a_deleted_pod_is_followed_by_another_and_nothing_is_done_twice(space: Space) -> None:
    pod = start_and_stop_in_second_read(space)
    space.delete_pod(pod)
    require_gone_on(space, pod)


def test_after_sigkill_inside_the_pod_the_run_goes_on_and_nothing_is_done_twice(space: Space) -> None:
    pod = start_and_stop_in_second_read(space)
    space.sigkill(pod)
    require_gone_on(space, pod)


@pytest.fixture
def drainable(world: World) -> Iterator[str]:
    """A node that may be drained: not the one that the shared provider lives on. It takes pods again afterwards."""
    if len(world.nodes) < 2:
        pytest.skip("a drain needs a second node")
    node = world.nodes[-1]
    yield node
    world.kubectl("uncordon", node)


def test_after_a_drain_of_its_node_the_run_goes_on_elsewhere_and_nothing_is_done_twice(space: Space, drainable: str) -> None:
    pod = start_and_stop_in_second_read(space, pod=preferring(drainable))
    where = space.kubectl("get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")
    assert where == drainable
    space.world.kubectl("drain", drainable, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=100s", seconds=120)
    require_gone_on(space, pod)
    assert {each["spec"]["nodeName"] for each in space.living_pods("refund")} <= set(space.world.nodes) - {drainable}
