# ruff: noqa: PT012  (what is expected comes out of a whole block, and leaving it is part of the test)
"""Stops latch, come from outside, and end the worker in order."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import stepfence
from stepfence import Action, Step
from stepfence.sdk.calls import Calls
from stepfence.sdk.errors import Stop
from stepfence.sdk.latch import stop_from_word
from stepfence.sdk.state import StateDir
from tests.sdk.gateway import Held, Problem, ScriptedGateway, connection
from tests.sdk.test_settle_rule import PLAN, Slow
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
async def test_an_idle_worker_renews_every_third_of_the_lease_and_a_busy_one_does_not(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    async with connection(gateway, tmp_path) as run:
        await asyncio.wait({asyncio.ensure_future(asyncio.Event().wait())}, timeout=61)
        assert gateway.routes().count("renew") == 3
        for _ in range(4):
            await asyncio.wait({asyncio.ensure_future(asyncio.Event().wait())}, timeout=14)
            await run.step("refund", Action.PAYMENT, {}, nothing)
        assert gateway.routes().count("renew") == 3
        await run.finish()


@pytest.mark.parametrize(("word", "kind"), [("draining", stepfence.Draining), ("cancelled", stepfence.Cancelled)])
@virtual_time
async def test_a_stop_that_a_renewal_brings_breaks_what_the_program_waits_for(word: str, kind: type[Stop], tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    loop = asyncio.get_running_loop()
    before = loop.time()
    with pytest.raises(kind):
        async with connection(gateway, tmp_path):
            gateway.stop = word
            await asyncio.Event().wait()
    assert loop.time() - before == pytest.approx(20)


@virtual_time
async def test_a_fault_in_the_upkeep_ends_the_worker_instead_of_leaving_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(_calls: Calls) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Calls, "renew", breaks)
    gateway = ScriptedGateway(PLAN)
    with pytest.raises(stepfence.Draining):
        async with connection(gateway, tmp_path) as run:
            while True:
                await asyncio.wait({asyncio.ensure_future(asyncio.Event().wait())}, timeout=30)
                await run.step("refund", Action.PAYMENT, {}, nothing)
    assert gateway.bodies("release")[0]["reason"] == "Drained"


@virtual_time
async def test_a_token_file_that_is_missing_for_a_moment_does_no_harm(tmp_path: Path) -> None:
    async with connection(ScriptedGateway(PLAN), tmp_path) as run:
        (tmp_path / "token").unlink()
        await asyncio.wait({asyncio.ensure_future(asyncio.Event().wait())}, timeout=50)
        (tmp_path / "token").write_text("back")
        await run.step("refund", Action.PAYMENT, {}, nothing)
        await run.finish()


@virtual_time
async def test_a_renewal_that_is_fenced_stops_the_worker(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("renew", Problem("fenced"))
    with pytest.raises(stepfence.Fenced):
        async with connection(gateway, tmp_path):
            await asyncio.Event().wait()
    assert "release" not in gateway.routes()


@virtual_time
async def test_the_program_may_clean_up_when_it_is_interrupted(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    cleaned: list[str] = []
    with pytest.raises(stepfence.Draining):
        async with connection(gateway, tmp_path):
            gateway.stop = "draining"
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.wait({asyncio.ensure_future(asyncio.Event().wait())}, timeout=1)
                cleaned.append("yes")
    assert cleaned == ["yes"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@virtual_time
async def test_drain_by_the_marker_file_settles_what_is_in_flight_and_releases(tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow(30)
    state = StateDir(tmp_path)
    with pytest.raises(stepfence.Draining):
        async with connection(gateway, tmp_path, state_dir=tmp_path) as run:
            claim = state.read_claim()
            assert claim is not None
            assert (claim.kind, claim.token, claim.run_uid, claim.worker) == ("process", 1, "u1", "1")

            async def two() -> None:
                await run.step("refund", Action.PAYMENT, {}, slow)
                await run.step("other", Action.CREATE, {}, nothing)

            task = asyncio.create_task(two())
            await slow.begun.wait()
            state.order_drain()
            await task
    assert slow.ended == ["answered"]
    assert "steps/other/begin" not in gateway.routes()
    assert gateway.routes()[-2:] == ["steps/refund/complete", "release"]
    assert gateway.bodies("release")[0]["reason"] == "Drained"
    assert state.released.exists()


@virtual_time
async def test_a_drain_has_a_budget_and_what_is_open_then_is_released_as_it_is(tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow(50)
    loop = asyncio.get_running_loop()
    with pytest.raises(stepfence.Draining):
        async with connection(gateway, tmp_path, state_dir=tmp_path, drain_budget=10.0) as run:
            task = asyncio.create_task(run.step("refund", Action.PAYMENT, {}, slow))
            await slow.begun.wait()
            StateDir(tmp_path).order_drain()
            before = loop.time()
            await asyncio.Event().wait()
    assert loop.time() - before < 25
    assert gateway.bodies("release")[0]["reason"] == "Drained"
    task.cancel()


async def test_sigterm_drains(tmp_path: Path) -> None:
    gateway, answer = ScriptedGateway(PLAN), asyncio.Event()
    before = signal.getsignal(signal.SIGTERM)

    async def sends(payload: Any, step: Step) -> Any:
        async with step.sending():
            os.kill(os.getpid(), signal.SIGTERM)
            await answer.wait()
        return "sent"

    with pytest.raises(stepfence.Draining):
        async with connection(gateway, tmp_path, handle_sigterm=True) as run:
            task = asyncio.create_task(run.step("refund", Action.PAYMENT, {}, sends))
            while run.stopping is None:
                await asyncio.wait({task}, timeout=0.01)
            answer.set()
            assert await task == "sent"
            await run.step("other", Action.CREATE, {}, sends)
    assert gateway.routes() == ["claim", "steps/refund/begin", "steps/refund/complete", "release"]
    assert signal.getsignal(signal.SIGTERM) is before


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
