"""Lost replies, an absent gateway, deadlines: what is repeated, under which id, and for how long."""

import asyncio
import threading
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

import stepfence
from stepfence import Action, Options, Step, StepOptions
from stepfence.sdk.connection import Connection
from tests.sdk import clients
from tests.sdk.gateway import Held, LostReply, NoConnection, Problem, ScriptedGateway, connection, go, settings
from tests.sdk.test_settle_rule import Slow
from tests.sdk.virtual import virtual_time

PLAN = {"refund": "Payment", "lookup": "Read", "other": "Create"}


class Counted:
    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, payload: Any, step: Step) -> Any:
        async with step.sending():
            self.count += 1
        return self.count


def ids(gateway: ScriptedGateway, route: str) -> list[str]:
    return [body["requestID"] for body in gateway.bodies(route)]


@pytest.mark.parametrize("route", ["claim", "plan", "steps/refund/begin", "steps/refund/complete", "finish"])
@virtual_time
async def test_a_lost_reply_is_asked_for_again_under_the_same_request_id(route: str, tmp_path: Path) -> None:
    gateway, perform = ScriptedGateway(PLAN), Counted()
    gateway.on(route, LostReply(), Problem("store-unavailable", 503))
    async with connection(gateway, tmp_path) as run:
        await run.plan([stepfence.PlanStep(id="refund", action=Action.PAYMENT)])
        assert await run.step("refund", Action.PAYMENT, {}, perform) == 1
        await run.finish()
    assert len(ids(gateway, route)) == 3
    assert len(set(ids(gateway, route))) == 1
    assert perform.count == 1
    assert all(0 < len(request_id) <= 64 for request_id in ids(gateway, route))


@pytest.mark.parametrize("verb", ["fail", "lose"])
@virtual_time
async def test_a_lost_reply_to_a_report_is_asked_for_again(verb: str, tmp_path: Path) -> None:
    async def perform(payload: Any, step: Step) -> Any:
        async with step.sending():
            await clients.post(clients.refused() if verb == "fail" else clients.slow())

    gateway = ScriptedGateway(PLAN)
    gateway.on(f"steps/refund/{verb}", LostReply())
    gateway.on("steps/refund/begin", go(1, {}), Problem("halted"))
    with pytest.raises(stepfence.Halted):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, perform)
    assert len(set(ids(gateway, f"steps/refund/{verb}"))) == 1
    assert len(ids(gateway, f"steps/refund/{verb}")) == 2


@virtual_time
async def test_complete_is_repeated_for_hours_with_capped_pauses(tmp_path: Path) -> None:
    gateway, perform = ScriptedGateway(PLAN), Counted()
    gateway.on("steps/refund/complete", *[Problem("store-unavailable", 503)] * 1000)
    loop = asyncio.get_running_loop()
    async with connection(gateway, tmp_path) as run:
        before = loop.time()
        assert await run.step("refund", Action.PAYMENT, {}, perform) == 1
        await run.finish()
    assert 4000 < loop.time() - before < 10_100
    assert len(set(ids(gateway, "steps/refund/complete"))) == 1
    assert perform.count == 1


@virtual_time
async def test_a_gateway_that_is_away_stops_the_worker_and_nothing_is_performed(tmp_path: Path) -> None:
    gateway, perform = ScriptedGateway(PLAN), Counted()
    gateway.on("steps/refund/begin", *[NoConnection()] * 10_000)
    loop = asyncio.get_running_loop()
    before = loop.time()
    with pytest.raises(stepfence.Unreachable):
        async with connection(gateway, tmp_path, patience=120) as run:
            await run.step("refund", Action.PAYMENT, {}, perform)
    assert 110 < loop.time() - before <= 125
    assert perform.count == 0


@virtual_time
async def test_a_begin_that_was_surely_not_heard_counts_its_deadline_anew(tmp_path: Path) -> None:
    gateway, perform = ScriptedGateway(PLAN), Counted()
    gateway.on("steps/refund/begin", *[NoConnection()] * 12)
    async with connection(gateway, tmp_path, backoff_base=10.0) as run:
        assert await run.step("refund", Action.PAYMENT, {}, perform) == 1
        await run.finish()
    assert gateway.bodies("steps/refund/fail") == []


@virtual_time
async def test_there_is_no_go_after_the_deadline_counted_from_before_the_first_request(tmp_path: Path) -> None:
    """R8: the reply to begin is late; the step is told as never started, and only a fresh begin performs it."""
    gateway, perform, answer = ScriptedGateway(PLAN, timeout=20), Counted(), asyncio.Event()
    gateway.on("steps/refund/begin", Held(answer))
    gateway.on("steps/refund/fail", {"outcome": "Failed"})
    loop = asyncio.get_running_loop()
    async with connection(gateway, tmp_path) as run:
        loop.call_later(21, answer.set)
        assert await run.step("refund", Action.PAYMENT, {}, perform) == 1
        await run.finish()
    (body,) = gateway.bodies("steps/refund/fail")
    assert (body["reason"], body["attempt"]) == ("NotStarted", 1)
    assert perform.count == 1
    assert len(set(ids(gateway, "steps/refund/begin"))) == 2


@virtual_time
async def test_a_begin_whose_replies_were_all_lost_is_told_as_not_started_before_it_becomes_a_doubt(tmp_path: Path) -> None:
    gateway, perform = ScriptedGateway(PLAN, timeout=20), Counted()
    gateway.on("steps/refund/begin", *[LostReply()] * 4, Problem("begin-expired", more={"attempt": 1, "retryAfterSeconds": 8}))
    gateway.on("steps/refund/fail", {"outcome": "Failed"})
    # Whatever the jitter, the fifth request is made before deadline and margin (25 s) have passed: 2 + 4 + 8 + 10 s at most.
    async with connection(gateway, tmp_path, backoff_base=2.0) as run:
        assert await run.step("refund", Action.PAYMENT, {}, perform) == 1
        await run.finish()
    (body,) = gateway.bodies("steps/refund/fail")
    assert (body["reason"], body["attempt"], perform.count) == ("NotStarted", 1, 1)
    first, *repeats, fresh = ids(gateway, "steps/refund/begin")
    assert set(repeats) == {first} != {fresh}


@virtual_time
async def test_the_deadline_is_the_earlier_of_ours_and_the_gateways(tmp_path: Path) -> None:
    left: list[float] = []

    async def perform(payload: Any, step: Step) -> Any:
        left.append(step.time_left)

    gateway, answer = ScriptedGateway(PLAN), asyncio.Event()
    gateway.on("steps/refund/begin", go(1, {}, timeout=60, left=5))
    gateway.on("steps/other/begin", Held(answer))
    asyncio.get_running_loop().call_later(10, answer.set)
    async with connection(gateway, tmp_path) as run:
        await run.step("refund", Action.PAYMENT, {}, perform)
        await run.step("other", Action.CREATE, {}, perform)
        await run.step("lookup", Action.READ, {}, perform, options=StepOptions(limit=3))
        await run.finish()
    assert left == pytest.approx([5, 50, 3])


@virtual_time
async def test_a_claim_waits_for_the_older_pod(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("claim", *[Problem("holder-alive", more={"retryAfterSeconds": 5})] * 3)
    loop = asyncio.get_running_loop()
    before = loop.time()
    async with connection(gateway, tmp_path) as run:
        assert loop.time() - before == pytest.approx(15)
        await run.finish()
    assert len(set(ids(gateway, "claim"))) == 1


@pytest.mark.parametrize(("code", "status", "exit_code"), [("forbidden", 403, 75), ("not-found", 404, 76)])
@virtual_time
async def test_a_claim_by_a_pod_that_is_no_longer_the_worker_is_given_a_moment_and_then_ends_it(
    code: str, status: int, exit_code: int, tmp_path: Path
) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("claim", *[Problem(code, status)] * 3)
    async with connection(gateway, tmp_path) as run:
        await run.finish()
    gateway = ScriptedGateway(PLAN)
    gateway.on("claim", *[Problem(code, status)] * 1000)
    with pytest.raises(SystemExit) as left:
        async with connection(gateway, tmp_path, exit_on_stop=True):
            raise AssertionError("must not run")
    assert left.value.code == exit_code
    assert "release" not in gateway.routes()


@virtual_time
async def test_a_claim_that_is_never_given_ends_the_worker(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("claim", *[Problem("holder-alive", more={"retryAfterSeconds": 5})] * 1000)
    with pytest.raises(SystemExit) as left:
        async with connection(gateway, tmp_path, claim_patience=60, exit_on_stop=True):
            raise AssertionError("must not run")
    assert left.value.code == 1


@virtual_time
async def test_a_token_that_is_just_being_rotated_is_tried_again(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("finish", *[Problem("unauthenticated", 401)] * 3)
    async with connection(gateway, tmp_path) as run:
        await run.finish()
    gateway = ScriptedGateway(PLAN)
    gateway.on("finish", *[Problem("unauthenticated", 401)] * 1000)
    with pytest.raises(stepfence.Fenced):
        async with connection(gateway, tmp_path) as run:
            await run.finish()


@virtual_time
async def test_an_async_perform_is_stopped_at_its_deadline_and_told_as_lost(tmp_path: Path) -> None:
    gateway, slow = ScriptedGateway(PLAN), Slow(1000)
    gateway.on("steps/refund/begin", go(1, {}), Problem("halted"))
    loop = asyncio.get_running_loop()
    before = loop.time()
    with pytest.raises(stepfence.Halted):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, slow)
    assert loop.time() - before == pytest.approx(60)
    assert gateway.bodies("steps/refund/lose")[0]["reason"] == "DeadlineExceeded"
    assert slow.ended == ["cancelled"]


@virtual_time
async def test_a_deadline_before_sending_began_is_a_sure_failure(tmp_path: Path) -> None:
    async def prepares_for_ever(payload: Any, step: Step) -> Any:
        await asyncio.Event().wait()
        async with step.sending():
            pass

    gateway = ScriptedGateway(PLAN)
    with pytest.raises(stepfence.StepFailed):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, prepares_for_ever)
    assert gateway.bodies("steps/refund/fail")[0]["reason"] == "DeadlineExceeded"


@virtual_time
async def test_nothing_is_sent_past_the_deadline_by_code_that_resists_to_be_stopped(tmp_path: Path) -> None:
    sent: list[str] = []

    async def stubborn(payload: Any, step: Step) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            async with step.sending():
                sent.append("sent")

    gateway = ScriptedGateway(PLAN)
    with pytest.raises(stepfence.StepFailed):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, stubborn)
    assert sent == []
    assert gateway.bodies("steps/refund/fail")[0]["reason"] == "TimeoutError"


@pytest.mark.parametrize(("late_by", "told"), [(1, ["complete"]), (4, ["lose", "complete"])])
@virtual_time
async def test_a_late_answer_is_told_all_the_same(late_by: float, told: list[str], tmp_path: Path) -> None:
    """R13: positive evidence is always welcome."""

    async def late(payload: Any, step: Step) -> Any:
        async with step.sending():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.wait({asyncio.ensure_future(asyncio.Event().wait())}, timeout=late_by)
        return "true answer"

    gateway = ScriptedGateway(PLAN)
    async with connection(gateway, tmp_path) as run:
        assert await run.step("refund", Action.PAYMENT, {}, late) == "true answer"
        await run.finish()
    assert [route.split("/")[2] for route in gateway.routes() if route.startswith("steps/")] == ["begin", *told]


class Exited(BaseException):
    pass


async def test_a_thread_of_a_coroutine_that_sends_beyond_the_margin_ends_the_process(tmp_path: Path) -> None:
    gateway, free = ScriptedGateway(PLAN, timeout=0.05), threading.Event()
    exits: list[int] = []

    def exit_process(code: int) -> NoReturn:
        exits.append(code)
        free.set()
        raise Exited

    async def left_behind(payload: Any, step: Step) -> Any:
        def send() -> None:
            with step.sending():
                free.wait(20)

        await asyncio.to_thread(send)

    gateway.on("claim", {**gateway._claim(), "marginSeconds": 1})
    gateway.on("steps/refund/begin", go(1, {}, timeout=0.05), Problem("halted"))
    options = Options(exit_on_stop=False, handle_sigterm=False)
    made = Connection(settings(tmp_path), options, transport=gateway.transport, exit_process=exit_process)
    with pytest.raises((stepfence.Halted, Exited)):
        async with made as run:
            await run.step("refund", Action.PAYMENT, {}, left_behind)
    assert exits == [76]
    assert "steps/refund/fail" not in gateway.routes()
    assert gateway.routes()[:3] == ["claim", "steps/refund/begin", "steps/refund/lose"]


@pytest.mark.parametrize("settles", [True, False])
async def test_a_sync_perform_past_its_deadline_is_told_as_lost_and_the_process_exits(settles: bool, tmp_path: Path) -> None:
    gateway, free = ScriptedGateway(PLAN, timeout=0.05), threading.Event()
    exits: list[int] = []

    def exit_process(code: int) -> NoReturn:
        exits.append(code)
        free.set()
        raise Exited

    def hangs(payload: Any, step: Step) -> Any:
        with step.sending():
            if settles:
                while not gateway.bodies("steps/refund/lose"):
                    free.wait(0.01)
                return "late"
            free.wait(20)
        return None

    gateway.on("claim", {**gateway._claim(), "marginSeconds": 1})
    options = Options(exit_on_stop=False, handle_sigterm=False)
    made = Connection(settings(tmp_path), options, transport=gateway.transport, exit_process=exit_process)
    if settles:
        async with made as run:
            assert await run.step("refund", Action.PAYMENT, {}, hangs) == "late"
            await run.finish()
        assert exits == []
        assert gateway.routes()[-4:] == ["steps/refund/lose", "steps/refund/complete", "finish", "release"]
        return
    with pytest.raises((stepfence.Halted, Exited)):
        async with made as run:
            await run.step("refund", Action.PAYMENT, {}, hangs)
    assert exits == [76]
    assert gateway.routes()[:4] == ["claim", "steps/refund/begin", "steps/refund/lose", "release"]
    assert gateway.bodies("release")[0]["reason"] == "Error"


async def test_a_sync_perform_runs_in_a_thread(tmp_path: Path) -> None:
    threads: list[str] = []

    def perform(payload: Any, step: Step) -> Any:
        threads.append(threading.current_thread().name)
        assert step.time_left > 0
        return payload

    async with connection(ScriptedGateway(PLAN), tmp_path) as run:
        assert await run.step("refund", Action.PAYMENT, {"a": 1}, perform) == {"a": 1}
        await run.finish()
    assert threads[0].startswith("stepfence")


@pytest.mark.parametrize("code", ["attempt-mismatch", "not-in-flight", "fenced"])
@virtual_time
async def test_a_report_that_the_ledger_refuses_stops_the_worker(code: str, tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/complete", Problem(code))
    with pytest.raises(stepfence.Fenced):
        async with connection(gateway, tmp_path) as run:
            await run.step("refund", Action.PAYMENT, {}, Counted())


@virtual_time
async def test_a_429_before_begin_is_waited_for_as_told(tmp_path: Path) -> None:
    gateway, perform = ScriptedGateway(PLAN), Counted()
    gateway.on("steps/refund/begin", *[Problem("over-budget", 429, more={"retryAfterSeconds": 30})] * 3)
    loop = asyncio.get_running_loop()
    async with connection(gateway, tmp_path) as run:
        before = loop.time()
        assert await run.step("refund", Action.PAYMENT, {}, perform) == 1
        assert loop.time() - before == pytest.approx(90)
        await run.finish()
    assert gateway.bodies("steps/refund/fail") == []


@pytest.mark.parametrize("status", [401, 403, 404, 407, 414, 421, 451])
@pytest.mark.parametrize("route", ["steps/refund/complete", "finish"])
@virtual_time
async def test_a_proxy_that_says_no_to_a_report_is_no_gateway_that_has_heard_it(status: int, route: str, tmp_path: Path) -> None:
    gateway, perform = ScriptedGateway(PLAN), Counted()
    gateway.on(route, *[httpx.Response(status, text="<h1>no</h1>")] * 3)
    async with connection(gateway, tmp_path) as run:
        assert await run.step("refund", Action.PAYMENT, {}, perform) == 1
        await run.finish()
    assert len(ids(gateway, route)) == 4
    assert len(set(ids(gateway, route))) == 1
    assert gateway.bodies("release")[0]["reason"] == "Finished"
