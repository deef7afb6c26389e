"""Records at the controller: what people's answers bring is stored only when it is taken, and orphans are swept while it leads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfence.app.apply import Applier
from stepfence.app.sweep import Swept
from stepfence.core.errors import Code, Refused, Unknown
from stepfence.core.ledger import Begin, begin
from stepfence.core.model import Run
from stepfence.core.words import Settings, State
from stepfence.stores.memory import MemoryRecordStore
from stepfence.testing.builders import body
from tests.controller.harness import KEY, Controller, World
from tests.controller.test_service import Bench

LARGE = {"text": "x" * 2000}


class CountedRecords(MemoryRecordStore):
    def __init__(self) -> None:
        super().__init__()
        self.puts: list[str] = []
        self.stood: list[bool] = []
        self.refuses: Code | None = None
        self.world: World | None = None

    async def put(self, run: Run, kind: str, text: str, digest: str) -> str:
        if self.refuses is not None:
            raise Refused(self.refuses, "exceeded quota")
        assert self.world is not None
        self.stood.append((await self.world.run()).ledger["pay"].result is None)
        self.puts.append(await super().put(run, kind, text, digest))
        return self.puts[-1]


@pytest.fixture
async def asked() -> tuple[World, Controller, CountedRecords, str]:
    """A payment in doubt, and the question about it."""
    records = CountedRecords()
    world = World(records=records)
    records.world = world
    world.create()
    controller = Controller(world)
    await controller.settle()
    job = world.cluster.made[0]
    await world.claim(job)
    run = await world.run()
    assert run.holder is not None
    call = Begin("pay", run.token, run.holder.pod_uid, "request", body({}))
    await Applier(world.store, world.clock, world.ids, Settings()).apply(KEY, lambda stored, at: begin(stored, call, at))
    world.cluster.end_pod(job, 137)
    await controller.settle()
    (question,) = world.store.document(KEY)["status"]["questions"]
    return world, controller, records, question


Asked = tuple[World, Controller, CountedRecords, str]


async def test_an_answer_that_is_taken_has_its_record_before_the_ledger_refers_to_it_and_once(asked: Asked) -> None:
    world, controller, records, question = asked
    world.store.patch_spec(KEY, {"decisions": {question: {"verdict": "Happened", "result": LARGE}}})
    await controller.settle()
    result = (await world.run()).ledger["pay"].result
    assert result is not None
    assert records.puts == [result.record]
    assert records.stood == [True]


@pytest.mark.parametrize("verdict", ["Approve", "DidNotHappen", "Abandon", "Resume"])
async def test_an_answer_whose_result_nobody_takes_stores_none(verdict: str, asked: Asked) -> None:
    world, controller, records, question = asked
    world.store.patch_spec(KEY, {"decisions": {question: {"verdict": verdict, "result": LARGE}}})
    await controller.settle()
    assert (await world.run()).ledger["pay"].question != question or (await world.run()).ledger["pay"].abandoned
    assert records.puts == []


async def test_an_answer_to_a_question_that_is_not_asked_any_more_stores_none(asked: Asked) -> None:
    world, controller, records, question = asked
    world.store.patch_spec(
        KEY, {"decisions": {question: {"verdict": "Happened"}, "pay.zzzzzzzzzz": {"verdict": "Happened", "result": LARGE}}}
    )
    await controller.settle()
    assert (await world.run()).ledger["pay"].state is State.DONE
    assert records.puts == []


async def test_an_answer_whose_record_is_refused_is_taken_with_digest_and_size(asked: Asked) -> None:
    world, controller, records, question = asked
    records.refuses = Code.STORE_UNAVAILABLE
    world.store.patch_spec(KEY, {"decisions": {question: {"verdict": "Happened", "result": LARGE}}})
    await controller.settle()
    entry = (await world.run()).ledger["pay"]
    assert entry.state is State.DONE
    assert entry.result is not None
    assert (entry.result.size, entry.result.stored) == (2011, False)


async def test_an_answer_that_arrives_while_the_pass_is_made_keeps_its_result(asked: Asked) -> None:
    """Somebody moves the run between the look and the write, and the decision is made again on what stands there then."""
    world, controller, _, question = asked
    struck = False

    def strike(what: str) -> None:
        nonlocal struck
        if what == "before save" and not struck:
            struck = True
            world.store.patch_spec(KEY, {"decisions": {question: {"verdict": "Happened", "result": LARGE}}})

    world.store.patch_spec(KEY, {"suspend": True})
    world.store.on_call = strike
    await controller.settle()
    assert struck
    run = await world.run()
    result = run.ledger["pay"].result
    assert result is not None
    assert "xxx" in await world.records.get(run, result.record or "")


class TestSweep:
    def bench(self, sweeps: Any) -> tuple[Bench, Any]:
        class Scripted:
            async def sweep(self) -> Any:
                return sweeps()

        return Bench(), Scripted()

    async def test_a_pass_is_counted_and_followed_soon_when_there_is_more(self) -> None:
        for more, pause in ((False, 300), (True, 30)):
            bench, sweeper = self.bench(lambda more=more: Swept(7, more))
            assert await bench.service.sweep_once(sweeper, 300) == pause
            assert bench.service._metrics.swept._value.get() == 7

    async def test_a_pass_that_failed_is_tried_again_at_its_time(self) -> None:
        def fails() -> None:
            raise Unknown("no answer")

        bench, sweeper = self.bench(fails)
        assert await bench.service.sweep_once(sweeper, 300) == 300

    async def test_a_follower_sweeps_nothing(self) -> None:
        asked: list[int] = []
        bench, sweeper = self.bench(lambda: asked.append(1))
        bench.leads = False
        task = asyncio.create_task(bench.service.sweep(sweeper, 0))
        await asyncio.wait([task], timeout=0.01)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        assert asked == []

    async def test_the_watch_tells_the_sweeper_which_runs_have_not_moved(self, asked: Asked) -> None:
        world, controller, _, _ = asked
        document = world.store.document(KEY)
        controller.cache.see_run(document)
        uid, revision = document["metadata"]["uid"], document["metadata"]["resourceVersion"]
        assert controller.cache.revision_of(KEY, uid) == revision
        assert controller.cache.revision_of(KEY, "another") is None
        assert controller.cache.revision_of(KEY._replace(name="another"), uid) is None
