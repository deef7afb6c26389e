# ruff: noqa: PT012  (what is expected comes out of a whole block, and leaving it is part of the test)
"""Probes: asked only with leave, reported with the moment of leave, and what follows."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import stepfence
from stepfence import Action, CannotTell, DidNotHappen, Happened, Step
from tests.sdk.gateway import Problem, ScriptedGateway, connection, probe
from tests.sdk.virtual import virtual_time

PLAN = {"refund": "Payment"}


async def performs(payload: Any, step: Step) -> Any:
    return {"id": f"performed {step.attempt}"}


class Asked:
    def __init__(self, *findings: Any) -> None:
        self.seen: list[tuple[Any, str, int]] = []
        self._findings = list(findings)

    async def __call__(self, payload: Any, step: Step) -> Any:
        self.seen.append((payload, step.key, step.attempt))
        finding = self._findings.pop(0)
        if isinstance(finding, Exception):
            raise finding
        return finding


@virtual_time
async def test_what_the_probe_found_is_the_result(tmp_path: Path) -> None:
    gateway, find = ScriptedGateway(PLAN), Asked(Happened({"id": "re_1"}))
    gateway.on("steps/refund/begin", probe(1, {"amount": 5}, retry_after=30))
    gateway.on("steps/refund/probe", {"outcome": "Wait", "retryAfterSeconds": 12})
    loop = asyncio.get_running_loop()
    before = loop.time()
    async with connection(gateway, tmp_path) as run:
        assert await run.step("refund", Action.PAYMENT, {"amount": 5}, performs, probe=find) == {"id": "re_1"}
        await run.finish()
    assert loop.time() - before == pytest.approx(42)
    assert find.seen == [({"amount": 5}, "sf1k", 1)]
    first, second, told = gateway.bodies("steps/refund/probe")
    assert "verdict" not in first
    assert "verdict" not in second
    assert len({first["requestID"], second["requestID"], told["requestID"]}) == 3
    assert told["asOf"] == "2026-01-02T03:04:05.678Z"
    assert (told["verdict"], told["result"], told["attempt"]) == ("Happened", {"id": "re_1"}, 1)


@virtual_time
async def test_what_did_not_happen_is_performed(tmp_path: Path) -> None:
    gateway, find = ScriptedGateway(PLAN), Asked(DidNotHappen())
    gateway.on("steps/refund/begin", probe(1, {}))
    async with connection(gateway, tmp_path) as run:
        assert await run.step("refund", Action.PAYMENT, {}, performs, probe=find) == {"id": "performed 1"}
        await run.finish()


@pytest.mark.parametrize("finding", [CannotTell("search is down"), RuntimeError("boom")])
@virtual_time
async def test_a_probe_that_cannot_tell_is_asked_again_ever_slower(finding: Any, tmp_path: Path) -> None:
    gateway, find = ScriptedGateway(PLAN), Asked(finding, finding, finding, Happened(1))
    gateway.on("steps/refund/begin", *[probe(1, {})] * 4)
    loop = asyncio.get_running_loop()
    before = loop.time()
    async with connection(gateway, tmp_path) as run:
        assert await run.step("refund", Action.PAYMENT, {}, performs, probe=find) == 1
        await run.finish()
    assert loop.time() - before == pytest.approx(1 + 2 + 4)
    assert gateway.bodies("steps/refund/probe")[1]["verdict"] == "CannotTell"
    assert "giveUp" not in gateway.bodies("steps/refund/probe")[1]


@virtual_time
async def test_without_a_probe_function_a_person_is_asked_at_once(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", probe(1, {}), Problem("halted", more={"question": "refund.q"}))
    with pytest.raises(stepfence.Halted):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, performs)
    told = gateway.bodies("steps/refund/probe")[-1]
    assert (told["verdict"], told["giveUp"]) == ("CannotTell", True)


@virtual_time
async def test_a_probe_that_hangs_cannot_tell(tmp_path: Path) -> None:
    async def hangs(payload: Any, step: Step) -> Any:
        await asyncio.Event().wait()

    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", probe(1, {}), Problem("halted"))
    with pytest.raises(stepfence.Halted):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, performs, probe=hangs)
    assert gateway.bodies("steps/refund/probe")[-1]["verdict"] == "CannotTell"


@virtual_time
async def test_a_probe_that_returns_something_else_is_a_fault_of_the_program(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", probe(1, {}))
    with pytest.raises(TypeError, match="must return Happened"):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, performs, probe=Asked(None))


@virtual_time
async def test_a_drain_does_not_wait_for_a_probe_that_may_not_start_yet(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", probe(1, {}, retry_after=3000))
    loop = asyncio.get_running_loop()
    before = loop.time()
    with pytest.raises(stepfence.Draining):
        async with connection(gateway, tmp_path) as run:
            gateway.stop = "draining"
            await run.step("refund", Action.PAYMENT, {}, performs, probe=Asked())
    assert loop.time() - before == pytest.approx(20)


@virtual_time
async def test_a_sync_probe_runs_too(tmp_path: Path) -> None:
    def find(payload: Any, step: Step) -> Happened:
        return Happened({"key": step.key})

    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", probe(1, {}))
    async with connection(gateway, tmp_path) as run:
        assert await run.step("refund", Action.PAYMENT, {}, performs, probe=find) == {"key": "sf1k"}
        await run.finish()
