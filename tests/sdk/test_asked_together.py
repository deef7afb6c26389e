"""Several who ask for one step at once: one carries it out, all get what comes of it."""

# ruff: noqa: PT012  (leaving the block is part of the test)

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import stepfence
from stepfence import Action, Step
from tests.sdk.gateway import Held, Problem, ScriptedGateway, connection
from tests.sdk.test_payload_change import ALICE, PLAN, Paid
from tests.sdk.test_settle_rule import Slow
from tests.sdk.test_sync import connection as sync_connection
from tests.sdk.virtual import virtual_time


@virtual_time
async def test_three_who_ask_at_once_get_the_result_when_it_is_there(tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow(5)
    loop = asyncio.get_running_loop()
    async with connection(gateway, tmp_path) as run:
        before = loop.time()
        results = await asyncio.gather(*(run.step("refund", Action.PAYMENT, ALICE, slow) for _ in range(3)))
        assert loop.time() - before == pytest.approx(5)
        results[0]["id"] = "changed by one of them"
        assert results[1:] == [{"id": "re_1"}] * 2
        await run.finish()
    assert len(gateway.bodies("steps/refund/begin")) == len(slow.ended) == 1


@virtual_time
async def test_they_take_no_place_of_others(tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow(5)
    async with connection(gateway, tmp_path, concurrency=2) as run:
        same = [asyncio.create_task(run.step("refund", Action.PAYMENT, ALICE, slow)) for _ in range(3)]
        await slow.begun.wait()
        assert await run.step("other", Action.CREATE, {}, Paid()) == {"paid": {}}
        assert slow.ended == []
        await asyncio.gather(*same)
        await run.finish()


@virtual_time
async def test_a_first_one_that_is_cancelled_in_flight_settles_for_the_others(tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow(5)
    async with connection(gateway, tmp_path) as run:
        first = asyncio.create_task(run.step("refund", Action.PAYMENT, ALICE, slow))
        second = asyncio.create_task(run.step("refund", Action.PAYMENT, ALICE, slow))
        await slow.begun.wait()
        first.cancel()
        assert await second == {"id": "re_1"}
        with pytest.raises(asyncio.CancelledError):
            await first
        await run.finish()
    assert gateway.routes() == ["claim", "steps/refund/begin", "steps/refund/complete", "finish", "release"]


@virtual_time
async def test_a_first_one_that_is_cancelled_while_nothing_is_in_flight_leaves_it_to_the_next(tmp_path: Path) -> None:
    gateway, of_first, of_second = ScriptedGateway(PLAN), Slow(5), Slow(5)
    gateway.on("steps/refund/begin", {"outcome": "Wait", "retryAfterSeconds": 3000, "reason": "BackOff"})
    loop = asyncio.get_running_loop()
    async with connection(gateway, tmp_path) as run:
        before = loop.time()
        first = asyncio.create_task(run.step("refund", Action.PAYMENT, ALICE, of_first))
        await gateway.called("steps/refund/begin")
        others = [asyncio.create_task(run.step("refund", Action.PAYMENT, ALICE, of_second)) for _ in range(2)]
        await asyncio.wait(others, timeout=1)
        first.cancel()
        assert await asyncio.gather(*others) == [{"id": "re_1"}] * 2
        assert loop.time() - before == pytest.approx(6)
        await run.finish()
    assert (of_first.ended, of_second.ended) == ([], ["answered"])


@virtual_time
async def test_one_who_waits_may_be_cancelled_alone(tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow(5)
    loop = asyncio.get_running_loop()
    async with connection(gateway, tmp_path) as run:
        before = loop.time()
        first = asyncio.create_task(run.step("refund", Action.PAYMENT, ALICE, slow))
        await slow.begun.wait()
        third = asyncio.create_task(run.step("refund", Action.PAYMENT, ALICE, slow))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run.step("refund", Action.PAYMENT, ALICE, slow), 1)
        assert loop.time() - before == pytest.approx(1)
        assert await first == await third == {"id": "re_1"}
        await run.finish()
    assert slow.ended == ["answered"]


@virtual_time
async def test_a_first_one_cancelled_before_it_had_a_place_leaves_it_to_the_next(tmp_path: Path) -> None:
    gateway, slow, pay = ScriptedGateway(PLAN), Slow(5), Paid()
    async with connection(gateway, tmp_path, concurrency=1) as run:
        holds = asyncio.create_task(run.step("other", Action.CREATE, {}, slow))
        await slow.begun.wait()
        first = asyncio.create_task(run.step("refund", Action.PAYMENT, ALICE, pay))
        second = asyncio.create_task(run.step("refund", Action.PAYMENT, ALICE, pay))
        await asyncio.wait({first, second}, timeout=1)
        first.cancel()
        assert await second == {"paid": ALICE}
        await holds
        await run.finish()
    assert pay.to == [ALICE]


@virtual_time
async def test_all_get_what_the_step_failed_with(tmp_path: Path) -> None:
    async def declines(payload: Any, step: Step) -> Any:
        raise stepfence.NotApplied("declined", final=True)

    gateway = ScriptedGateway(PLAN)
    async with connection(gateway, tmp_path) as run:
        failed = await asyncio.gather(*(run.step("refund", Action.PAYMENT, ALICE, declines) for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in failed] == [stepfence.StepFailed] * 3
        await run.finish()
    assert len(gateway.bodies("steps/refund/fail")) == 1


@virtual_time
async def test_a_stop_reaches_all_as_an_error_of_its_own(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", Problem("halted", more={"question": "refund.q1", "patch": "kubectl patch …"}))
    with pytest.raises(stepfence.Halted):
        async with connection(gateway, tmp_path) as run:
            asked = [asyncio.create_task(run.step("refund", Action.PAYMENT, ALICE, Paid())) for _ in range(3)]
            await asyncio.wait(asked)
    stops = [task.exception() for task in asked]
    assert [getattr(stop, "question", None) for stop in stops] == ["refund.q1"] * 3
    assert len({id(stop) for stop in stops}) == 3
    assert len(gateway.bodies("steps/refund/begin")) == 1


@virtual_time
async def test_a_drain_lets_the_step_in_flight_end_for_all_who_wait(tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow(50)
    seen: list[Any] = []
    with pytest.raises(stepfence.Draining):
        async with connection(gateway, tmp_path) as run:

            async def asks() -> None:
                seen.append(await run.step("refund", Action.PAYMENT, ALICE, slow))
                await run.step("other", Action.CREATE, {}, slow)

            async with asyncio.TaskGroup() as tasks:
                for _ in range(3):
                    tasks.create_task(asks())
                await slow.begun.wait()
                gateway.stop = "draining"
    assert seen == [{"id": "re_1"}] * 3
    assert gateway.bodies("steps/other/begin") == []
    assert gateway.routes()[-2:] == ["steps/refund/complete", "release"]


@virtual_time
async def test_who_still_waits_when_the_block_is_left_begins_nothing(tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow(5)
    gateway.on("steps/refund/begin", {"outcome": "Wait", "retryAfterSeconds": 3000, "reason": "BackOff"})
    with pytest.raises(ZeroDivisionError):
        async with connection(gateway, tmp_path) as run:
            tasks = [asyncio.create_task(run.step("refund", Action.PAYMENT, ALICE, slow)) for _ in range(3)]
            await gateway.called("steps/refund/begin")
            raise ZeroDivisionError
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in ended] == [asyncio.CancelledError] * 3
    assert gateway.routes() == ["claim", "steps/refund/begin", "release"]


@virtual_time
async def test_a_begin_that_is_on_its_way_is_waited_for(tmp_path: Path) -> None:
    gateway, slow, answer = ScriptedGateway(PLAN), Slow(5), asyncio.Event()
    gateway.on("steps/refund/begin", Held(answer))
    async with connection(gateway, tmp_path) as run:
        tasks = [asyncio.create_task(run.step("refund", Action.PAYMENT, ALICE, slow)) for _ in range(3)]
        await gateway.called("steps/refund/begin")
        tasks[0].cancel()
        answer.set()
        assert await asyncio.gather(*tasks[1:]) == [{"id": "re_1"}] * 2
        await run.finish()
    assert len(gateway.bodies("steps/refund/begin")) == 1


@virtual_time
async def test_each_reads_the_result_as_the_type_that_it_asked_for(tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow(5)
    async with connection(gateway, tmp_path) as run:
        read = await asyncio.gather(
            run.step("refund", Action.PAYMENT, ALICE, slow, result=dict[str, str]),
            run.step("refund", Action.PAYMENT, ALICE, slow, result=int),
            return_exceptions=True,
        )
        assert [type(each) for each in read] == [dict, stepfence.ResultNotReadable]
        await run.finish()


def test_threads_that_ask_for_one_step_get_its_result(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    begun, free, results = threading.Event(), threading.Event(), []

    def pay(payload: Any, step: Step) -> Any:
        with step.sending():
            begun.set()
            assert free.wait(20)
        return threading.current_thread().name

    with sync_connection(gateway, tmp_path) as run:

        def asks() -> None:
            results.append(run.step("refund", Action.PAYMENT, ALICE, pay))

        threads = [threading.Thread(target=asks, name=f"asks-{n}") for n in range(3)]
        threads[0].start()
        assert begun.wait(20)
        for thread in threads[1:]:
            thread.start()
        free.set()
        for thread in threads:
            thread.join(20)
        run.finish()
    assert results == ["asks-0"] * 3
    assert len(gateway.bodies("steps/refund/complete")) == 1
