"""Agents whose steps send in ways that hide what became of the request: in doubt, asked about, and done once at every crash point."""

import asyncio
import threading
from typing import Any

import httpx
import pytest
import tenacity

import stepfence
from stepfence import Action, Run, Step
from stepfence.testing import Effects, Report, drive

Client = httpx.AsyncClient
TRIES = [{"id": "refund", "action": "Payment", "attempts": 3, "backoffSeconds": 0}]


def once(report: Report) -> bool:
    """Whether every run with and without a crash ended with one refund."""
    return all(len(row.history.applied) == 1 for row in report.rows)


async def test_a_task_that_still_sends_when_its_sibling_raises() -> None:
    async def agent(run: Run, http: Client) -> None:
        async def pay(payload: Any, step: Step) -> Any:
            async def post() -> None:
                async with step.sending():
                    await asyncio.sleep(5)  # noqa: TID251  (virtual: the sibling raises meanwhile)
                    await http.post("/refunds", headers={"Idempotency-Key": step.key})

            async def other() -> None:
                await asyncio.sleep(1)  # noqa: TID251  (virtual)
                raise KeyError("customer")

            await asyncio.gather(post(), other())

        await run.step("refund", Action.PAYMENT, {}, pay)
        await run.finish()

    assert once(await drive(agent, plan=TRIES))


async def test_a_thread_that_is_left_behind_while_it_sends() -> None:
    async def agent(run: Run, _http: Client, effects: Effects) -> None:
        async def pay(_payload: Any, step: Step) -> Any:
            entered, go_on = threading.Event(), threading.Event()

            def post() -> None:
                with step.sending(), httpx.Client(transport=effects.transport, base_url="http://provider") as http:
                    entered.set()
                    assert go_on.wait(20)
                    http.post("/refunds", headers={"Idempotency-Key": step.key})

            future = asyncio.get_running_loop().run_in_executor(None, post)
            future.add_done_callback(lambda done: done.exception())
            await asyncio.to_thread(entered.wait, 20)
            threading.Timer(0.05, go_on.set).start()
            raise KeyError("customer")

        await run.step("refund", Action.PAYMENT, {}, pay)
        await run.finish()

    assert once(await drive(agent, plan=TRIES, crashes="none"))


class Redirecting:
    """Takes a POST, and shows its receipt elsewhere, where it is not found."""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(303, headers={"location": "/receipts/1"}, json={"id": "re_1"})
        return httpx.Response(404)


@pytest.mark.parametrize("where", ["in the block", "after the block"])
async def test_a_redirect_to_a_receipt_that_is_not_found(where: str) -> None:
    async def agent(run: Run, _http: Client, effects: Effects) -> None:
        async def pay(_payload: Any, step: Step) -> Any:
            following = httpx.AsyncClient(transport=effects.transport, base_url="http://provider", follow_redirects=True)
            async with step.sending(), following as http:
                answer = await http.post("/refunds", headers={"Idempotency-Key": step.key})
                if where == "in the block":
                    stepfence.raise_for_status(answer)
            stepfence.raise_for_status(answer)

        await run.step("refund", Action.PAYMENT, {}, pay)
        await run.finish()

    assert once(await drive(agent, plan=TRIES, provider=Redirecting))


class Moody:
    """Takes the first request and says 503, then has none of it."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, _request: httpx.Request) -> httpx.Response:
        self.asked += 1
        return httpx.Response(200 if self.asked == 1 else 429)


async def test_tenacity_in_a_block_that_ends_with_an_answer_which_would_be_tried_again() -> None:
    async def agent(run: Run, http: Client) -> None:
        async def pay(_payload: Any, step: Step) -> Any:
            async with step.sending():
                async for attempt in tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(2), reraise=True):
                    with attempt:
                        answer = await http.post("/refunds", headers={"Idempotency-Key": step.key})
                        stepfence.raise_for_status(answer)
                        answer.json()["no such field"]

        await run.step("refund", Action.PAYMENT, {}, pay)
        await run.finish()

    assert once(await drive(agent, plan=TRIES, provider=Moody))


async def test_a_halt_after_the_request() -> None:
    async def agent(run: Run, http: Client) -> None:
        async def pay(_payload: Any, step: Step) -> Any:  # without a mark
            answer = await http.post("/refunds", headers={"Idempotency-Key": step.key})
            if answer.json()["id"]:
                await run.halt("Strange", "look at this refund")

        await run.step("refund", Action.PAYMENT, {}, pay)
        await run.finish()

    assert once(await drive(agent, plan=TRIES))
