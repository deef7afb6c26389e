# ruff: noqa: PT012  (what is expected comes out of a whole block, and leaving it is part of the test)
"""Stops latch, come from outside, and end the worker in order."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import stepfence
from stepfence import Action, Step
from stepfence.sdk.errors import Stop
from stepfence.sdk.latch import stop_from_word
from tests.sdk.gateway import Held, Problem, ScriptedGateway, connection
from tests.sdk.test_settle_rule import PLAN
from tests.sdk.virtual import virtual_time


async def nothing(payload: Any, step: Step) -> Any:
    return None


@virtual_time
async def test_a_stop_that_a_framework_swallows_is_raised_again_by_each_later_begin(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", Problem("halted"))
    seen: list[Stop] = []
    with pytest.raises(stepfence.Halted):
        async with connection(gateway, tmp_path) as run:
            for name in ("refund", "other", "third"):
                try:
                    await run.step(name, Action(PLAN[name]), {}, nothing)
                except Stop as stop:
                    seen.append(stop)
            assert run.stopping is not None
    assert [type(stop) for stop in seen] == [stepfence.Halted] * 3
    assert len({id(stop) for stop in seen}) == 3
    assert gateway.routes() == ["claim", "steps/refund/begin", "release"]


def test_a_stop_is_no_exception_so_that_no_framework_gives_it_to_a_model() -> None:
    kinds = [stepfence.Halted, stepfence.Draining, stepfence.Fenced, stepfence.Cancelled, stepfence.RunFailed]
    for kind in [*kinds, stepfence.Unreachable, stepfence.Unsettled]:
        assert issubclass(kind, Stop)
        assert not issubclass(kind, Exception)


@pytest.mark.parametrize(
    ("code", "reason", "exit_code"),
    [
        ("halted", "Halted", 76),
        ("held", "Halted", 76),
        ("draining", "Drained", 75),
        ("cancelled", "Halted", 76),
        ("fenced", None, 75),
    ],
)
@virtual_time
async def test_each_stop_releases_with_its_reason_and_exits_with_its_code(
    code: str, reason: str | None, exit_code: int, tmp_path: Path
) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", Problem(code))
    with pytest.raises(SystemExit) as left:
        async with connection(gateway, tmp_path, exit_on_stop=True) as run:
            await run.step("refund", Action.PAYMENT, {}, nothing)
    assert left.value.code == exit_code
    assert [body["reason"] for body in gateway.bodies("release")] == ([reason] if reason else [])


@virtual_time
async def test_a_claim_that_brings_a_stop_ends_before_the_block(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.stop = "halted"
    with pytest.raises(SystemExit) as left:
        async with connection(gateway, tmp_path, exit_on_stop=True):
            raise AssertionError("must not run")
    assert left.value.code == 76
    assert gateway.routes() == ["claim", "release"]


@pytest.mark.parametrize("code", ["terminal", "cancelled", "held", "halted"])
@virtual_time
async def test_a_refused_claim_ends_the_worker_with_nothing_to_release(code: str, tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("claim", Problem(code))
    with pytest.raises(SystemExit) as left:
        async with connection(gateway, tmp_path, exit_on_stop=True):
            raise AssertionError("must not run")
    assert left.value.code == 76
    assert gateway.routes() == ["claim"]


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        (None, None),
        ("", None),
        ("Draining", stepfence.Draining),
        ("halted", stepfence.Halted),
        ("awaiting-approval", stepfence.Halted),
        ("Cancelled", stepfence.Cancelled),
        ("fenced", stepfence.Fenced),
        ({"code": "draining", "detail": "go"}, stepfence.Draining),
        ({"type": "https://stepfence.dev/problems/held"}, stepfence.Halted),
        ("something-new", stepfence.Halted),
    ],
)
def test_the_word_of_a_stop_is_read(word: Any, kind: type[Stop] | None) -> None:
    stop = stop_from_word(word)
    assert (None if stop is None else type(stop)) is kind


@virtual_time
async def test_a_wait_ends_when_a_stop_comes(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", {"outcome": "Wait", "retryAfterSeconds": 3000, "reason": "BackOff"})
    gateway.stop = None
    loop = asyncio.get_running_loop()
    before = loop.time()
    with pytest.raises(stepfence.Draining):
        async with connection(gateway, tmp_path) as run:
            gateway.stop = "draining"
            await run.step("refund", Action.PAYMENT, {}, nothing)
    assert loop.time() - before == pytest.approx(20)


@virtual_time
async def test_a_fenced_worker_sends_nothing_more(tmp_path: Path) -> None:
    gateway, prepared = ScriptedGateway(PLAN), asyncio.Event()
    gateway.on("steps/other/begin", Problem("fenced"))
    sent: list[str] = []

    async def perform(payload: Any, step: Step) -> Any:
        await prepared.wait()
        async with step.sending():
            sent.append("sent")

    with pytest.raises(stepfence.Fenced):
        async with connection(gateway, tmp_path) as run:
            task = asyncio.create_task(run.step("refund", Action.PAYMENT, {}, perform))
            await gateway.called("steps/refund/begin")
            with pytest.raises(stepfence.Fenced):
                await run.step("other", Action.CREATE, {}, nothing)
            prepared.set()
            await task
    assert sent == []
    assert gateway.bodies("steps/refund/fail")[0]["reason"] == "NotSent"


@virtual_time
async def test_halt_asks_a_person_and_fail_ends_the_run(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    with pytest.raises(stepfence.Halted) as halted:
        async with connection(gateway, tmp_path) as run:
            await run.halt("Suspicious", "two refunds on one day")
    assert (halted.value.question, halted.value.patch) == ("run.q1", "kubectl patch …")
    assert gateway.bodies("halt")[0]["message"] == "two refunds on one day"
    assert gateway.bodies("release")[0]["reason"] == "Halted"
    gateway = ScriptedGateway(PLAN)
    with pytest.raises(SystemExit) as left:
        async with connection(gateway, tmp_path, exit_on_stop=True) as run:
            await run.fail("NoSuchOrder", "4711")
    assert left.value.code == 77
    assert gateway.bodies("release")[0]["reason"] == "Failed"


@virtual_time
async def test_a_stop_counts_whatever_a_framework_makes_of_it(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", Problem("halted"))
    with pytest.raises(SystemExit) as left:
        async with connection(gateway, tmp_path, exit_on_stop=True) as run:
            try:
                await run.step("refund", Action.PAYMENT, {}, nothing)
            except Stop as stop:
                raise RuntimeError("the tool failed") from stop
    assert left.value.code == 76


@virtual_time
async def test_a_stop_that_the_program_raises_itself_counts_too_even_in_a_group(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)

    async def gives_up() -> None:
        raise stepfence.Draining("enough for today")

    with pytest.raises(SystemExit) as left:
        async with connection(gateway, tmp_path, exit_on_stop=True), asyncio.TaskGroup() as tasks:
            tasks.create_task(gives_up())
    assert left.value.code == 75
    assert gateway.bodies("release")[0]["reason"] == "Drained"


@virtual_time
async def test_a_cancellation_from_outside_that_meets_no_stop_goes_on(tmp_path: Path) -> None:
    gateway, inside = ScriptedGateway(PLAN), asyncio.Event()

    async def whole() -> None:
        async with connection(gateway, tmp_path):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(whole())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gateway.bodies("release")[0]["reason"] == "Error"


@virtual_time
async def test_leaving_the_block_does_not_wait_for_a_step_that_waits(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", *[{"outcome": "Wait", "retryAfterSeconds": 3000, "reason": "BackOff"}] * 3)
    loop = asyncio.get_running_loop()
    with pytest.raises(ZeroDivisionError):
        async with connection(gateway, tmp_path) as run:
            task = asyncio.create_task(run.step("refund", Action.PAYMENT, {}, nothing))
            await gateway.called("steps/refund/begin")
            before = loop.time()
            raise ZeroDivisionError
    assert loop.time() - before < 1
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gateway.routes() == ["claim", "steps/refund/begin", "release"]


@virtual_time
async def test_a_release_that_nobody_hears_does_not_hold_the_worker(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("release", *[Problem("store-unavailable", 503)] * 50)
    loop = asyncio.get_running_loop()
    async with connection(gateway, tmp_path) as run:
        await run.finish()
        before = loop.time()
    assert loop.time() - before <= 10
    assert gateway.routes().count("release") > 3


@virtual_time
async def test_a_cancellation_while_leaving_does_not_leave_things_half_done(tmp_path: Path) -> None:
    gateway, answer = ScriptedGateway(PLAN), asyncio.Event()
    gateway.on("release", Held(answer))

    async def whole() -> None:
        async with connection(gateway, tmp_path) as run:
            await run.finish()

    task = asyncio.create_task(whole())
    await gateway.called("release")
    task.cancel()
    await asyncio.wait({task}, timeout=1)
    assert not task.done()
    answer.set()
    with pytest.raises(asyncio.CancelledError):
        await task
