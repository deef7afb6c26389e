# ruff: noqa: PT012  (what is expected comes out of a whole block, and leaving it is part of the test)
"""What goes on beside the program: the lease is renewed, and orders to stop or drain come in."""

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
from stepfence.sdk.state import StateDir
from tests.sdk.gateway import Problem, ScriptedGateway, connection
from tests.sdk.test_settle_rule import PLAN, Slow
from tests.sdk.virtual import virtual_time


async def nothing(payload: Any, step: Step) -> Any:
    return None


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
async def test_a_pod_that_was_told_to_go_claims_nothing(tmp_path: Path) -> None:
    StateDir(tmp_path).order_drain()
    gateway = ScriptedGateway(PLAN)
    with pytest.raises(SystemExit) as left:
        async with connection(gateway, tmp_path, state_dir=tmp_path, exit_on_stop=True):
            raise AssertionError("must not run")
    assert left.value.code == 75
    assert gateway.calls == []


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
