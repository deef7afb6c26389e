"""A gateway's use cases over memory stores, with records that are counted and pods that do as they are told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from stepfence.app import Applier, WorkerCalls
from stepfence.app.worker_calls import Call
from stepfence.core.canonical import Json
from stepfence.core.decide import decide
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Run
from stepfence.core.words import Settings
from stepfence.core.world import World
from stepfence.ports import Caller, RunKey
from stepfence.stores import MemoryRecordStore, MemoryRunStore
from stepfence.testing.clock import FakeClock, FakeIds
from stepfence.testing.pods import MemoryGate, Pod

KEY = RunKey("support", "refund")
PLAN: list[dict[str, Any]] = [
    {"id": "pay", "action": "Payment", "probe": {"giveUpAfterSeconds": 300}},
    {"id": "mail", "action": "Create"},
    {"id": "drop", "action": "Delete"},
]


def large(text: str = "x", size: int = 200_000) -> dict[str, Json]:
    """A body that does not fit into the run's own object."""
    return {"text": text * size}


class CountedRecords(MemoryRecordStore):
    """Knows what it was asked to store, and what it holds."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock.now)
        self.puts: list[str] = []
        # The next and all later ones are refused with this.
        self.refuses: Code | None = None
        # What happens elsewhere while a record is being written.
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def put(self, run: Run, kind: str, text: str, digest: str) -> str:
        if self.refuses is not None:
            raise Refused(self.refuses, "exceeded quota", retry_after=5)
        meanwhile, self.meanwhile = self.meanwhile, None
        name = await super().put(run, kind, text, digest)
        self.puts.append(name)
        if meanwhile is not None:
            await meanwhile()
        return name

    async def names(self) -> list[str]:
        return [fact.name async for fact in self.bodies()]


class Desk:
    """One run, its gateway, and pods that claim it."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.clock, self.store = FakeClock(), MemoryRunStore(self.settings)
        self.records = CountedRecords(self.clock)
        self.gate = MemoryGate(self.clock)
        self.applier, self.calls = self.gateway("one")

    def gateway(self, seed: str) -> tuple[Applier, WorkerCalls]:
        """Another replica over the same stores."""
        applier = Applier(self.store, self.clock, FakeIds(seed), self.settings)
        return applier, WorkerCalls(applier, self.records, self.gate)

    async def open(self, key: RunKey = KEY, plan: list[dict[str, Any]] | None = None) -> None:
        """Create the run, and let the controller number its first worker."""
        manifest = {"metadata": {"namespace": key.namespace, "name": key.name}}
        uid = self.store.create({**manifest, "spec": {"plan": {"steps": plan or PLAN}, "template": {}}}).run.uid
        for _ in range(2):
            await self.applier.apply(key, lambda run, at: (decide(run, World(mark=uid), at).run, None))

    async def claim(self, pod: str, key: RunKey = KEY) -> Call:
        """Let a new pod of the current worker claim the run; who held it is gone."""
        run = (await self.store.load(key)).run
        assert run.worker is not None
        if run.holder is not None:
            self.gate.pods[run.holder.pod_uid].vanished = True
        caller = Caller(key.namespace, pod, f"{pod}-uid")
        self.gate.pods[caller.pod_uid] = Pod(pod, caller.pod_uid, run.worker.job, key, run.uid, self.clock.now())
        view = await self.calls.claim(caller, key, f"claim-{pod}")
        return Call(caller, key, view.token)

    async def run(self, key: RunKey = KEY) -> Run:
        return (await self.store.load(key)).run
