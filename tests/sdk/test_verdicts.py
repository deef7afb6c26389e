"""What the end of `perform` tells the ledger."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

import stepfence
from stepfence import Action, Step
from tests.sdk import clients
from tests.sdk.gateway import Problem, ScriptedGateway, connection, go
from tests.sdk.virtual import virtual_time

REQUEST = httpx.Request("POST", "http://provider.test/refunds")
PLAN = {"refund": "Payment", "lookup": "Read", "note": "Upsert"}


def reports(gateway: ScriptedGateway, step: str = "refund") -> list[str]:
    verbs = (route.split("/")[2] for route in gateway.routes() if route.startswith(f"steps/{step}/"))
    return [verb for verb in verbs if verb != "begin"]


async def raises_before(payload: Any, step: Step) -> Any:
    order = payload["order"]
    async with step.sending():
        return order


async def raises_inside(payload: Any, step: Step) -> Any:
    async with step.sending():
        raise httpx.ReadTimeout("slow", request=REQUEST)


async def refused_inside(payload: Any, step: Step) -> Any:
    async with step.sending():
        await clients.post(clients.refused())


async def raises_after(payload: Any, step: Step) -> Any:
    async with step.sending():
        pass
    raise KeyError("id")


async def declined_after(payload: Any, step: Step) -> Any:
    async with step.sending():
        pass
    raise stepfence.NotApplied("declined", final=True)


async def raises_without_a_mark(payload: Any, step: Step) -> Any:
    raise KeyError("order")


async def refused_without_a_mark(payload: Any, step: Step) -> Any:
    raise httpx.ConnectError("refused", request=REQUEST)


async def not_applied_without_a_mark(payload: Any, step: Step) -> Any:
    raise stepfence.NotApplied("nothing done")


async def refused_second_request(payload: Any, step: Step) -> Any:
    async with step.sending():
        pass
    async with step.sending():
        await clients.post(clients.refused())


async def doubt_then_refused(payload: Any, step: Step) -> Any:
    try:
        async with step.sending():
            raise httpx.ReadTimeout("slow", request=REQUEST)  # noqa: TRY301
    except httpx.ReadTimeout:
        pass
    async with step.sending():
        await clients.post(clients.refused())


async def refused_and_wrapped(payload: Any, step: Step) -> Any:
    try:
        async with step.sending():
            await clients.post(clients.refused())
    except httpx.ConnectError as error:
        raise RuntimeError("no provider") from error


async def too_many(payload: Any, step: Step) -> Any:
    async with step.sending():
        (await clients.post(httpx.Response(429, headers={"retry-after": "7"}))).raise_for_status()


async def server_error(payload: Any, step: Step) -> Any:
    async with step.sending():
        (await clients.post(httpx.Response(503))).raise_for_status()


async def unserializable(payload: Any, step: Step) -> Any:
    async with step.sending():
        pass
    return object()


async def holds_an_object(payload: Any, step: Step) -> Any:
    async with step.sending():
        pass
    return {"text": "\ud800", "answer": [httpx.Response(200, request=REQUEST)]}


async def never_awaited(payload: Any, step: Step) -> Any:
    forgotten = unserializable(payload, step)
    forgotten.close()
    return {"refund": forgotten}


async def nothing_done_yet(payload: Any, step: Step) -> Any:
    return {"refund": (1 / 0 for _ in "x")}


def sync_marked(payload: Any, step: Step) -> Any:
    with step.sending():
        clients.post_blocking(clients.refused())


@pytest.mark.parametrize(
    ("perform", "told"),
    [
        (raises_before, "fail"),
        (raises_inside, "lose"),
        (refused_inside, "fail"),
        (raises_after, "lose"),
        (declined_after, "fail"),
        (raises_without_a_mark, "lose"),
        (refused_without_a_mark, "lose"),
        (not_applied_without_a_mark, "fail"),
        (refused_second_request, "lose"),
        (doubt_then_refused, "lose"),
        (refused_and_wrapped, "fail"),
        (too_many, "fail"),
        (server_error, "lose"),
        (unserializable, "lose"),
        (holds_an_object, "lose"),
        (never_awaited, "lose"),
        (nothing_done_yet, "lose"),
        (sync_marked, "fail"),
    ],
)
@virtual_time
async def test_a_failure_is_told_as_sure_only_when_nothing_can_have_happened(perform: Any, told: str, tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", go(1, {}), Problem("halted", more={"question": "refund.q1"}))
    with pytest.raises(stepfence.Halted):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, perform)
    assert reports(gateway) == [told]


@virtual_time
async def test_a_refusal_carries_its_reason_pause_and_finality(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    with pytest.raises(stepfence.StepFailed) as failed:
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, declined_after)
    (body,) = gateway.bodies("steps/refund/fail")
    assert (body["reason"], body["message"], body["final"], body["attempt"]) == ("NotApplied", "declined", True, 1)
    assert (failed.value.reason, failed.value.attempt) == ("NotApplied", 1)
    assert isinstance(failed.value.__cause__, stepfence.NotApplied)
    gateway = ScriptedGateway(PLAN)
    with pytest.raises(stepfence.StepFailed):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, too_many)
    (body,) = gateway.bodies("steps/refund/fail")
    assert (body["reason"], body["retryAfterSeconds"]) == ("HTTP429", 7)


@virtual_time
async def test_a_refusal_that_is_no_unicode_is_told_all_the_same(tmp_path: Path) -> None:
    async def refuses(_payload: Any, step: Step) -> Any:
        raise stepfence.NotApplied("no file caf\udce9", final=True, reason="NoFile\udce9")

    gateway = ScriptedGateway(PLAN)
    with pytest.raises(stepfence.StepFailed):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, refuses)
    (body,) = gateway.bodies("steps/refund/fail")
    assert (body["reason"], body["message"]) == ("NoFile?", "no file caf?")


@virtual_time
async def test_messages_for_the_ledger_carry_no_query_string(tmp_path: Path) -> None:
    async def leaks(payload: Any, step: Step) -> Any:
        async with step.sending():
            raise RuntimeError("GET https://provider.test/x?token=secret failed")

    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", go(1, {}), Problem("halted"))
    with pytest.raises(stepfence.Halted):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, leaks)
    (body,) = gateway.bodies("steps/refund/lose")
    assert "secret" not in body["message"]


@virtual_time
async def test_a_read_in_doubt_is_rerun_with_growing_pauses_and_then_fails(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    loop = asyncio.get_running_loop()
    before = loop.time()
    with pytest.raises(stepfence.StepFailed):
        async with connection(gateway, tmp_path) as run:
            await run.step("lookup", Action.READ, {}, server_error)
    assert reports(gateway, "lookup") == ["lose"] * 5 + ["fail"]
    assert loop.time() - before == pytest.approx(1 + 2 + 4 + 8)


@virtual_time
async def test_an_upsert_that_stays_in_doubt_is_left_to_the_next_worker(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    with pytest.raises(stepfence.Unsettled):
        async with connection(gateway, tmp_path) as run:
            await run.step("note", Action.UPSERT, {}, server_error)
    assert reports(gateway, "note") == ["lose"] * 6
    assert gateway.bodies("release")[0]["reason"] == "Error"


@virtual_time
async def test_an_error_that_cannot_be_written_is_told_by_its_class(tmp_path: Path) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    async def breaks(payload: Any, step: Step) -> Any:
        async with step.sending():
            raise Broken

    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", go(1, {}), Problem("halted"))
    with pytest.raises(stepfence.Halted):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, breaks)
    assert gateway.bodies("steps/refund/lose")[0]["message"] == "Broken"


@virtual_time
async def test_a_program_cannot_say_that_an_attempt_was_not_started(tmp_path: Path) -> None:
    async def says(payload: Any, step: Step) -> Any:
        raise stepfence.NotApplied("never", reason="NotStarted")

    gateway = ScriptedGateway(PLAN)
    with pytest.raises(stepfence.StepFailed):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, says)
    assert gateway.bodies("steps/refund/fail")[0]["reason"] == "NotApplied"
