"""One controller over a memory store and a cluster in memory: pass after pass until nothing is left to do now."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from stepfence.app.apply import Applier
from stepfence.controller.cache import Cache
from stepfence.controller.events import EventSink
from stepfence.controller.jobs import Injection
from stepfence.controller.metrics import Metrics
from stepfence.controller.reconcile import Again, Reconciler
from stepfence.core.fencing import Claim, HolderFact, claim
from stepfence.core.model import Run
from stepfence.core.words import At, Settings
from stepfence.ports import RunKey
from stepfence.stores.memory import MemoryRecordStore
from stepfence.testing.clock import FakeClock, FakeIds
from tests.controller.fake_cluster import FakeCluster
from tests.controller.harness_store import AnnotatedStore

KEY = RunKey("support", "refund")
STEPS = [{"id": "look", "action": "Read"}, {"id": "pay", "action": "Payment"}]


@dataclass
class World:
    """What outlives a controller."""

    clock: FakeClock = field(default_factory=FakeClock)
    store: AnnotatedStore = field(default_factory=AnnotatedStore)
    records: MemoryRecordStore = field(default_factory=MemoryRecordStore)
    ids: FakeIds = field(default_factory=FakeIds)
    cluster: FakeCluster = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = FakeCluster(self.store, self.clock)

    def create(self, metadata: dict[str, Any] | None = None, **spec: Any) -> None:
        template = {"spec": {"containers": [{"name": "main", "image": "agent:1"}]}}
        made = {"plan": {"steps": STEPS}, "template": template, **spec}
        self.store.create({"metadata": {"namespace": KEY.namespace, "name": KEY.name, **(metadata or {})}, "spec": made})

    async def run(self) -> Run:
        return (await self.store.load(KEY)).run

    async def claim(self, job: str) -> None:
        """The pod of that Job claims the run, through the same writer as a gateway's."""
        pod = self.cluster.pod_of(job)["metadata"]

        def edit(run: Run, at: At) -> tuple[Run, bool]:
            return claim(run, Claim(pod["name"], pod["uid"], "request", 60), HolderFact.OVER, at)

        await Applier(self.store, self.clock, self.ids, Settings()).apply(KEY, edit)

    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.cluster.events]


class Controller:
    """One process: its caches are empty at first, and lost with it."""

    def __init__(self, world: World) -> None:
        self.world, self.leads, self.woken = world, True, 0
        self.cache = Cache(self._wake)
        world.cluster.listed_to(self.cache)
        applier = Applier(world.store, world.clock, world.ids, Settings())
        self.metrics = Metrics(self.cache, now=world.clock.now, leading=lambda: self.leads, depth=lambda: 0)
        events = EventSink(world.cluster, "controller-0")
        self.reconciler = Reconciler(
            applier,
            world.records,
            world.cluster,
            self.cache,
            events,
            self.metrics,
            injection=lambda: Injection("https://gateway:8443", "CA", 10),
            leading=lambda: self.leads,
        )

    def _wake(self, _: RunKey) -> None:
        self.woken += 1

    async def settle(self, passes: int = 12) -> datetime | None:
        """Do passes until one writes nothing and hears nothing new; return the wake that it asks for."""
        for _ in range(passes):
            writes, woken = self.world.store.writes, self.woken
            try:
                wake = await self.reconciler.reconcile(KEY)
            except Again:
                continue
            if (self.world.store.writes, self.woken) == (writes, woken):
                return wake
        raise AssertionError("the controller does not come to rest")
