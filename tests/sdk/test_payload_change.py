"""One step id is one payload: within one program another one is an error, and across restarts the recorded one wins, or is an error too."""

# ruff: noqa: PT012  (leaving the block is part of the test)

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog

import stepfence
from stepfence import Action, Options, Step, StepOptions
from stepfence.core.canonical import canonical, digest
from stepfence.sdk.payloads import first_difference
from stepfence.testing import FakeClock, MemoryCluster
from tests.sdk.gateway import Problem, ScriptedGateway, connection, done, go, probe
from tests.sdk.test_settle_rule import Slow
from tests.sdk.test_sync import connection as sync_connection
from tests.sdk.virtual import virtual_time

PLAN = {"refund": "Payment", "other": "Create"}
ALICE = {"to": "alice", "amount": 5}
BOB = {"to": "bob", "amount": 5}
REAL: list[dict[str, Any]] = [{"id": "refund", "action": "Payment", "attempts": 1, "backoffSeconds": 0}]


def sha(payload: Any) -> str:
    return digest(canonical(payload))


class Paid:
    def __init__(self) -> None:
        self.to: list[Any] = []

    async def __call__(self, payload: Any, step: Step) -> Any:
        async with step.sending():
            self.to.append(payload)
        return {"paid": payload}


@virtual_time
async def test_one_id_for_two_payloads_in_one_program_is_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    gateway, pay = ScriptedGateway(PLAN), Paid()
    async with connection(gateway, tmp_path) as run:
        await run.step("refund", Action.PAYMENT, ALICE, pay)
        calls = len(gateway)
        with pytest.raises(stepfence.PayloadChanged) as caught:
            await run.step("refund", Action.PAYMENT, BOB, pay)
        assert len(gateway) == calls
        assert await run.step("refund", Action.PAYMENT, dict(reversed(ALICE.items())), pay) == {"paid": ALICE}
        await run.finish()
    error = caught.value
    assert (error.step, error.recorded, error.brought, error.field) == ("refund", sha(ALICE), sha(BOB), "$.to")
    assert str(error).endswith(f"{sha(ALICE)}, now {sha(BOB)}; the first difference is at $.to")
    assert "alice" not in str(error)
    assert "bob" not in str(error)
    assert pay.to == [ALICE]


@virtual_time
async def test_two_payloads_at_once_are_an_error_for_the_later_one(tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow()
    async with connection(gateway, tmp_path) as run:
        first = asyncio.create_task(run.step("refund", Action.PAYMENT, ALICE, slow))
        await asyncio.wait({first}, timeout=0)
        with pytest.raises(stepfence.PayloadChanged):
            await run.step("refund", Action.PAYMENT, BOB, slow)
        assert await first == {"id": "re_1"}
        await run.finish()
    assert len(gateway.bodies("steps/refund/begin")) == 1


def recipient(payload: Any, step: Step) -> Any:
    return payload["to"]


def test_the_synchronous_face_refuses_it_too(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    with sync_connection(gateway, tmp_path) as run:
        assert run.step("refund", Action.PAYMENT, ALICE, recipient) == "alice"
        with pytest.raises(stepfence.PayloadChanged):
            run.step("refund", Action.PAYMENT, BOB, recipient)
        run.finish()


@virtual_time
async def test_another_action_is_refused_as_before(tmp_path: Path) -> None:
    gateway, pay = ScriptedGateway(PLAN), Paid()
    async with connection(gateway, tmp_path) as run:
        await run.step("refund", Action.PAYMENT, ALICE, pay)
        with pytest.raises(stepfence.CallRefused, match="planned as Payment, not Read"):
            await run.step("refund", Action.READ, ALICE, pay)
        await run.finish()


@pytest.mark.parametrize("code", [("too-large", 413), ("unknown-step", 409), ("plan-missing", 409), ("payload-changed", 409)])
@virtual_time
async def test_what_was_refused_is_not_recorded_so_the_program_may_ask_for_something_else(code: tuple[str, int], tmp_path: Path) -> None:
    gateway, pay = ScriptedGateway(PLAN), Paid()
    gateway.on("steps/refund/begin", Problem(*code))
    async with connection(gateway, tmp_path) as run:
        with pytest.raises((stepfence.CallRefused, stepfence.PayloadChanged)):
            await run.step("refund", Action.PAYMENT, ALICE, pay)
        assert await run.step("refund", Action.PAYMENT, BOB, pay) == {"paid": BOB}
        await run.finish()


@virtual_time
async def test_what_waits_in_the_ledger_may_be_recorded(tmp_path: Path) -> None:
    gateway, pay = ScriptedGateway(PLAN), Paid()
    gateway.on("steps/refund/begin", {"outcome": "Wait", "retryAfterSeconds": 3000, "reason": "BackOff"})
    async with connection(gateway, tmp_path) as run:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run.step("refund", Action.PAYMENT, ALICE, pay), 1)
        with pytest.raises(stepfence.PayloadChanged):
            await run.step("refund", Action.PAYMENT, BOB, pay)
        await run.finish()


async def begun_by_an_earlier_worker(run: Any) -> None:
    """`refund` is recorded for Alice, and failed for sure."""

    async def declines(payload: Any, step: Step) -> Any:
        raise stepfence.NotApplied("declined")

    worker = await run.worker()
    async with worker.connect() as connected:
        with pytest.raises(stepfence.StepFailed):
            await connected.step("refund", Action.PAYMENT, ALICE, declines)
        raise ZeroDivisionError


@pytest.mark.parametrize("where", ["connection", "step"])
async def test_across_restarts_it_is_an_error_for_who_asks_for_it_and_nothing_is_sent(where: str) -> None:
    pay = Paid()
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund-4711", plan=REAL, input={})
        with pytest.raises(ZeroDivisionError):
            await begun_by_an_earlier_worker(run)
        second = await run.worker()
        how: dict[str, Any] = {"on_payload_change": "error"}
        options = Options(exit_on_stop=False, handle_sigterm=False, **(how if where == "connection" else {}))
        async with second.connect(options=options) as connected:
            before = run.status
            with pytest.raises(stepfence.PayloadChanged) as caught:
                await connected.step("refund", Action.PAYMENT, BOB, pay, options=StepOptions(**(how if where == "step" else {})))
            assert (caught.value.recorded, caught.value.brought, caught.value.field) == (sha(ALICE), sha(BOB), None)
            assert run.status == before
            # A step may have it otherwise.
            with pytest.raises(stepfence.StepFailed):
                await connected.step("refund", Action.PAYMENT, BOB, pay, options=StepOptions(on_payload_change="warn"))
            await connected.finish()
        assert pay.to == []


async def test_across_restarts_the_recorded_payload_wins_with_a_word_in_the_log() -> None:
    pay, clock = Paid(), FakeClock()
    async with MemoryCluster(clock=clock) as cluster:
        run = await cluster.create("refund-4711", plan=[{**REAL[0], "attempts": 2}], input={})

        async def declines(payload: Any, step: Step) -> Any:
            raise stepfence.NotApplied("declined", retry_after=3600)

        first = await run.worker()
        with pytest.raises(ZeroDivisionError):
            async with first.connect() as connected:
                task = asyncio.create_task(connected.step("refund", Action.PAYMENT, ALICE, declines))
                async with asyncio.timeout(20):
                    while run.status.get("ledger", {}).get("refund", {}).get("state") != "Failed":
                        await asyncio.wait({task}, timeout=0.01)
                raise ZeroDivisionError
        with pytest.raises(asyncio.CancelledError):
            await task
        await first.ended(1)
        clock.advance(3600)
        second = await run.worker()
        with structlog.testing.capture_logs() as logs:
            async with second.connect() as connected:
                assert await connected.step("refund", Action.PAYMENT, BOB, pay) == {"paid": ALICE}
                assert await connected.step("refund", Action.PAYMENT, BOB, pay) == {"paid": ALICE}
                await connected.finish()
        assert pay.to == [ALICE]
        assert [log["event"] for log in logs].count("stepfence.payload.changed") == 2


@virtual_time
async def test_an_attempt_that_began_with_another_payload_is_told_as_not_started(tmp_path: Path) -> None:
    gateway, pay = ScriptedGateway(PLAN), Paid()
    gateway.on("steps/refund/begin", go(2, ALICE, payloadChanged=True, payloadDigest=sha(ALICE)))
    async with connection(gateway, tmp_path, on_payload_change="error") as run:
        with pytest.raises(stepfence.PayloadChanged) as caught:
            await run.step("refund", Action.PAYMENT, BOB, pay)
        await run.finish()
    (told,) = gateway.bodies("steps/refund/fail")
    assert (told["attempt"], told["reason"]) == (2, "NotStarted")
    assert (caught.value.recorded, caught.value.brought, caught.value.field) == (sha(ALICE), sha(BOB), "$.to")
    assert pay.to == []


@pytest.mark.parametrize("answer", [done({"id": 1}, payloadChanged=True), {**probe(1, ALICE), "payloadDigest": sha(ALICE)}])
@virtual_time
async def test_what_was_recorded_with_another_payload_is_neither_returned_nor_probed(answer: Any, tmp_path: Path) -> None:
    gateway, pay = ScriptedGateway(PLAN), Paid()
    gateway.on("steps/refund/begin", answer)
    async with connection(gateway, tmp_path, on_payload_change="error") as run:
        with pytest.raises(stepfence.PayloadChanged):
            await run.step("refund", Action.PAYMENT, BOB, pay, probe=pay)
        await run.finish()
    assert [route for route in gateway.routes() if route.startswith("steps/")] == ["steps/refund/begin"]


@pytest.mark.parametrize("make", [Options, StepOptions])
def test_a_slip_of_the_pen_is_no_warning(make: Any) -> None:
    with pytest.raises(ValueError, match='on_payload_change: "warn" or "error", not \'Error\''):
        make(on_payload_change="Error")


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        ({"a": 1}, {"a": 1}, None),
        (1, 2, "$"),
        (1, True, "$"),
        ({}, [], "$"),
        (None, {"a": 1}, "$"),
        ({"b": 1, "a": {"c": [1, 2]}}, {"b": 2, "a": {"c": [1, 3]}}, "$.a.c[1]"),
        ([1, 2], [1], "$[1]"),
        ({"a": None}, {}, "$.a"),
        ({"an order": {"4711": 1}}, {"an order": {"4711": 2}}, '$["an order"]["4711"]'),
    ],
)
def test_the_first_difference_is_a_path(one: Any, other: Any, path: str | None) -> None:
    assert first_difference(one, other) == first_difference(other, one) == path
