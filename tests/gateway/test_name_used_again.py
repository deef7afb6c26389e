"""A run is deleted and made again under the same name: what belonged to the first one has no part in the second."""

from typing import Any

import httpx
import pytest

from stepfence.app import Applier, WorkerCalls
from stepfence.gateway.app import create_app
from stepfence.testing import FakeIds, MemoryRun
from tests.gateway.support import Gateway, Pod, code, gateway

ROUTES: dict[str, dict[str, Any]] = {
    "/steps/refund/begin": {"payload": {}},
    "/steps/refund/complete": {"attempt": 1, "result": {}},
    "/steps/refund/lose": {"attempt": 1, "reason": "TimedOut"},
    "/drain": {},
    "/release": {"reason": "Drained"},
    "/finish": {},
}


async def made_again(world: Gateway) -> tuple[Pod, MemoryRun]:
    """A worker that has begun a payment, and the run that took the place of its own."""
    pod = await world.claimed()
    begun = await pod.post("/steps/refund/begin", payload={})
    assert begun.json()["outcome"] == "Go"
    world.cluster.store.delete(pod.run.key)
    return pod, await world.run()


@pytest.mark.parametrize("route", ROUTES)
async def test_a_worker_of_the_first_run_has_no_say_in_the_second(route: str) -> None:
    async with gateway() as world:
        pod, second = await made_again(world)
        before = world.cluster.store.document(second.key)
        answer = await pod.post(route, **ROUTES[route])
        assert (answer.status_code, code(answer)) == (404, "not-found")
        assert world.cluster.store.document(second.key) == before


async def test_a_gateway_that_remembers_the_first_run_hears_the_worker_of_the_second() -> None:
    async with gateway() as world:
        first = await world.claimed()
        cluster = world.cluster
        other = Applier(cluster.store, world.clock, FakeIds(), cluster.settings)
        await other.read(first.run.key)
        cluster.store.delete(first.run.key)
        second = await world.pod(await world.run())
        await second.claim()
        # A process that was started anew in its pod: its token is beyond the one that the other gateway knows of the first run.
        await second.claim()
        app = create_app(WorkerCalls(other, cluster.records, cluster.gate), cluster.gate)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            second.client = client
            begun = await second.post("/steps/refund/begin", payload={})
        assert begun.status_code == 200, begun.text
        assert begun.json()["outcome"] == "Go"
