"""Orphans are swept from a real API server: by metadata alone, page by page, and only as they were seen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.contract.kube import GROUP_VERSION, Objects, client_of, crd, install_crds
from stepfence.app import Applier
from stepfence.app.sweep import Sweeper, Swept
from stepfence.app.system import SystemIds
from stepfence.core import lifecycle
from stepfence.core.canonical import canonical, digest
from stepfence.core.model import Body, Run
from stepfence.core.words import At, Outcome, Settings
from stepfence.ports import RecordKind, RunKey, Stored
from stepfence.schema import RECORD_PLURAL
from stepfence.stores import kube_records
from stepfence.stores.kube import KubeRunStore
from stepfence.stores.kube_client import KubeClient, Reply, kube_path
from stepfence.stores.kube_records import KubeRecordStore
from tests.stores.contract import Driver

GRACE = Settings().orphan_grace


class Later:
    """The system's clock, moved on."""

    ahead = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def monotonic(self) -> float:
        return self.now().timestamp()


class World:
    def __init__(self, client: KubeClient) -> None:
        self.client, self.clock, self.store = client, Later(), KubeRunStore(client)
        self.objects, self.records = Objects(client), KubeRecordStore(client, self.clock.now)
        self.applier = Applier(self.store, self.clock, SystemIds(), Settings())
        self.sweeper = Sweeper(self.applier, self.records, self.clock)

    async def run(self, name: str) -> Stored:
        """A claimed run with a plan, its identity spent."""
        key = await self.objects.create_run(name, plan={"steps": [{"id": "pay", "action": "Payment"}]}, runID=name)
        driver = Driver(self.store)
        await driver.accept(key)
        stored = await driver.claim(key)
        await self.records.spend(stored.run)
        return stored

    async def put(self, stored: Stored, text: str, kind: str = RecordKind.PAYLOAD) -> str:
        body = canonical(text * 2000)
        return await self.records.put(stored.run, kind, body, digest(body))

    async def finish(self, key: RunKey, record: str, text: str) -> None:
        body = canonical(text * 2000)

        def edit(run: Run, at: At) -> tuple[Run, None]:
            return lifecycle.finish(run, Body(digest(body), len(body), record=record), at), None

        await self.applier.apply(key, edit)

    async def names(self) -> set[str]:
        items = (await self.client.get(kube_path(GROUP_VERSION, RECORD_PLURAL, "default"))).body["items"]
        return {item["metadata"]["name"] for item in items}

    async def passes(self, count: int) -> Swept:
        swept = Swept(0, more=False)
        for _ in range(count):
            self.clock.ahead += timedelta(seconds=GRACE)
            swept = await self.sweeper.sweep()
        return swept


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster("contract-sweep", nodes=0) as cluster:
        install_crds(cluster, crd("agentruns"), crd("agentrunrecords"))
        yield cluster


@pytest.fixture
async def world(cluster: Cluster) -> AsyncIterator[World]:
    async with client_of(cluster, manager="stepfence-controller") as client:
        yield World(client)


async def test_orphans_of_living_and_of_ended_runs_go_and_all_else_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_records, "_PAGE", 2)
    living, ended = await world.run("living"), await world.run("ended")
    orphans = {await world.put(stored, text) for stored in (living, ended) for text in ("a", "b", "c")}
    kept = await world.put(ended, "result", RecordKind.RESULT)
    await world.finish(ended.key, kept, "result")
    before = await world.names()
    assert await world.passes(1) == Swept(0, more=False)
    assert await world.passes(1) == Swept(6, more=False)
    assert await world.names() == before - orphans
    assert await world.passes(2) == Swept(0, more=False)
    for stored in (living, ended):
        assert await world.records.spend(stored.run) == stored.run.uid
    run = (await world.store.load(ended.key)).run
    assert run.outcome is Outcome.SUCCEEDED
    assert await world.records.get(run, kept)
    # The fence of each: one write, and nothing else changed.
    assert (run.version, run.token) == ((await world.objects.stored(ended.key)).run.version, ended.run.token)


async def test_a_record_is_listed_without_its_body(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = await world.run("listed")
    name = await world.put(stored, "x" * 100)
    replies: list[Reply] = []
    get = world.client.get

    async def kept(path: str, **more: Any) -> Reply:
        replies.append(await get(path, **more))
        return replies[-1]

    monkeypatch.setattr(world.client, "get", kept)
    assert name in {record.name async for record in world.records.bodies()}
    assert await world.records.keep(stored.run, name)
    assert all("spec" not in item for item in replies[0].body["items"])
    assert "spec" not in replies[1].body


async def test_a_record_that_was_put_again_after_it_was_seen_stays(world: World) -> None:
    stored = await world.run("again")
    name = await world.put(stored, "again")
    await world.passes(1)
    put_again = world.applier.fence

    async def fence(stored: Stored) -> Stored:
        after = await put_again(stored)
        await world.put(after, "again")
        return after

    world.applier.fence = fence  # type: ignore[method-assign]
    await world.passes(1)
    assert name in await world.names()
    world.applier.fence = put_again  # type: ignore[method-assign]
    await world.passes(2)
    assert name not in await world.names()
