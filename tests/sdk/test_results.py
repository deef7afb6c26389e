"""A result that cannot be told back: what happened is recorded as happened, and read alike live and on every replay."""

# ruff: noqa: PT012  (leaving the block is part of the test)

import asyncio
import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, Field, field_validator

import stepfence
from stepfence import Action, CannotTell, Happened, Options, Step
from stepfence.core.kept import NOT_KEPT
from stepfence.testing import FakeClock, MemoryCluster
from tests.sdk.gateway import Problem, ScriptedGateway, connection, probe
from tests.sdk.test_sync import connection as sync_connection
from tests.sdk.virtual import virtual_time

PLAN = {"refund": "Payment", "lookup": "Read", "note": "Upsert", "post": "Create"}
REAL_PLAN: list[dict[str, Any]] = [{"id": "post", "action": "Create"}, {"id": "lookup", "action": "Read"}]
QUIET = Options(exit_on_stop=False, handle_sigterm=False, backoff_base=0.01)


def held_by_itself() -> Any:
    held: list[Any] = ["re_9"]
    held.append(held)
    return {"held": held, "again": held}


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@dataclass
class Page:
    text: str
    raw: bytes


class Row(BaseModel):
    page: Page
    rate: float


# What a function returns, and what is kept of it.
LOSSY: list[tuple[str, Callable[[], Any], Any]] = [
    ("half a surrogate pair", lambda: {"text": "caf\udce9"}, {"text": "caf\\udce9"}),
    ("a name", lambda: {"\ud83d": 1}, {"\\ud83d": 1}),
    ("bytes", lambda: b"\xff\xd8 JPEG", "\\xff\\xd8 JPEG"),
    ("bytes inside", lambda: {"id": "re_9", b"\xfe": [b"\xff", b"ok"]}, {"id": "re_9", "\\xfe": ["\\xff", "ok"]}),
    ("no number", lambda: {"rate": math.nan, "most": [math.inf, -math.inf]}, {"rate": "NaN", "most": ["Infinity", "-Infinity"]}),
    ("itself", held_by_itself, {"held": ["re_9", "…"], "again": ["re_9", "…"]}),
    (
        "a model",
        lambda: Row(page=Page("\ud800", b"\xff"), rate=math.inf),
        {"page": {"text": "\\ud800", "raw": "\\xff"}, "rate": "Infinity"},
    ),
    ("a date beside it", lambda: (dt.date(2026, 1, 2), "\udfff"), ["2026-01-02", "\\udfff"]),
    ("digits", lambda: {"n": 10**5000}, {"n": hex(10**5000)}),
]


@pytest.mark.parametrize("step", ["post", "lookup"])
@pytest.mark.parametrize(("make", "kept"), [row[1:] for row in LOSSY], ids=[row[0] for row in LOSSY])
async def test_data_that_json_cannot_carry_is_done_once_and_says_so_live_and_replayed(
    make: Callable[[], Any], kept: Any, step: str
) -> None:
    effects = 0

    async def perform(payload: Any, mark: Step) -> Any:
        nonlocal effects
        async with mark.sending():
            effects += 1
        return make()

    action = Action.READ if step == "lookup" else Action.CREATE
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund-4711", plan=REAL_PLAN, input={})
        told: list[str] = []
        for _ in range(2):
            worker = await run.worker()
            with pytest.raises(stepfence.ResultNotReadable, match=f"step '{step}': Done, but") as caught:
                async with worker.connect() as connected:
                    await connected.step(step, action, {}, perform)
            assert caught.value.recorded == kept
            told.append(str(caught.value))
            await worker.ended(1)
        assert told[0] == told[1]
        entry = run.status["ledger"][step]
        assert (entry["state"], entry["attempt"], effects) == ("Done", 1, 1)
        assert run.questions == {}
        # And a program that knows how to go on may do so.
        third = await run.worker()
        async with third.connect() as connected:
            try:
                await connected.step(step, action, {}, perform)
            except stepfence.ResultNotReadable as known:
                await connected.finish({"known": known.recorded == kept})
        assert (run.phase, run.result) == ("Succeeded", {"known": True})


@virtual_time
async def test_a_result_that_nests_too_deep_is_done(tmp_path: Path) -> None:
    async def perform(payload: Any, step: Step) -> Any:
        return deep(5000)

    gateway = ScriptedGateway(PLAN)
    async with connection(gateway, tmp_path) as run:
        for _ in range(2):
            with pytest.raises(stepfence.ResultNotReadable, match="Done, but what it returned could not be kept"):
                await run.step("refund", Action.PAYMENT, {}, perform)
        await run.finish()
    assert len(gateway.bodies("steps/refund/complete")) == 1


@virtual_time
async def test_the_error_tells_no_value_but_what_is_recorded_and_why(tmp_path: Path) -> None:
    async def perform(payload: Any, step: Step) -> Any:
        return {"account": "s3cret", "text": "\ud800"}

    gateway = ScriptedGateway(PLAN)
    with pytest.raises(stepfence.ResultNotReadable) as caught:
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, perform)
    text = str(caught.value)
    assert "s3cret" not in text
    assert "is no JSON that RFC 8785 can carry" in text
    assert "an object with 'account', 'text'" in text
    assert "sha256:" in text
    assert isinstance(caught.value, stepfence.StepfenceError)
    assert set(gateway.bodies("steps/refund/complete")[0]["result"]) == {NOT_KEPT}


class Refund(BaseModel):
    """What it writes is not what it reads."""

    id: str = Field(validation_alias="refundId", serialization_alias="refund_id")


class Strict(BaseModel):
    id: str

    @field_validator("id")
    @classmethod
    def _known(cls, value: str) -> str:
        raise KeyError(value)


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (Refund, lambda: Refund(refundId="s3cret"), "cannot be read as Refund (refundId: Field required)"),
        (int, lambda: "s3cret", "cannot be read as int (it: Input should be a valid integer"),
        (dict[str, int], lambda: {"a": "s3cret", "b": "x"}, "cannot be read as dict[str, int] (a: Input should be a valid integer"),
        (Strict, lambda: {"id": "s3cret"}, "cannot be read as Strict (KeyError)"),
    ],
    ids=["aliases", "another type", "two fields", "its own code raises"],
)
@virtual_time
async def test_a_result_of_another_type_is_done_and_the_error_says_what_is_recorded(
    kind: Any, value: Callable[[], Any], why: str, tmp_path: Path
) -> None:
    performed = 0

    async def perform(payload: Any, step: Step) -> Any:
        nonlocal performed
        performed += 1
        return value()

    gateway = ScriptedGateway(PLAN)
    told: list[str] = []
    kept: list[Any] = []
    async with connection(gateway, tmp_path) as run:
        for _ in range(2):
            with pytest.raises(stepfence.ResultNotReadable) as caught:
                await run.step("refund", Action.PAYMENT, {}, perform, result=kind)
            told.append(str(caught.value))
            kept.append(caught.value.recorded)
        # The record is whole: who asks for it by a type that fits gets it.
        assert [await run.step("refund", Action.PAYMENT, {}, perform)] * 2 == kept
        await run.finish()
    assert told[0] == told[1]
    assert why in told[0]
    assert "s3cret" not in told[0]
    assert performed == 1
    assert [route for route in gateway.routes() if "fail" in route or "lose" in route] == []


def test_the_synchronous_face_says_the_same(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    with sync_connection(gateway, tmp_path) as run:
        for result, kind in [("\ud800", None), ("\ud800", str)]:
            with pytest.raises(stepfence.ResultNotReadable) as caught:
                run.step("refund", Action.PAYMENT, {}, lambda _payload, _step, result=result: result, result=kind)
            assert caught.value.recorded == "\\ud800"
        with pytest.raises(TypeError, match="step 'post': result='Nowhere' is no type"):
            run.step("post", Action.CREATE, {}, lambda *_: None, result="Nowhere")
        run.finish()
    assert len(gateway.bodies("steps/refund/complete")) == 1
    assert gateway.bodies("steps/post/begin") == []


@virtual_time
async def test_what_is_no_type_is_found_out_before_anything_is_sent(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    async with connection(gateway, tmp_path) as run:
        for kind in ("Nowhere", object(), {"a": int}):
            with pytest.raises(TypeError, match="is no type that a result can be read as"):
                await run.step("refund", Action.PAYMENT, {}, lambda *_: None, result=kind)
        await run.finish()
    assert [route for route in gateway.routes() if route.startswith("steps/")] == []


async def not_awaited(payload: Any, step: Step) -> Any:
    async def send() -> str:
        raise AssertionError("never runs")

    forgotten = send()
    forgotten.close()
    return {"refund": forgotten}


def not_run_yet(payload: Any, step: Step) -> Any:
    return (1 / 0 for _ in "x")


@pytest.mark.parametrize("make", [not_awaited, not_run_yet, lambda *_: httpx.Response(200)])
@virtual_time
async def test_a_read_whose_result_is_no_data_fails_at_once_and_is_not_repeated(make: Any, tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    async with connection(gateway, tmp_path) as run:
        with pytest.raises(stepfence.StepFailed, match="ResultNotSerializable"):
            await run.step("lookup", Action.READ, {}, make)
        await run.finish()
    (told,) = gateway.bodies("steps/lookup/fail")
    assert (told["reason"], told["final"]) == ("ResultNotSerializable", True)
    assert gateway.bodies("steps/lookup/lose") == []


@pytest.mark.parametrize("code", [("bad-request", 400), ("too-large", 413)])
@virtual_time
async def test_a_result_that_the_gateway_does_not_take_is_told_without_it(code: tuple[str, int], tmp_path: Path) -> None:
    async def perform(payload: Any, step: Step) -> Any:
        return {"id": "re_9"}

    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/complete", Problem(*code, more={"field": "result"}))
    async with connection(gateway, tmp_path) as run:
        await run.step("refund", Action.PAYMENT, {}, perform)
        await run.finish()
    whole, bare = gateway.bodies("steps/refund/complete")
    assert (whole["result"], bare["result"], bare["resultBytes"]) == ({"id": "re_9"}, None, 13)


class Opaque:
    """An object of a client library."""

    def __repr__(self) -> str:
        return "<Refund re_9>"


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        (lambda: {"text": "\ud800"}, {"text": "\\ud800"}),
        (lambda: {"id": "re_9", "answer": Opaque()}, {"id": "re_9", "answer": "<Refund re_9>"}),
        (held_by_itself, {"held": ["re_9", "…"], "again": ["re_9", "…"]}),
        (lambda: "x" * 1_000_000, None),
    ],
    ids=["text", "an object", "itself", "too large"],
)
async def test_what_a_probe_found_to_have_happened_is_recorded_whatever_its_result(found: Callable[[], Any], kept: Any) -> None:
    plan: list[dict[str, Any]] = [{"id": "post", "action": "Create", "timeoutSeconds": 1, "probe": {"giveUpAfterSeconds": 300}}]
    clock = FakeClock()

    async def perform(payload: Any, step: Step) -> Any:
        async with step.sending():
            raise ConnectionResetError

    async def find(payload: Any, step: Step) -> Any:
        return Happened(found())

    async with MemoryCluster(clock=clock) as cluster:
        run = await cluster.create("refund-4711", plan=plan, input={})
        first = await run.worker()
        with pytest.raises(ZeroDivisionError):
            async with first.connect() as connected:
                task = asyncio.create_task(connected.step("post", Action.CREATE, {}, perform, probe=find))
                async with asyncio.timeout(20):
                    while run.status.get("ledger", {}).get("post", {}).get("state") != "Unknown":
                        await asyncio.wait({task}, timeout=0.01)
                raise ZeroDivisionError
        with pytest.raises(asyncio.CancelledError):
            await task
        await first.ended(1)
        clock.advance(60)
        second = await run.worker()
        async with second.connect() as connected:
            for _ in range(2):
                with pytest.raises(stepfence.ResultNotReadable) as caught:
                    await connected.step("post", Action.CREATE, {}, perform, probe=find)
                assert caught.value.recorded == kept
            await connected.finish()
        assert run.status["ledger"]["post"]["state"] == "Done"


@virtual_time
async def test_a_probe_result_of_another_type_is_recorded_and_then_said(tmp_path: Path) -> None:
    async def find(payload: Any, step: Step) -> Any:
        return Happened({"id": 5}) if step.attempt else CannotTell()

    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", probe(1, {}))
    async with connection(gateway, tmp_path) as run:
        for _ in range(2):
            with pytest.raises(stepfence.ResultNotReadable, match="cannot be read as Refund"):
                await run.step("refund", Action.PAYMENT, {}, not_awaited, probe=find, result=Refund)
        await run.finish()
    assert gateway.bodies("steps/refund/probe")[-1]["result"] == {"id": 5}


@virtual_time
async def test_a_result_of_the_run_that_is_no_json_is_an_error_before_anything_is_told(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    async with connection(gateway, tmp_path) as run:
        for wrong in ("\ud800", math.nan, object()):
            with pytest.raises(TypeError, match="result of the run"):
                await run.finish({"x": wrong})
        await run.finish()
    assert len(gateway.bodies("finish")) == 1
