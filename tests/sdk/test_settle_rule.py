# ruff: noqa: PT012  (what is expected comes out of a whole block, and leaving it is part of the test)
"""Whatever cancels the caller, a step in flight settles first; then the cancellation goes on."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import stepfence
from stepfence import Action, Run, Step
from tests.sdk.gateway import Held, Problem, ScriptedGateway, connection
from tests.sdk.virtual import virtual_time

PLAN = {"refund": "Payment", "other": "Create", "third": "Create"}


class Slow:
    """A `perform` that tells when it has begun and takes `seconds`."""

    def __init__(self, seconds: float = 5) -> None:
        self.begun = asyncio.Event()
        self.ended: list[str] = []
        self._seconds = seconds

    async def __call__(self, payload: Any, step: Step) -> Any:
        async with step.sending():
            self.begun.set()
            try:
                async with asyncio.timeout(self._seconds):
                    await asyncio.Event().wait()
            except TimeoutError:
                self.ended.append("answered")
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
        return {"id": "re_1"}


async def by_task_cancel(run: Run, slow: Slow) -> None:
    task = asyncio.create_task(run.step("refund", Action.PAYMENT, {}, slow))
    await slow.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_repeated_cancel(run: Run, slow: Slow) -> None:
    task = asyncio.create_task(run.step("refund", Action.PAYMENT, {}, slow))
    await slow.begun.wait()
    for _ in range(5):
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_wait_for(run: Run, slow: Slow) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.step("refund", Action.PAYMENT, {}, slow), 1)


async def by_timeout(run: Run, slow: Slow) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await run.step("refund", Action.PAYMENT, {}, slow)


async def by_failing_sibling(run: Run, slow: Slow) -> None:
    async def fails() -> None:
        await slow.begun.wait()
        raise ValueError("sibling")

    with pytest.raises(ExceptionGroup) as group:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run.step("refund", Action.PAYMENT, {}, slow))
            tasks.create_task(fails())
    assert [type(error) for error in group.value.exceptions] == [ValueError]


async def by_anyio_scope(run: Run, slow: Slow) -> None:
    with anyio.move_on_after(1) as scope:
        await run.step("refund", Action.PAYMENT, {}, slow)
        await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught


async def by_anyio_task_group(run: Run, slow: Slow) -> None:
    async def fails() -> None:
        await slow.begun.wait()
        raise ValueError("sibling")

    async def does() -> None:
        await run.step("refund", Action.PAYMENT, {}, slow)

    with pytest.raises(ExceptionGroup):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(does)
            tasks.start_soon(fails)


@pytest.mark.parametrize(
    "cancel",
    [
        by_task_cancel,
        by_repeated_cancel,
        by_wait_for,
        by_timeout,
        by_failing_sibling,
        by_anyio_scope,
        by_anyio_task_group,
    ],
)
@virtual_time
async def test_the_step_in_flight_settles_before_the_cancellation_goes_on(
    cancel: Callable[[Run, Slow], Awaitable[None]], tmp_path: Path
) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow()
    loop = asyncio.get_running_loop()
    async with connection(gateway, tmp_path) as run:
        before = loop.time()
        await cancel(run, slow)
        assert gateway.routes()[-1] == "steps/refund/complete", "the caller went on before the step had settled"
        assert loop.time() - before == pytest.approx(5, abs=0.6)
        assert await run.step("refund", Action.PAYMENT, {}, slow) == {"id": "re_1"}
        await run.finish()
    assert slow.ended == ["answered"]


@virtual_time
async def test_a_cancelled_gather_does_not_wait_but_leaving_the_block_does(tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow()
    async with connection(gateway, tmp_path) as run:
        gathered = asyncio.gather(run.step("refund", Action.PAYMENT, {}, slow), asyncio.Event().wait())
        await slow.begun.wait()
        gathered.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gathered
        await run.finish()
    assert slow.ended == ["answered"]
    assert gateway.routes()[-2:] == ["steps/refund/complete", "release"]


@virtual_time
async def test_a_stop_in_one_branch_makes_no_doubt_in_the_others(tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow()
    gateway.on("steps/other/begin", Problem("halted", more={"question": "other.q1", "patch": "kubectl patch …"}))

    async def halts(run: Run) -> None:
        await slow.begun.wait()
        await run.step("other", Action.CREATE, {}, slow)

    with pytest.raises(stepfence.Halted) as halted:
        async with connection(gateway, tmp_path) as run, asyncio.TaskGroup() as tasks:
            tasks.create_task(run.step("refund", Action.PAYMENT, {}, slow))
            tasks.create_task(halts(run))
    assert (halted.value.question, halted.value.patch) == ("other.q1", "kubectl patch …")
    assert slow.ended == ["answered"]
    assert gateway.routes().index("steps/refund/complete") < gateway.routes().index("release")
    assert gateway.bodies("steps/refund/lose") == []


@virtual_time
async def test_gather_that_goes_on_after_a_stop_begins_nothing_more(tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow()
    gateway.on("steps/other/begin", Problem("halted"))

    async def branch(run: Run) -> None:
        await run.step("refund", Action.PAYMENT, {}, slow)
        await run.step("third", Action.CREATE, {}, slow)

    async def halts(run: Run) -> None:
        await slow.begun.wait()
        await run.step("other", Action.CREATE, {}, slow)

    with pytest.raises(stepfence.Halted):
        async with connection(gateway, tmp_path) as run:
            results = await asyncio.gather(branch(run), halts(run), return_exceptions=True)
            assert [type(result) for result in results] == [stepfence.Halted, stepfence.Halted]
    assert "steps/third/begin" not in gateway.routes()


@virtual_time
async def test_a_cancellation_while_a_begin_is_on_its_way_settles_that_step(tmp_path: Path) -> None:
    gateway, slow, answer = ScriptedGateway(PLAN), Slow(), asyncio.Event()
    gateway.on("steps/refund/begin", Held(answer))
    async with connection(gateway, tmp_path) as run:
        task = asyncio.create_task(run.step("refund", Action.PAYMENT, {}, slow))
        await gateway.called("steps/refund/begin")
        task.cancel()
        answer.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gateway.routes()[-1] == "steps/refund/complete"
        await run.finish()


@pytest.mark.parametrize("how", ["task", "scope"])
@virtual_time
async def test_a_cancellation_while_nothing_is_in_flight_is_not_kept_waiting(how: str, tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow()
    gateway.on("steps/refund/begin", {"outcome": "Wait", "retryAfterSeconds": 3000, "reason": "BackOff"})
    loop = asyncio.get_running_loop()
    async with connection(gateway, tmp_path) as run:
        before = loop.time()
        if how == "scope":
            with anyio.move_on_after(1):
                await run.step("refund", Action.PAYMENT, {}, slow)
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(run.step("refund", Action.PAYMENT, {}, slow), 1)
        assert loop.time() - before == pytest.approx(1)
        await run.finish()
    assert gateway.routes().count("steps/refund/begin") == 1


@virtual_time
async def test_an_exit_inside_perform_is_told_first_and_then_exits(tmp_path: Path) -> None:
    async def exits(payload: Any, step: Step) -> Any:
        async with step.sending():
            raise SystemExit(3)

    gateway = ScriptedGateway(PLAN)
    with pytest.raises(SystemExit) as left:
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, exits)
    assert left.value.code == 3
    assert gateway.routes()[-2:] == ["steps/refund/lose", "release"]
