"""Agents that are wrong in different ways are found out, each told what to change."""

import asyncio
import traceback
import uuid
from typing import Any

import httpx
import pytest

import stepfence
from stepfence import Action, Run, Step, SyncRun
from stepfence.testing import Effects, NotRestartSafe, drive
from tests.testing.agents import PAYMENT, PAYMENT_AND_MAIL, plain, refund_and_mail, sender

Client = httpx.AsyncClient


async def red(agent: Any, **how: Any) -> NotRestartSafe:
    """Drive an agent that must fail."""
    with pytest.raises(NotRestartSafe) as raised:
        await drive(agent, **how)
    return raised.value


def points(error: NotRestartSafe) -> set[str]:
    return {str(row.point) for row in error.report.failed}


async def test_an_agent_without_steps() -> None:
    error = await red(plain)
    assert points(error) == {"after 1", "answered 1", "lost 1", "before 2", "before 2 twice", "after 2", "answered 2", "lost 2"}
    assert "POST /refunds was made outside of run.step" in str(error)
    assert "POST /mails was made outside of run.step" in str(error)
    assert 'drive(agent, crashes=["after 1"])' in str(error)


async def test_one_point_can_be_run_alone() -> None:
    error = await red(plain, crashes=["after 2"])
    assert points(error) == {"after 2"}
    assert len(error.report.rows) == 2


async def test_an_effect_outside_of_a_step_of_an_agent_that_has_steps() -> None:
    async def agent(run: Run, http: Client) -> None:
        await http.post("/audit")
        await run.step("refund", Action.PAYMENT, {}, sender(http, "/refunds"))
        await run.finish()

    error = await red(agent, plan=PAYMENT, crashes=["after 1", "before 2"])
    assert "POST /audit was made outside of run.step" in str(error)
    assert "POST /refunds happened" not in str(error)


async def test_a_new_key_for_each_request_outside_of_a_step() -> None:
    async def agent(_run: Run, http: Client) -> None:
        await http.post("/refunds", headers={"Idempotency-Key": str(uuid.uuid4())})

    error = await red(agent, crashes=["answered 1"])
    assert "outside of run.step" in str(error)


async def test_an_effect_in_a_read_is_told_even_without_a_crash() -> None:
    async def agent(run: Run, http: Client) -> None:
        await run.step("look", Action.READ, {}, sender(http, "/search"))
        await run.finish()

    error = await red(agent, plan=[{"id": "look", "action": "Read"}])
    assert points(error) == {"None"}
    assert "POST /search was made in step 'look', which is a Read" in str(error)


async def test_a_request_that_the_step_repeats_by_itself() -> None:
    async def agent(run: Run, http: Client) -> None:
        async def insist(payload: Any, step: Step) -> Any:
            while True:
                try:
                    async with step.sending():
                        return (await http.post("/refunds", json=payload, headers={"Idempotency-Key": step.key})).json()
                except httpx.TransportError:
                    continue

        await run.step("refund", Action.PAYMENT, {}, insist)
        await run.finish()

    error = await red(agent, plan=PAYMENT)
    assert points(error) == {"lost 1"}
    assert "sent POST /refunds again by itself" in str(error)


async def test_a_time_out_that_is_told_as_not_applied() -> None:
    async def agent(run: Run, _http: Client, effects: Effects) -> None:
        async def charge() -> str:
            return "charged"

        async def pay(_payload: Any, step: Step) -> Any:
            try:
                return await effects.wrap("charge", charge)()
            except TimeoutError as error:
                raise stepfence.NotApplied("timed out") from error

        await run.step("refund", Action.PAYMENT, {}, pay)
        await run.finish()

    error = await red(agent, plan=[{"id": "refund", "action": "Payment", "attempts": 3, "backoffSeconds": 5}])
    assert points(error) == {"lost 1"}
    assert "told as failed although charge had been sent" in str(error)


async def test_a_step_id_that_is_new_in_each_worker() -> None:
    async def agent(run: Run, http: Client) -> None:
        name = f"refund-{uuid.uuid4().hex[:8]}"
        recorded = [step.id for step in run.planned.steps] if run.planned else []
        await run.plan([*({"id": known} for known in recorded), {"id": name}])
        await run.step(name, Action.CREATE, {}, sender(http, "/refunds"))
        await run.finish()

    error = await red(agent, crashes=["after 1"])
    assert "never random or from a clock" in str(error)
    assert "POST /refunds happened" in str(error)


async def test_an_upsert_with_a_new_key_for_each_request() -> None:
    async def agent(run: Run, http: Client) -> None:
        async def put(payload: Any, step: Step) -> Any:
            async with step.sending():
                await http.put("/orders/1", json=payload, headers={"Idempotency-Key": str(uuid.uuid4())})

        await run.step("status", Action.UPSERT, {}, put)
        await run.finish()

    error = await red(agent, plan=[{"id": "status", "action": "Upsert"}], crashes=["lost 1"])
    assert "send step.key" in str(error)


async def test_two_effects_in_one_step_lose_the_second() -> None:
    async def agent(run: Run, http: Client) -> None:
        async def both(payload: Any, step: Step) -> Any:
            async with step.sending():
                await http.post("/refunds", json=payload)
            async with step.sending():
                await http.post("/mails", json=payload)

        await run.step("refund", Action.PAYMENT, {}, both)
        await run.finish()

    error = await red(agent, plan=PAYMENT, crashes=["answered 1", "before 2"])
    assert "POST /mails happened never, without a crash once" in str(error)
    assert "Step 'refund' has several effects (POST /mails, POST /refunds): give each a step of its own." in str(error)
    assert "POST /refunds happened" not in str(error)


async def test_finish_forgotten() -> None:
    async def agent(run: Run, http: Client) -> None:
        await run.step("refund", Action.PAYMENT, {}, sender(http, "/refunds"))

    error = await red(agent, plan=PAYMENT)
    assert points(error) == {"None"}
    assert "returned without run.finish" in str(error)


async def test_an_agent_that_catches_everything_and_does_something_else() -> None:
    async def agent(run: Run, http: Client) -> None:
        try:
            await run.step("refund", Action.PAYMENT, {}, sender(http, "/refunds"))
        except BaseException:  # noqa: BLE001  (what is wrong with it)
            await http.post("/vouchers")
        await run.finish()

    error = await red(agent, plan=PAYMENT)
    assert points(error) == {"lost 1"}
    assert "POST /vouchers happened once, without a crash never" in str(error)


async def test_an_agent_that_swallows_a_stop() -> None:
    async def agent(run: Run, http: Client) -> None:
        try:
            await run.step("refund", Action.PAYMENT, {}, sender(http, "/refunds"))
            await run.finish()
        except BaseException:  # noqa: BLE001  (what is wrong with it)
            return

    error = await red(agent, plan=PAYMENT)
    assert points(error) == {"lost 1"}
    assert "the agent caught Halted and returned" in str(error)


async def test_an_agent_that_cannot_be_cancelled() -> None:
    async def agent(run: Run, http: Client) -> None:
        while True:
            try:
                await run.step("refund", Action.PAYMENT, {}, sender(http, "/refunds"))
                await run.finish()
                return
            except BaseException:  # noqa: BLE001  (what is wrong with it)
                continue

    error = await red(agent, plan=PAYMENT, crashes=["after 1"])
    assert "went on after it was cancelled" in str(error)


async def test_a_synchronous_agent_that_catches_everything_is_left_behind() -> None:
    def agent(_run: SyncRun, http: httpx.Client) -> None:
        while True:
            try:
                http.post("/refunds")
                return
            except BaseException:  # noqa: BLE001  (what is wrong with it)
                continue

    error = await red(agent, crashes=["after 1"])
    assert "went on after it was cancelled" in str(error)


async def test_an_agent_that_gives_up_after_a_crash() -> None:
    starts = []

    async def agent(run: Run, http: Client) -> None:
        starts.append(run)
        if len(starts) > 2:
            raise LookupError("where was I?")
        await refund_and_mail(run, http)

    error = await red(agent, input={"order": "1"}, plan=PAYMENT_AND_MAIL, crashes=["after 1"])
    assert "the agent raised LookupError: where was I?" in str(error)
    assert "POST /mails happened never" in str(error)


async def test_an_agent_that_fails_without_a_crash_shows_its_own_error() -> None:
    async def agent(_run: Run, _http: Client) -> None:
        raise LookupError("no such thing")

    error = await red(agent)
    assert "the agent is not right even without a crash" in str(error)
    assert isinstance(error.__cause__, LookupError)


async def test_an_agent_that_waits_for_what_never_comes() -> None:
    async def agent(_run: Run, http: Client) -> None:
        await http.post("/refunds")
        await asyncio.Event().wait()

    error = await red(agent)
    assert "the agent never came back" in str(error)


async def test_an_agent_that_halts_whenever_it_is_started() -> None:
    async def agent(run: Run, http: Client) -> None:
        await run.step("refund", Action.PAYMENT, {}, sender(http, "/refunds"))
        await run.halt("Unsure")

    error = await red(agent, plan=PAYMENT, workers=4)
    assert "was not over after 4 workers" in str(error)
    assert error.report.baseline.holds == 4


async def test_a_wrapped_function_outside_of_a_step() -> None:
    async def agent(_run: Run, _http: Client, effects: Effects) -> None:
        async def charge() -> None: ...

        await effects.wrap("charge", charge)()

    error = await red(agent, crashes=["after 1"])
    assert "charge was made outside of run.step" in str(error)


async def test_an_agent_whose_effects_nobody_sees_proves_nothing() -> None:
    async def agent(_run: Run, _http: Client) -> None: ...

    error = await red(agent)
    assert "no effect was seen" in str(error)


async def test_a_point_that_the_agent_does_not_have() -> None:
    error = await red(plain, crashes=["after 7"])
    assert "no effect 7" in str(error)


async def test_an_effect_that_the_next_worker_leaves_out() -> None:
    starts: list[Run] = []

    async def agent(run: Run, http: Client) -> None:
        starts.append(run)
        await run.step("refund", Action.PAYMENT, {}, sender(http, "/refunds"))
        if len(starts) < 3:
            await run.step("mail", Action.CREATE, {}, sender(http, "/mails"))
        await run.finish()

    error = await red(agent, plan=PAYMENT_AND_MAIL, crashes=["after 1"])
    assert "POST /mails happened never, without a crash once" in str(error)
    assert "what decides whether it is done must come out the same" in str(error)


async def test_of_many_effects_the_table_shows_those_that_differ() -> None:
    async def agent(_run: Run, http: Client) -> None:
        for number in range(7):
            await http.post(f"/parts/{number}")

    error = await red(agent, crashes=["after 1"])
    header = str(error.report).partition("\n")[0]
    assert header.split() == ["crash", "point", "at", "POST", "/parts/0", "workers", "asked"]


async def test_what_is_wrong_with_a_call_is_shown_where_the_agent_makes_it() -> None:
    async def agent(run: Run, http: Client) -> None:
        await run.step("refunds", Action.PAYMENT, {}, sender(http, "/refunds"))

    error = await red(agent, plan=PAYMENT)
    cause = error.__cause__
    assert isinstance(cause, stepfence.CallRefused)
    assert "unknown-step: step 'refunds' is not in the plan" in str(cause)
    assert [entry.filename for entry in traceback.extract_tb(cause.__traceback__)] == [__file__]
    assert (cause.__cause__, cause.__suppress_context__) == (None, True)


@pytest.mark.parametrize("sends", [False, True], ids=["in doubt", "surely failed"])
async def test_what_a_step_raised_is_told_with_its_cause_however_it_is_recorded(sends: bool) -> None:
    async def agent(run: Run, http: Client) -> None:
        async def refund(payload: Any, step: Step) -> None:
            try:
                order = payload["order"]
            except KeyError as error:
                raise ValueError("no order") from error
            async with step.sending():
                await http.post("/refunds", json=order)

        async def refund_without_sending(payload: Any, step: Step) -> None:
            async with step.sending():
                await refund(payload, step)

        await run.step("refund", Action.PAYMENT, {}, refund if sends else refund_without_sending)

    error = await red(agent, plan=PAYMENT)
    assert "step 'refund' raised ValueError: no order" in " ".join(str(error).split())
    told = "".join(traceback.format_exception(error))
    assert "KeyError: 'order'" in told
    assert (
        "driving.py"
        not in told.partition("The above exception was the direct cause of the following exception")[2].partition("The above")[0]
    )


async def test_why_a_run_failed_without_an_exception_is_told() -> None:
    async def agent(run: Run, _http: Client) -> None:
        await run.fail("NoMoney", "the account is empty")

    assert "the run ended Failed: NoMoney (the account is empty)" in str(await red(agent, plan=PAYMENT))


@pytest.mark.parametrize("plain_function", [False, True])
async def test_a_result_that_cannot_be_recorded_is_told_though_a_person_helps_the_run_on(plain_function: bool) -> None:
    async def refund(_payload: Any, step: Step) -> Any:
        async with step.sending():
            return await http_of["http"].post("/refunds", headers={"Idempotency-Key": step.key})

    def refund_in_thread(payload: Any, step: Step) -> Any:
        return refund(payload, step)

    async def agent(run: Run, http: Client) -> None:
        http_of["http"] = http
        await run.step("refund", Action.PAYMENT, {}, refund_in_thread if plain_function else refund)
        await run.finish()

    http_of: dict[str, Client] = {}
    error = await red(agent, plan=PAYMENT)
    told = " ".join(str(error).split())
    assert "a person had to say what was done: result of step 'refund': Unable to serialize unknown type: <class 'httpx.Response'>" in told
    assert "`answer.json()`" in told
    assert len(error.report.rows) == 1


async def test_what_an_attempt_raised_that_another_made_good_is_not_told() -> None:
    async def agent(run: Run, http: Client) -> None:
        async def refund(_payload: Any, step: Step) -> None:
            if step.attempt == 1:
                raise stepfence.NotApplied("not yet")
            async with step.sending():
                await http.post("/refunds")

        await run.step("refund", Action.PAYMENT, {}, refund)

    error = await red(agent, plan=[{"id": "refund", "action": "Payment", "attempts": 2}])
    assert "returned without run.finish" in str(error)
    assert error.__cause__ is None
