"""The leader's Lease, over a scripted API server."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from stepfence.controller.leader import LEASE_NAME, Leadership, LeaseLock
from stepfence.controller.settings import ControllerSettings
from stepfence.core.errors import Unknown
from stepfence.stores.kube_client import KubeClient, Reply

SETTINGS = ControllerSettings(pod_name="a", election_lease_seconds=1.6, election_renew_seconds=1.3, election_retry_seconds=1)


class Leases:
    """One Lease under compare-and-swap; away when told so."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.away = False
        self._revision = 0

    def _check(self) -> None:
        if self.away:
            raise Unknown("away")

    async def get(self, path: str, **_: Any) -> Reply:
        self._check()
        if self.lease is None:
            return Reply(404, {"details": {"name": LEASE_NAME}, "message": "not found"})
        return Reply(200, copy.deepcopy(self.lease))

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        self._check()
        return self._store(body) if self.lease is None else Reply(409, {"reason": "AlreadyExists"})

    async def put(self, path: str, body: Mapping[str, Any]) -> Reply:
        self._check()
        assert self.lease is not None
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            return Reply(409, {"reason": "Conflict"})
        return self._store(body)

    def _store(self, body: Mapping[str, Any]) -> Reply:
        self._revision += 1
        self.lease = copy.deepcopy(dict(body))
        self.lease["metadata"]["resourceVersion"] = str(self._revision)
        return Reply(200, copy.deepcopy(self.lease))


async def until(fact: Callable[[], bool]) -> None:
    turn = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(20):
        while not fact():
            turn.clear()
            loop.call_later(0.02, turn.set)
            await turn.wait()


def lock(leases: Leases, identity: str) -> LeaseLock:
    return LeaseLock(cast("KubeClient", leases), LEASE_NAME, "ns", identity, lambda _: None)


async def test_of_two_that_read_the_same_lease_one_gets_it() -> None:
    leases = Leases()
    from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord

    def record(name: str) -> LeaderElectionRecord:
        return LeaderElectionRecord(name, "15", "2026-01-02 03:04:05.678901", "2026-01-02 03:04:05.678901")

    a, b = lock(leases, "a"), lock(leases, "b")
    assert await a.create(LEASE_NAME, "ns", record("a"))
    assert not await b.create(LEASE_NAME, "ns", record("b"))
    for one in (a, b):
        found, _ = await one.get(LEASE_NAME, "ns")
        assert found
    assert await b.update(LEASE_NAME, "ns", record("b"))
    assert not await a.update(LEASE_NAME, "ns", record("a"))
    assert leases.lease is not None
    spec = leases.lease["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("b", 2, 15)
    assert spec["renewTime"].endswith("Z")


@pytest.mark.parametrize("status", [403, 500])
async def test_an_error_that_is_no_404_never_makes_a_lease(status: int) -> None:
    class Broken(Leases):
        async def get(self, path: str, **_: Any) -> Reply:
            return Reply(status, {"message": "no"})

    found, error = await lock(Broken(), "a").get(LEASE_NAME, "ns")
    assert not found
    assert f'"code": {status}' in error.body


async def test_a_leader_that_cannot_renew_stops_by_its_own_clock_and_another_takes_over() -> None:
    leases, terms = Leases(), []
    leading = Leadership(cast("KubeClient", leases), SETTINGS)
    leading.on_start, leading.on_stop = (lambda: terms.append("start")), (lambda: terms.append("stop"))
    task = asyncio.create_task(leading.run())
    await until(leading.leads)
    leases.away = True
    await until(lambda: not leading.leads())
    await until(lambda: terms == ["start", "stop"])
    leases.away = False
    await until(leading.leads)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not leading.leads()
    assert terms == ["start", "stop", "start", "stop"]
    assert leases.lease is not None
    assert leases.lease["spec"]["holderIdentity"] == ""
    follower = Leadership(cast("KubeClient", leases), ControllerSettings(pod_name="b"))
    other = asyncio.create_task(follower.run())
    await until(follower.leads)
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other


async def test_a_replica_that_can_neither_lead_nor_follow_is_not_ready_until_it_can() -> None:
    leases = Leases()
    leases.away = True
    replica = Leadership(cast("KubeClient", leases), SETTINGS)
    assert replica.problem() is None
    task = asyncio.create_task(replica.run())
    await until(lambda: replica.problem() is not None)
    leases.away = False
    await until(replica.leads)
    assert replica.problem() is None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_who_sees_another_lead_follows_and_has_no_problem() -> None:
    leases = Leases()
    leader, follower = (Leadership(cast("KubeClient", leases), replace(SETTINGS, pod_name=name)) for name in "ab")
    tasks = [asyncio.create_task(leader.run())]
    await until(leader.leads)
    tasks.append(asyncio.create_task(follower.run()))
    lasts = asyncio.get_running_loop().time() + 3 * SETTINGS.election_lease_seconds
    await until(lambda: follower.problem() is not None or asyncio.get_running_loop().time() > lasts)
    assert follower.problem() is None
    assert not follower.leads()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
