"""What the gate believes of pods, on a real API server: owners by uid, ends by the kubelet's word, leases by the clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.contract.kube import client_of, crd, install_crds
from e2e.contract.workers import Workers
from stepfence.core.errors import Refused, Unknown
from stepfence.core.fencing import HolderFact
from stepfence.core.model import Holder, Run
from stepfence.ports import Caller, RunKey
from stepfence.stores.kube_client import KubeClient, Reply
from stepfence.stores.kube_gate import KubeWorkerGate
from stepfence.testing import FakeClock

ALIVE, OVER = HolderFact.ALIVE, HolderFact.OVER


class Counting:
    """A client that counts its calls by path."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._client, name)

        async def counted(path: str, *more: Any, **named: Any) -> Reply:
            self.calls.append(path)
            reply: Reply = await call(path, *more, **named)
            return reply

        return counted


class World:
    def __init__(self, workers: Workers, client: KubeClient) -> None:
        self.workers, self.client = workers, Counting(client)
        self.clock = FakeClock(datetime.now(UTC))
        self.gate = KubeWorkerGate(self.client, self.clock)  # type: ignore[arg-type]

    async def held(self) -> tuple[Run, Caller]:
        """A run held by a running pod of its worker, claimed just now under a lease of 60 s."""
        key = await self.workers.new_run()
        run = (await self.workers.stored(key)).run
        assert run.worker is not None
        caller = caller_of(key, await self.workers.pod(run.worker.job, f"{run.worker.job}-pod"))
        now = self.clock.now()
        return replace(run, holder=Holder(caller.pod, caller.pod_uid, "request", now, now, 60)), caller


def caller_of(key: RunKey, pod: Mapping[str, Any]) -> Caller:
    return Caller(key.namespace, pod["metadata"]["name"], pod["metadata"]["uid"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster("contract-gate", nodes=0) as cluster:
        install_crds(cluster, crd("agentruns"), crd("agentrunrecords"))
        yield cluster


@pytest.fixture
async def world(cluster: Cluster) -> AsyncIterator[World]:
    async with client_of(cluster) as client:
        workers = Workers(client, "support")
        await workers.prepare()
        yield World(workers, client)


class TestHolder:
    async def test_nobody_is_over(self, world: World) -> None:
        run, _ = await world.held()
        assert await world.gate.holder(replace(run, holder=None)) is OVER

    async def test_a_running_pod_is_alive_however_long_it_has_been_silent(self, world: World) -> None:
        run, _ = await world.held()
        assert await world.gate.holder(run) is ALIVE
        world.clock.advance(86_400)
        assert await world.gate.holder(run) is ALIVE

    async def test_a_terminated_container_ends_it_and_a_phase_alone_does_not(self, world: World) -> None:
        run, caller = await world.held()
        for phase in ("Failed", "Succeeded"):
            await world.workers.container(caller.pod, None, phase)
            assert await world.gate.holder(run) is ALIVE
        await world.workers.container(caller.pod, {"waiting": {"reason": "ContainerCreating"}}, "Failed")
        assert await world.gate.holder(run) is ALIVE
        await world.workers.terminated(caller.pod)
        assert await world.gate.holder(run) is OVER

    async def test_a_debug_container_that_still_runs_keeps_it_alive(self, world: World) -> None:
        run, caller = await world.held()
        await world.workers.terminated(caller.pod)
        path = f"/api/v1/namespaces/support/pods/{caller.pod}/status"
        debugging = {"name": "debug", "image": "i", "imageID": "", "ready": True, "restartCount": 0, "state": {"running": {}}}
        await world.workers.merge(path, {"status": {"ephemeralContainerStatuses": [debugging]}})
        assert await world.gate.holder(run) is ALIVE

    async def test_a_pod_that_is_gone_or_another_under_its_name_is_over(self, world: World) -> None:
        run, caller = await world.held()
        assert run.worker is not None
        await world.workers.delete("v1", "pods", caller.pod, gracePeriodSeconds=0)
        assert await world.gate.holder(run) is OVER
        await world.workers.pod(run.worker.job, caller.pod)
        assert await world.gate.holder(run) is OVER

    async def test_a_lost_node_is_believed_when_grace_and_lease_are_over_both(self, world: World) -> None:
        run, caller = await world.held()
        path = f"/api/v1/namespaces/support/pods/{caller.pod}"
        # No kubelet confirms it, so that the pod stays, as on a node that was lost.
        reply = await world.client._client._call("DELETE", path, {}, {"gracePeriodSeconds": 90}, "application/json", None)
        assert reply.ok
        world.clock.advance(80)
        assert await world.gate.holder(run) is ALIVE  # the lease is over, the grace is not
        world.clock.advance(20)
        assert await world.gate.holder(run) is OVER
        assert run.holder is not None
        renewed = replace(run.holder, renewed_at=world.clock.now())
        assert await world.gate.holder(replace(run, holder=renewed)) is ALIVE  # it wrote a moment ago

    async def test_a_lost_node_whose_worker_renewed_its_lease_is_alive_until_that_is_over_too(self, world: World) -> None:
        run, caller = await world.held()
        path = f"/api/v1/namespaces/support/pods/{caller.pod}"
        await world.client._client._call("DELETE", path, {}, {"gracePeriodSeconds": 1}, "application/json", None)
        world.clock.advance(50)
        await world.gate.renew(run, caller)
        world.clock.advance(59)
        assert await world.gate.holder(run) is ALIVE
        world.clock.advance(1)
        assert await world.gate.holder(run) is OVER

    async def test_a_renewal_by_another_pod_of_the_job_says_nothing_of_the_holder(self, world: World) -> None:
        run, caller = await world.held()
        assert run.worker is not None
        other = caller_of(RunKey("support", run.name), await world.workers.pod(run.worker.job, f"{caller.pod}-2"))
        path = f"/api/v1/namespaces/support/pods/{caller.pod}"
        await world.client._client._call("DELETE", path, {}, {"gracePeriodSeconds": 1}, "application/json", None)
        world.clock.advance(70)
        await world.gate.renew(run, other)
        assert await world.gate.holder(run) is OVER

    async def test_an_api_server_that_does_not_answer_is_unknown(self, cluster: Cluster, world: World) -> None:
        run, caller = await world.held()
        async with client_of(cluster, seconds=0.5) as impatient:
            gate = KubeWorkerGate(impatient, world.clock)
            with cluster.frozen("kube-apiserver"):
                with pytest.raises(Unknown):
                    await gate.holder(run)
                with pytest.raises(Unknown):
                    await gate.worker_of(caller)
                with pytest.raises(Unknown):
                    await gate.identify("a.b.c")


class TestWorkerOf:
    async def test_it_follows_controllers_from_pod_to_job_to_run(self, world: World) -> None:
        run, caller = await world.held()
        found = await world.gate.worker_of(caller)
        assert found is not None
        assert run.worker is not None
        assert (found.run, found.run_uid, found.job) == (run.name, run.uid, run.worker.job)

    async def test_what_it_found_is_not_asked_again(self, world: World) -> None:
        _, caller = await world.held()
        await world.gate.worker_of(caller)
        asked = len(world.client.calls)
        await world.gate.worker_of(caller)
        assert len(world.client.calls) == asked

    async def test_a_pod_of_nobody_is_no_worker_and_asked_again_after_a_moment(self, world: World) -> None:
        await world.workers.pod(None, name := f"alone-{id(world)}")
        pod = await world.workers.get("v1", "pods", name)
        caller = caller_of(RunKey("support", "x"), pod)
        assert await world.gate.worker_of(caller) is None
        asked = len(world.client.calls)
        assert await world.gate.worker_of(caller) is None
        assert len(world.client.calls) == asked
        world.clock.advance(10)
        assert await world.gate.worker_of(caller) is None
        assert len(world.client.calls) == asked + 1

    @pytest.mark.parametrize("wrong", [{"pod_uid": "another"}, {"pod": "nowhere"}], ids=["uid", "name"])
    async def test_a_caller_that_is_not_the_pod_of_that_name_is_no_worker(self, world: World, wrong: dict[str, str]) -> None:
        _, caller = await world.held()
        assert await world.gate.worker_of(replace(caller, **wrong)) is None

    async def test_an_owner_that_is_not_the_controller_or_has_another_uid_counts_nothing(self, world: World) -> None:
        run, caller = await world.held()
        assert run.worker is not None
        job = await world.workers.get("batch/v1", "jobs", run.worker.job)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": run.worker.job, "uid": job["metadata"]["uid"]}
        plain: dict[str, Any] = {"controller": False}
        for name, changes in [("plain", plain), ("stranger", {"controller": True, "uid": run.uid})]:
            pod = await world.workers.pod(None, f"{caller.pod}-{name}", ownerReferences=[{**owner, **changes}])
            assert await world.gate.worker_of(caller_of(RunKey("support", run.name), pod)) is None


class TestIdentify:
    async def test_a_pods_token_names_the_pod(self, world: World) -> None:
        _, caller = await world.held()
        bearer = await world.workers.token({"metadata": {"name": caller.pod, "uid": caller.pod_uid}})
        assert await world.gate.identify(bearer) == caller

    async def test_a_review_is_believed_for_a_minute_and_no_longer(self, world: World) -> None:
        _, caller = await world.held()
        bearer = await world.workers.token({"metadata": {"name": caller.pod, "uid": caller.pod_uid}})
        await world.gate.identify(bearer)
        asked = len(world.client.calls)
        world.clock.advance(59.9)
        await world.gate.identify(bearer)
        assert len(world.client.calls) == asked
        world.clock.advance(0.1)
        # Asked again; the API server keeps answers of its own for some seconds more.
        await world.gate.identify(bearer)
        assert len(world.client.calls) == asked + 1

    async def test_what_was_refused_is_kept_for_five_seconds(self, world: World) -> None:
        for _ in range(2):
            asked = len(world.client.calls)
            for _ in range(3):
                with pytest.raises(Refused):
                    await world.gate.identify("no.jwt.atall")
            assert len(world.client.calls) == asked + 1
            world.clock.advance(5)


async def test_a_renewal_says_when_and_for_how_long(world: World) -> None:
    run, caller = await world.held()
    await world.gate.renew(run, caller)
    assert run.worker is not None
    spec = (await world.workers.get("coordination.k8s.io/v1", "leases", run.worker.job))["spec"]
    assert (spec["leaseDurationSeconds"], spec["holderIdentity"]) == (60, caller.pod_uid)
    assert abs(datetime.fromisoformat(spec["renewTime"]) - world.clock.now()) < timedelta(milliseconds=1)
