"""What the ledger's answers mean for the program: results, refusals, waits, the plan."""

import asyncio
import datetime as dt
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

import stepfence
from stepfence import Action, Step
from tests.sdk.gateway import Problem, ScriptedGateway, connection, done, go
from tests.sdk.virtual import virtual_time

REQUEST = httpx.Request("POST", "http://provider.test/refunds")
PLAN = {"refund": "Payment", "lookup": "Read", "note": "Upsert"}


async def unmarked(payload: Any, step: Step) -> Any:
    return payload["do"]() if callable(payload.get("do")) else payload


class Refund(BaseModel):
    id: str
    at: dt.datetime


@dataclass
class Money:
    amount: int
    tags: tuple[str, ...]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Refund, Refund(id="re_1", at=dt.datetime(2026, 1, 2, tzinfo=dt.UTC))),
        (Money, Money(5, ("a", "b"))),
        (dict[str, int], {"a": 1}),
        (None, {"a": [1, None, "x"]}),
        (None, None),
    ],
)
@virtual_time
async def test_live_and_replayed_results_are_alike(kind: Any, value: Any, tmp_path: Path) -> None:
    performed = 0

    async def perform(payload: Any, step: Step) -> Any:
        nonlocal performed
        performed += 1
        return value

    gateway = ScriptedGateway(PLAN)
    async with connection(gateway, tmp_path) as run:
        live = await run.step("refund", Action.PAYMENT, {}, perform, result=kind)
        replayed = await run.step("refund", Action.PAYMENT, {}, perform, result=kind)
        await run.finish()
    assert live == replayed == value
    assert type(live) is type(replayed) is type(value)
    assert performed == 1


@virtual_time
async def test_without_a_type_a_tuple_comes_out_as_a_list_already_live(tmp_path: Path) -> None:
    async def perform(payload: Any, step: Step) -> Any:
        return {"pair": (1, 2)}

    async with connection(ScriptedGateway(PLAN), tmp_path) as run:
        assert await run.step("refund", Action.PAYMENT, {}, perform) == {"pair": [1, 2]}
        await run.finish()


@virtual_time
async def test_perform_gets_the_recorded_payload_not_the_one_that_was_brought(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", go(2, {"amount": 1}, payloadChanged=True, key="sf1key"))
    seen: list[Any] = []

    async def perform(payload: Any, step: Step) -> Any:
        seen.append((payload, step.key, step.attempt, step.time_left))

    async with connection(gateway, tmp_path) as run:
        await run.step("refund", Action.PAYMENT, {"amount": 2}, perform)
        await run.finish()
    assert seen == [({"amount": 1}, "sf1key", 2, 60.0)]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"outcome": "Failed", "reason": "Declined", "message": "no", "attempt": 3}, stepfence.StepFailed),
        ({"outcome": "Denied", "reason": "Denied", "message": "not this one"}, stepfence.StepDenied),
        (Problem("payload-changed"), stepfence.PayloadChanged),
        (Problem("no-room"), stepfence.CallRefused),
        (Problem("unknown-step"), stepfence.CallRefused),
        (done(None, resultStored=False, resultBytes=9_000_000), stepfence.ResultNotStored),
        (Problem("halted"), stepfence.Halted),
        (Problem("awaiting-approval"), stepfence.Halted),
        (Problem("held"), stepfence.Halted),
        (Problem("draining"), stepfence.Draining),
        (Problem("cancelled"), stepfence.Cancelled),
        (Problem("terminal"), stepfence.Cancelled),
        (Problem("fenced"), stepfence.Fenced),
        (Problem("not-found", 404), stepfence.Cancelled),
        (Problem("forbidden", 403), stepfence.Fenced),
    ],
)
@virtual_time
async def test_begin_that_says_no_performs_nothing(answer: Any, kind: type[BaseException], tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", answer)

    async def perform(payload: Any, step: Step) -> Any:
        raise AssertionError("must not run")

    with pytest.raises(kind):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, perform)


@virtual_time
async def test_a_result_in_a_record_is_fetched(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    large = {"text": "x" * 5000}
    gateway.on("steps/refund/begin", {**done(large), "result": None})
    gateway.on("steps/refund/result", {"result": large, "resultDigest": "", "resultBytes": 5000})
    async with connection(gateway, tmp_path) as run:
        assert await run.step("refund", Action.PAYMENT, {}, unmarked) == large
        await run.finish()


@virtual_time
async def test_a_result_too_large_for_the_gateway_is_still_done(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/complete", Problem("too-large", 413, more={"field": "result"}))
    large = {"text": "x" * 5000}

    async def perform(payload: Any, step: Step) -> Any:
        return large

    async with connection(gateway, tmp_path) as run:
        gateway.on("steps/refund/complete", {**done(large), "result": None, "resultStored": False})
        assert await run.step("refund", Action.PAYMENT, {}, perform) == large
        await run.finish()
    first, second = gateway.bodies("steps/refund/complete")
    assert first["result"] == large
    assert second["result"] is None
    assert second["resultBytes"] == len(json.dumps(large, separators=(",", ":")))


@virtual_time
async def test_the_recorded_result_counts_when_somebody_settled_the_step_first(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/complete", done({"refund": "by a person"}))

    async def perform(payload: Any, step: Step) -> Any:
        return {"refund": "ours"}

    async with connection(gateway, tmp_path) as run:
        assert await run.step("refund", Action.PAYMENT, {}, perform) == {"refund": "by a person"}
        await run.finish()


@virtual_time
async def test_wait_is_waited_for_and_asked_again_under_a_new_request_id(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on(
        "steps/refund/begin",
        {"outcome": "Wait", "retryAfterSeconds": 40, "reason": "BackOff"},
        Problem("busy", more={"retryAfterSeconds": 20}),
    )
    loop = asyncio.get_running_loop()
    async with connection(gateway, tmp_path) as run:
        before = loop.time()
        await run.step("refund", Action.PAYMENT, {"a": 1}, unmarked)
        assert loop.time() - before == pytest.approx(60)
        await run.finish()
    ids = [body["requestID"] for body in gateway.bodies("steps/refund/begin")]
    assert len(set(ids)) == 3


@virtual_time
async def test_bad_calls_are_refused_before_anything_is_asked(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    async with connection(gateway, tmp_path) as run:
        for wrong in (object(), float("nan"), "\ud800"):
            with pytest.raises(TypeError, match="payload of step 'refund'"):
                await run.step("refund", Action.PAYMENT, {"x": wrong}, unmarked)
        with pytest.raises(stepfence.CallRefused, match="planned as Payment"):
            await run.step("refund", Action.READ, {}, unmarked)
        with pytest.raises(ValueError, match="Refund"):
            await run.step("refund", "Refund", {}, unmarked)  # type: ignore[call-overload]
        await run.finish()
    assert [route for route in gateway.routes() if route.startswith("steps/")] == []


@pytest.mark.parametrize("outer", ["async", "sync"])
@virtual_time
async def test_a_step_inside_a_step_is_refused(outer: str, tmp_path: Path) -> None:
    caught: list[BaseException] = []
    loop = asyncio.get_running_loop()

    async with connection(ScriptedGateway(PLAN), tmp_path) as run:

        async def nested(payload: Any, step: Step) -> Any:
            with pytest.raises(RuntimeError) as error:
                await run.step("note", Action.UPSERT, {}, unmarked)
            caught.append(error.value)

        def nested_sync(payload: Any, step: Step) -> Any:
            asyncio.run_coroutine_threadsafe(nested(payload, step), loop).result(10)

        await run.step("refund", Action.PAYMENT, {}, nested if outer == "async" else nested_sync)
        await run.finish()
    assert len(caught) == 1


@virtual_time
async def test_the_plan_is_submitted_as_the_api_spells_it(tmp_path: Path) -> None:
    gateway = ScriptedGateway()
    async with connection(gateway, tmp_path) as run:
        assert run.planned is None
        plan = await run.plan(
            [
                stepfence.PlanStep(id="refund", action=Action.PAYMENT, timeout_seconds=30, approval_expires_after_seconds=60),
                stepfence.PlanStep(id="mail", probe_give_up_after_seconds=300, approval=True),
                {"id": "raw", "action": "Read"},
            ]
        )
        await run.finish({"ok": True})
    (body,) = gateway.bodies("plan")
    assert body["steps"] == [
        {"id": "refund", "action": "Payment", "timeoutSeconds": 30, "approval": {"expiresAfterSeconds": 60}},
        {"id": "mail", "action": "Create", "approval": {}, "probe": {"giveUpAfterSeconds": 300}},
        {"id": "raw", "action": "Read"},
    ]
    assert [step.id for step in plan.steps] == ["refund", "mail", "raw"]
    assert gateway.bodies("finish")[0]["result"] == {"ok": True}


@virtual_time
async def test_the_run_tells_what_the_claim_brought(tmp_path: Path) -> None:
    async with connection(ScriptedGateway(PLAN), tmp_path) as run:
        assert run.run_id == "support/refund-4711"
        assert run.input == {"order": "4711"}
        assert (run.remaining.bytes, run.remaining.steps) == (1000, 200)
        await run.finish()


@virtual_time
async def test_steps_run_together_but_no_more_than_allowed(tmp_path: Path) -> None:
    gateway = ScriptedGateway({f"s{n}": "Read" for n in range(6)})
    running, most = 0, 0
    full, gate = asyncio.Event(), asyncio.Event()

    async def perform(payload: Any, step: Step) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            full.set()
        await gate.wait()
        running -= 1

    async with connection(gateway, tmp_path, concurrency=2) as run:
        async with asyncio.TaskGroup() as group:
            for n in range(6):
                group.create_task(run.step(f"s{n}", Action.READ, {}, perform))
            await full.wait()
            gate.set()
        await run.finish()
    assert most == 2


def lazy(payload: Any, step: Step) -> Any:
    yield payload


async def lazy_async(payload: Any, step: Step) -> Any:
    yield payload


class Lazy:
    def __call__(self, payload: Any, step: Step) -> Any:
        yield payload


@pytest.mark.parametrize("perform", [lazy, lazy_async, Lazy(), functools.partial(lazy)], ids=["plain", "async", "object", "partial"])
@virtual_time
async def test_a_generator_is_no_step_for_nothing_of_it_runs_within_the_step(perform: Any, tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    async with connection(gateway, tmp_path) as run:
        with pytest.raises(TypeError, match="step 'refund': a generator function does nothing when it is called"):
            await run.step("refund", Action.PAYMENT, {}, perform)
        await run.finish()
