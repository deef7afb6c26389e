"""The same world over the one writer and the memory store: two replicas, a crash before and after any write, lost replies, races."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from stepfence.app import Applier
from stepfence.core.canonical import parse
from stepfence.core.errors import Unknown
from stepfence.core.lifecycle import accept
from stepfence.core.model import Decision, Run
from stepfence.core.words import At
from stepfence.ports import RunKey, Stored, Write
from stepfence.schema.encode import step_document
from stepfence.stores import MemoryRunStore
from tests.protocol.calls import Edit
from tests.protocol.scenario import Scenario
from tests.protocol.world import Rules, Unheard, World

KEY = RunKey("support", "refund")


class Fault(StrEnum):
    """What strikes the next write."""

    CRASH_BEFORE = "crash before the write"
    CRASH_AFTER = "crash after the write"
    LOST_BEFORE = "the write is lost"
    LOST_AFTER = "the reply to the write is lost"
    RACE = "somebody else writes first"


class FaultyStore(MemoryRunStore):
    """The memory store; `fault` strikes the next write once."""

    fault: Fault | None = None
    # A store that takes every write, whatever version it was decided on.
    blind = False
    race: Callable[[], None] = staticmethod(lambda: None)

    async def save(self, write: Write) -> Stored:
        fault, self.fault = self.fault, None
        if fault is Fault.CRASH_BEFORE:
            raise Unheard(fault)
        if fault is Fault.LOST_BEFORE:
            raise Unknown(fault)
        if fault is Fault.RACE:
            self.race()
        if self.blind:
            write = replace(write, before=replace(write.before, revision=(await self.load(write.before.key)).revision))
        stored = await super().save(write)
        if fault is Fault.CRASH_AFTER:
            raise Unheard(fault)
        if fault is Fault.LOST_AFTER:
            raise Unknown(fault)
        return stored


class WorldClock:
    """The world's time as the port wants it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return self._world.now

    def monotonic(self) -> float:
        return self._world.now.timestamp()

    def nonce(self) -> str:
        return self._world.at().nonce


class StoredWorld(World):
    """Every read and write goes through apply, schema and store; the world's own copy of the run is what the store holds."""

    def __init__(self, scenario: Scenario, rules: Rules) -> None:
        super().__init__(scenario, rules)
        self.store = FaultyStore(scenario.settings)
        self.store.blind = not rules.compare_and_swap
        self.store.race = self._race
        spec: dict[str, Any] = {"plan": {"steps": [step_document(step) for step in scenario.steps]}, "template": {}}
        if scenario.active_deadline is not None:
            spec["activeDeadlineSeconds"] = scenario.active_deadline
        self.run = self.store.create({"metadata": {"namespace": KEY.namespace, "name": KEY.name}, "spec": spec}).run
        self.replicas = [self._replica(), self._replica()]
        self.execute(lambda run, at: (accept(run, at), None))

    def _replica(self) -> Applier:
        clock = WorldClock(self)
        return Applier(self.store, clock, clock, self.scenario.settings)

    def execute(self, edit: Edit, snapshot: tuple[int, Run] | None = None, *, refresh: bool = False) -> Any:
        """Let the other replica than last time serve it; what took effect is checked whether or not it was heard of."""
        self.replicas.reverse()
        try:
            return _wait(self.replicas[0].apply(KEY, edit, refresh=refresh)).answer
        except Unheard:
            self.replicas[0] = self._replica()
            raise
        except Unknown as unknown:
            raise Unheard(str(unknown)) from unknown
        finally:
            self._look()

    def _look(self) -> None:
        stored = _wait(self.store.load(KEY)).run
        if stored.version != self.run.version:
            self.book.write(self.run, stored, self.now)
        self.run, self.version = stored, stored.version
        self.refresh(self.at())

    def _race(self) -> None:
        """Somebody else's write comes between the decision and the save, and is another decision's ground from then on."""
        self.store.patch_spec(KEY, {"suspend": self.run.spec.suspend})

    def save(self, new: Run, at: At) -> None:
        """Nothing is written past the one writer."""
        raise AssertionError("a stored world writes through apply")

    def patch_spec(self, **changes: Any) -> None:
        """A person's merge patch, as kubectl sends it."""
        if "decisions" in changes:
            changes["decisions"] = {key: _document(given) for key, given in changes["decisions"].items()}
        self.store.patch_spec(KEY, changes)
        self.run = _wait(self.store.load(KEY)).run


def _document(given: Decision) -> dict[str, Any]:
    document: dict[str, Any] = {"verdict": given.verdict.value, "by": given.by}
    if given.force:
        document["force"] = True
    if given.result is not None:
        document["result"] = parse(given.result)
    return document


def _wait(call: Coroutine[Any, Any, Any]) -> Any:
    """Run a call to its end; nothing in it waits for the outside."""
    while True:
        try:
            call.send(None)
        except StopIteration as done:
            return done.value
