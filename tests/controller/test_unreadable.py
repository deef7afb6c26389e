"""A run of which something cannot be read: it says so itself where it can, else an Event and a figure do, and nothing ends for it."""

from __future__ import annotations

from typing import Any

import pytest

from stepfence.app.apply import Applier
from stepfence.core.ledger import Begin, begin
from stepfence.core.words import Settings
from stepfence.schema import Unreadable
from stepfence.testing.builders import body
from tests.controller.harness import KEY, Controller, World


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels // 2):
        value = {"a": [value]}
    return value


@pytest.fixture
def world() -> World:
    return World()


def unreadable(controller: Controller) -> float | None:
    return controller.metrics.registry.get_sample_value("stepfence_unreadable_runs")


async def test_an_input_that_is_nested_too_deep_ends_the_run_by_name_before_a_pod_starts(world: World) -> None:
    world.create(input={"order": nested(100)})
    await Controller(world).settle()
    run = await world.run()
    assert (run.outcome, run.reason, run.message) == ("Failed", "InvalidSpec", "spec.input: nested deeper than 64 levels")
    assert world.cluster.made == []
    assert any("spec.input: nested deeper" in event["note"] for event in world.cluster.events)


async def test_an_answer_that_is_nested_too_deep_is_refused_by_name_and_asked_for_anew(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    job = world.cluster.made[0]
    await world.claim(job)
    run = await world.run()
    assert run.holder is not None
    call = Begin("pay", run.token, run.holder.pod_uid, "request", body({}))
    await Applier(world.store, world.clock, world.ids, Settings()).apply(KEY, lambda run, at: begin(run, call, at))
    world.cluster.end_pod(job, 1)
    await controller.settle()
    (question,) = world.store.document(KEY)["status"]["questions"]
    world.store.patch_spec(KEY, {"decisions": {question: {"verdict": "Happened", "result": {"refund": nested(100)}}}})
    await controller.settle()
    entry = (await world.run()).ledger["pay"]
    assert (entry.state, entry.answers[-1].refused) == ("Unknown", "result: nested deeper than 64 levels")
    assert f"pay.{entry.question}" not in (question, "pay.None")


async def test_a_run_that_cannot_be_read_is_told_of_once_and_counted_until_it_can(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    document = world.store._objects[KEY]
    controller.cache.see_run(document)
    kept = document["status"]["ledger"] = {"look": {"state": "OfANewerVersion", "key": "k"}}
    for _ in range(3):
        with pytest.raises(Unreadable):
            await controller.reconciler.reconcile(KEY)
    told = [event for event in world.cluster.events if event["reason"] == "Unreadable"]
    assert {(event["type"], event["regarding"]["uid"]) for event in told} == {("Warning", document["metadata"]["uid"])}
    assert len({event["metadata"]["name"] for event in told}) == 1
    assert "OfANewerVersion" in told[0]["note"]
    assert (unreadable(controller), document["status"]["ledger"]) == (1, kept)
    del document["status"]["ledger"]
    await controller.settle()
    assert unreadable(controller) == 0


async def test_a_run_that_could_not_be_read_and_is_gone_is_counted_no_more(world: World) -> None:
    world.create()
    controller = Controller(world)
    world.store._objects[KEY]["status"]["outcome"] = "OfANewerVersion"
    with pytest.raises(Unreadable):
        await controller.reconciler.reconcile(KEY)
    assert unreadable(controller) == 1
    world.store.delete(KEY)
    assert await controller.reconciler.reconcile(KEY) is None
    assert unreadable(controller) == 0


async def test_a_follower_tells_nobody(world: World) -> None:
    world.create()
    controller = Controller(world)
    controller.leads = False
    document = world.store._objects[KEY]
    controller.cache.see_run(document)
    document["status"]["outcome"] = "OfANewerVersion"
    with pytest.raises(Unreadable):
        await controller.reconciler.reconcile(KEY)
    assert world.cluster.events == []
