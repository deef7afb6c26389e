"""Agents that are right come through every crash."""

import asyncio
import concurrent.futures
import itertools
from typing import Any

import httpx
import pytest

import stepfence
from stepfence import Action, PlanStep, Run, Step, SyncRun
from stepfence.testing import Effects, drive
from tests.testing.agents import PAYMENT, PAYMENT_AND_MAIL, refund_and_mail, sender

Client = httpx.AsyncClient


async def test_each_effect_is_done_once_at_every_crash_point() -> None:
    report = await drive(refund_and_mail, input={"order": "4711"}, plan=PAYMENT_AND_MAIL)
    assert report.effects == {"POST /refunds": 1, "POST /mails": 1}
    assert [str(row.point) for row in report.rows[1:]] == [
        f"{when} {effect}{twice}"
        for effect in (1, 2)
        for when, twice in (("before", ""), ("after", ""), ("answered", ""), ("lost", ""), ("before", " twice"))
    ]
    assert {row.history.hits for row in report.rows[1:]} == {1, 2}
    # It was played through restarts, and the person really had to look.
    assert {
        str(row.point): (len(row.history.workers), row.history.asked) for row in report.rows if row.point and row.point.effect == 1
    } == {
        "before 1": (2, ["refund: DidNotHappen"]),
        "after 1": (2, ["refund: Happened"]),
        "answered 1": (2, ["refund: Happened"]),
        "lost 1": (2, ["refund: Happened"]),
        "before 1 twice": (3, ["refund: DidNotHappen", "refund: DidNotHappen"]),
    }


async def test_a_plan_that_the_worker_brings() -> None:
    async def agent(run: Run, http: Client) -> None:
        orders = (await http.get("/orders")).json()
        await run.plan([PlanStep(id=f"refund-{number}", action=Action.PAYMENT) for number in (1, 2)])
        for number in (1, 2):
            await run.step(f"refund-{number}", Action.PAYMENT, {"of": orders["path"]}, sender(http, f"/refunds/{number}"))
        await run.finish()

    report = await drive(agent, crashes=["before 1", "after 1", "before 2", "answered 2"])
    assert report.effects == {"POST /refunds/1": 1, "POST /refunds/2": 1}


async def test_a_step_that_must_be_approved_is_approved() -> None:
    async def agent(run: Run, http: Client) -> None:
        await run.step("drop", Action.DELETE, {"table": "a"}, sender(http, "/tables/a", "DELETE"))
        await run.finish()

    report = await drive(agent, plan=[PlanStep(id="drop", action=Action.DELETE)])
    assert report.effects == {"DELETE /tables/a": 1}
    assert report.baseline.asked == ["drop: Approve"]


async def test_an_upsert_may_be_done_again_under_its_key() -> None:
    async def agent(run: Run, http: Client) -> None:
        await run.step("status", Action.UPSERT, {"status": "paid"}, sender(http, "/orders/4711", "PUT"))
        await run.finish()

    report = await drive(agent, plan=[{"id": "status", "action": "Upsert"}])
    again = {str(row.point): len(row.history.applied) for row in report.rows if row.point}
    assert again == {"before 1": 1, "after 1": 2, "answered 1": 2, "lost 1": 2, "before 1 twice": 1}
    assert report.effects == {"PUT /orders/4711": 1}
    assert [row.history.asked for row in report.rows] == [[]] * 6


async def test_a_resend_that_the_plan_allows_is_no_repeat() -> None:
    plan = [{"id": "refund", "action": "Payment", "recovery": "ResendWithKey", "idempotencyKeyTTLSeconds": 86400}]

    async def agent(run: Run, http: Client) -> None:
        await run.finish(await run.step("refund", Action.PAYMENT, {}, sender(http, "/refunds")))

    report = await drive(agent, plan=plan)
    assert max(len(row.history.applied) for row in report.rows) == 2


async def test_steps_in_parallel_die_together() -> None:
    async def agent(run: Run, http: Client) -> None:
        async with asyncio.TaskGroup() as tools:
            for name in ("a", "b"):
                tools.create_task(run.step(name, Action.CREATE, {}, sender(http, f"/{name}")))
        await run.finish()

    report = await drive(agent, plan=[{"id": name} for name in ("a", "b")])
    assert report.effects == {"POST /a": 1, "POST /b": 1}
    assert len(report.rows) == 11


def sync_sender(http: httpx.Client, path: str) -> Any:
    def send(payload: Any, step: Step) -> Any:
        with step.sending():
            answer = http.post(path, json=payload, headers={"Idempotency-Key": step.key})
        return answer.json()

    return send


async def test_a_plain_function_gets_the_synchronous_faces() -> None:
    def agent(run: SyncRun, http: httpx.Client) -> None:
        refund = run.step("refund", Action.PAYMENT, {"order": run.input}, sync_sender(http, "/refunds"))
        run.step("mail", Action.CREATE, refund, sync_sender(http, "/mails"))
        run.finish()

    report = await drive(agent, input="4711", plan=PAYMENT_AND_MAIL)
    assert report.effects == {"POST /refunds": 1, "POST /mails": 1}


async def test_threads_of_a_plain_function_may_have_steps_in_flight_at_once() -> None:
    plan: list[dict[str, Any]] = [{"id": "a", "action": "Upsert"}, {"id": "b", "attempts": 3, "backoffSeconds": 60}]

    def agent(run: SyncRun, http: httpx.Client) -> None:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            done = [
                pool.submit(run.step, "a", Action.UPSERT, {}, sync_sender(http, "/a")),
                pool.submit(run.step, "b", Action.CREATE, {}, sync_sender(http, "/b")),
            ]
        for future in done:
            future.result()
        run.finish()

    report = await drive(agent, plan=plan)
    assert report.effects == {"POST /a": 1, "POST /b": 1}


async def test_plain_functions_in_the_steps_of_an_asynchronous_agent() -> None:
    async def agent(run: Run, _http: Client, effects: Effects) -> None:
        with httpx.Client(transport=effects.transport, base_url="https://api.example") as client:
            await run.step("refund", Action.PAYMENT, {}, sync_sender(client, "/refunds"))
            await run.finish()

    report = await drive(agent, plan=PAYMENT, crashes=["before 1", "after 1", "answered 1", "lost 1"])
    assert report.effects == {"POST api.example/refunds": 1}


async def test_effects_that_are_not_http() -> None:
    async def charge(amount: int) -> dict[str, int]:
        return {"charged": amount}

    def post(text: str) -> None:
        assert text == "paid"

    async def agent(run: Run, _http: Client, effects: Effects) -> None:
        charged, posted = effects.wrap("charge", charge), effects.wrap("smtp", post)

        async def pay(payload: Any, step: Step) -> Any:
            async with step.sending():
                return await charged(payload)

        async def mail(payload: Any, step: Step) -> None:
            async with step.sending():
                await asyncio.to_thread(posted, payload)

        assert await run.step("refund", Action.PAYMENT, 5, pay) == {"charged": 5}
        await run.step("mail", Action.CREATE, "paid", mail)
        await run.finish()

    report = await drive(agent, plan=PAYMENT_AND_MAIL)
    assert report.effects == {"charge": 1, "smtp": 1}


async def test_what_the_step_made_of_the_answer_is_what_the_person_answers_with() -> None:
    async def agent(run: Run, http: Client) -> None:
        async def pay(payload: Any, step: Step) -> Any:
            async with step.sending():
                answer = await http.post("/refunds", json=payload, headers={"Idempotency-Key": step.key})
            return {"refund": answer.json()["id"]}

        refund = await run.step("refund", Action.PAYMENT, {}, pay)
        await run.finish(refund["refund"])

    assert not (await drive(agent, plan=PAYMENT)).failed


async def test_a_probe_settles_without_a_person() -> None:
    class Remembers:
        """Knows what it did, by key; each run has its own."""

        def __init__(self) -> None:
            self.done: dict[str, dict[str, str]] = {}

        def __call__(self, request: httpx.Request) -> httpx.Response:
            key = request.headers["Idempotency-Key"]
            if request.method == "GET":
                return httpx.Response(200, json={"found": self.done.get(key)})
            assert key not in self.done
            self.done[key] = {"id": f"re_{len(self.done)}"}
            return httpx.Response(201, json=self.done[key])

    async def agent(run: Run, http: Client) -> None:
        async def find(_payload: Any, step: Step) -> Any:
            found = (await http.get("/refunds", headers={"Idempotency-Key": step.key})).json()["found"]
            return stepfence.Happened(found) if found else stepfence.DidNotHappen()

        refund = await run.step("refund", Action.PAYMENT, {}, sender(http, "/refunds"), probe=find)
        await run.finish(refund["id"])

    plan = [{"id": "refund", "action": "Payment", "probe": {"giveUpAfterSeconds": 300}}]
    report = await drive(agent, plan=plan, provider=Remembers)
    assert [row.history.asked for row in report.rows] == [[]] * 6


async def test_a_hold_is_resumed_and_counted() -> None:
    asked = itertools.count()

    async def agent(run: Run, http: Client) -> None:
        await run.step("refund", Action.PAYMENT, {}, sender(http, "/refunds"))
        if next(asked) == 0:
            await run.halt("Unsure", "is this the right customer?")
        await run.finish()

    report = await drive(agent, plan=PAYMENT, crashes="none")
    assert (report.baseline.holds, report.baseline.asked) == (1, ["run: Resume"])


async def test_waiting_takes_no_time() -> None:
    async def agent(run: Run, http: Client) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        async with asyncio.timeout(7200):
            await asyncio.sleep(3600)  # noqa: TID251  (the point: it takes no time)
        assert 3600 <= loop.time() - before < 3700
        await run.step("refund", Action.PAYMENT, {}, sender(http, "/refunds"))
        await run.finish()

    assert not (await drive(agent, plan=PAYMENT, crashes=["before 1", "after 1"])).failed


async def test_a_provider_that_refuses_has_done_nothing() -> None:
    def provider(request: httpx.Request) -> httpx.Response:
        return httpx.Response(402 if request.url.path == "/refunds" else 200, json={})

    async def agent(run: Run, http: Client) -> None:
        async def pay(payload: Any, step: Step) -> Any:
            async with step.sending():
                answer = await http.post("/refunds", json=payload)
                stepfence.raise_for_status(answer)

        with pytest.raises(stepfence.StepFailed):
            await run.step("refund", Action.PAYMENT, {}, pay)
        await run.step("mail", Action.CREATE, {}, sender(http, "/mails"))
        await run.finish()

    report = await drive(agent, plan=PAYMENT_AND_MAIL, provider=provider, crashes=["before 1", "after 1", "answered 1", "lost 1"])
    assert report.effects == {"POST /mails": 1}


async def test_a_time_out_that_is_told_as_not_applied_is_a_doubt_where_the_client_is_seen() -> None:
    async def agent(run: Run, http: Client) -> None:
        async def pay(payload: Any, step: Step) -> Any:
            try:
                async with step.sending():
                    return (await http.post("/refunds", json=payload)).json()
            except httpx.TimeoutException as error:
                raise stepfence.NotApplied("timed out") from error

        await run.step("refund", Action.PAYMENT, {}, pay)
        await run.finish()

    report = await drive(agent, crashes="every", plan=[{"id": "refund", "action": "Payment", "attempts": 3, "backoffSeconds": 5}])
    (lost,) = [row.history for row in report.rows if str(row.history.point) == "lost 1"]
    assert len(lost.applied) == 1
