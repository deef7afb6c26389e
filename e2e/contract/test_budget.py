"""The byte budget against a real etcd: the same load fills it without the budget, and goes through with it.

The proportions are those of a cluster with defaults, 2 GiB of quota and five minutes between compactions, on a smaller scale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from e2e.cluster import Cluster
from e2e.contract.kube import TEMPLATE, Objects, client_of, crd, install_crds
from stepfence.app import Applier
from stepfence.app.budget import ByteBudget
from stepfence.app.system import SystemClock, SystemIds
from stepfence.core.errors import Unknown
from stepfence.core.words import Settings, State
from stepfence.ports import RunKey
from stepfence.stores.kube import KubeRunStore
from stepfence.stores.kube_client import KubeClient
from tests.stores.contract import Driver

MIB = 1024 * 1024
QUOTA = 16 * MIB
COMPACTION = "10s"
# History of two compactions, 2 x 10 s, and a fifth for etcd's pages, is half of the quota.
BYTES_PER_SECOND = 384 * 1024
RUNS, STEPS = 4, 20
FULL = "database space exceeded"


class Meter:
    """Adds up what the budget let through."""

    def __init__(self) -> None:
        self.bytes, self.waited = 0, 0.0

    def spent(self, size: int, waited: float, *, urgent: bool) -> None:
        self.bytes += size
        self.waited += waited

    def refused(self, size: int, *, urgent: bool) -> None:
        raise AssertionError("four writers never make a line that is too long")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster("contract-budget", nodes=0, etcd_quota_bytes=QUOTA, etcd_compaction=COMPACTION) as cluster:
        install_crds(cluster, crd("agentruns"), crd("agentrunrecords"))
        yield cluster


async def load(client: KubeClient, budget: ByteBudget | None) -> list[str]:
    """Let some runs go through all their steps at once, each write of some 100 KiB; return their names when all have ended."""
    store, objects = KubeRunStore(client), Objects(client)
    steps = [{"id": f"step-{number}", "action": "Read"} for number in range(STEPS)]
    template = {"metadata": {"annotations": {"notes": "n" * 40_000}}, **TEMPLATE}

    async def one(number: int) -> str:
        driver = Driver(store, f"pod-{number}")
        driver.applier = Applier(store, SystemClock(), SystemIds(), Settings(), budget=budget)
        key = await objects.create_run(f"run-{number}", plan={"steps": steps}, input={"text": "t" * 60_000}, template=template)
        await driver.accept(key)
        await driver.claim(key)
        for step in steps:
            await driver.begin(key, step["id"], 1)
            await driver.complete(key, step["id"], 1, {"ok": True})
        return key.name

    async with asyncio.timeout(240), asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number)) for number in range(RUNS)]
    return [task.result() for task in tasks]


async def test_without_the_budget_the_load_fills_etcd_for_everybody(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        with pytest.raises(ExceptionGroup) as failed:
            await load(client, None)
    for error in failed.value.exceptions:
        assert isinstance(error, Unknown)
        assert FULL in str(error)
    refused = cluster.try_kubectl("create", "configmap", "of-somebody-else", "--namespace", "default")
    assert refused.returncode != 0
    assert FULL in refused.stderr


async def test_with_the_budget_all_runs_of_the_same_load_end(cluster: Cluster) -> None:
    meter = Meter()
    budget = ByteBudget(SystemClock(), BYTES_PER_SECOND, meter=meter)
    async with client_of(cluster) as client:
        names = await load(client, budget)
        for name in names:
            run = (await Objects(client).stored(RunKey("default", name))).run
            assert [entry.state for entry in run.ledger.values()] == [State.DONE] * STEPS
    # It is the load that would have filled it, and it did wait.
    assert meter.bytes > QUOTA
    assert meter.waited > 1
    cluster.kubectl("create", "configmap", "of-somebody-else", "--namespace", "default")
