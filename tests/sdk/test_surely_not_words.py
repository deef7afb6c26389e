"""What a stop, a function without marks, and the program's own word say of a payment."""

import asyncio
import contextlib
import functools
import pickle
from typing import Any

import httpx
import pytest

import stepfence
from stepfence import Action, NotApplied, Step
from stepfence.testing import MemoryCluster
from tests.sdk import clients
from tests.sdk.clients import URL, Provider
from tests.sdk.payments import FAILED, IN_DOUBT, PLAN, QUIET, Perform, in_doubt, played, told


@pytest.mark.parametrize("stop", [stepfence.Halted, stepfence.Draining, stepfence.Cancelled, stepfence.RunFailed, SystemExit])
@pytest.mark.parametrize("sends", ["unmarked", "in the block", "after the block"])
async def test_a_stop_says_nothing_of_what_was_sent(stop: type[BaseException], sends: str) -> None:
    provider = Provider(httpx.Response(200))

    async def unmarked(_payload: Any, _step: Step) -> Any:
        async with provider.client() as http:
            await http.post(URL)
        raise stop("enough")

    async def marked(_payload: Any, step: Step) -> Any:
        async with provider.client() as http:
            async with step.sending():
                await http.post(URL)
                if sends == "in the block":
                    raise stop("enough")
            raise stop("enough")

    async with MemoryCluster() as cluster:
        run = await cluster.create("refund", plan=PLAN, input={})
        with pytest.raises(BaseException):  # noqa: B017, PT011  (which one is what the test varies)
            async with (await run.worker()).connect(QUIET) as connected:
                await connected.step("refund", Action.PAYMENT, {}, unmarked if sends == "unmarked" else marked)
        assert run.status["ledger"]["refund"]["state"] == "Unknown"
        assert len(provider.asked) == 1


async def test_a_halt_inside_perform_leaves_the_step_in_doubt() -> None:
    provider = Provider(httpx.Response(200))
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund", plan=PLAN, input={})
        with pytest.raises(stepfence.Halted):  # noqa: PT012  (leaving the block is part of the test)
            async with (await run.worker()).connect(QUIET) as connected:

                async def pay(_payload: Any, _step: Step) -> Any:
                    async with provider.client() as http:
                        await http.post(URL)
                    await connected.halt("Strange", "the amount is odd")

                await connected.step("refund", Action.PAYMENT, {}, pay)
        assert run.status["ledger"]["refund"]["state"] == "Unknown"
        assert len(provider.asked) == 1


async def test_a_stop_before_the_first_mark_has_sent_nothing() -> None:
    async def pay(payload: Any, step: Step) -> Any:
        if not payload:
            raise stepfence.Halted("look at this first")
        async with step.sending():
            return await clients.post(httpx.Response(200))

    run = await played(pay)
    assert run.status["ledger"]["refund"]["state"] == "Failed"
    assert run.status["ledger"]["refund"]["reason"] == "NotSent"


async def test_a_verdict_on_an_answer_is_not_believed_without_a_mark() -> None:
    provider = Provider(httpx.Response(200), httpx.Response(404))

    async def pay(_payload: Any, _step: Step) -> Any:
        async with provider.client() as http:
            await http.post(URL)
            stepfence.raise_for_status(await http.post(URL))

    run = await played(pay)
    assert told(run) == IN_DOUBT
    assert run.status["ledger"]["refund"]["message"] == "HTTP 404 (in doubt: its request was not marked by step.sending())"
    assert len(provider.asked) == 2


class Mailer:
    """Has an attribute of that name, which is no mark."""

    sending = True


async def test_an_attribute_of_another_object_marks_nothing() -> None:
    provider, mailer = Provider(httpx.Response(200)), Mailer()

    async def pay(_payload: Any, _step: Step) -> Any:
        async with provider.client() as http:
            await http.post(URL)
        if mailer.sending:
            raise KeyError("receipt")

    await in_doubt(pay, provider)


async def test_what_a_decorator_sends_is_not_covered_by_the_mark_of_what_it_wraps() -> None:
    provider = Provider(httpx.Response(200))

    def paying_first(perform: Perform) -> Perform:
        @functools.wraps(perform)
        async def wrapper(payload: Any, step: Step) -> Any:
            async with provider.client() as http:
                await http.post(URL)
            return await perform(payload, step)

        return wrapper

    @paying_first
    async def pay(payload: Any, step: Step) -> Any:
        order = payload["order"]
        async with step.sending():
            return order

    await in_doubt(pay, provider)


@pytest.mark.parametrize("where", ["in the block", "after the block"])
async def test_a_time_out_that_the_program_calls_not_applied(where: str) -> None:
    provider = Provider(clients.slow())

    async def pay(_payload: Any, step: Step) -> Any:
        try:
            async with step.sending(), provider.client() as http:
                try:
                    await http.post(URL)
                except httpx.TimeoutException as error:
                    if where == "in the block":
                        raise NotApplied("timed out") from error
                    raise
        except httpx.TimeoutException as error:
            raise NotApplied("timed out") from error

    await in_doubt(pay, provider)


async def test_a_lost_request_that_the_program_swallows() -> None:
    provider = Provider(clients.slow())

    async def pay(_payload: Any, step: Step) -> Any:
        answer = None
        async with step.sending(), provider.client() as http:
            with contextlib.suppress(httpx.TimeoutException):
                answer = await http.post(URL)
        if answer is None:
            raise NotApplied("no answer")

    await in_doubt(pay, provider)


async def test_the_programs_own_classifier_is_believed_about_the_error_that_it_is_shown() -> None:
    def mine(error: BaseException) -> NotApplied | None:
        return NotApplied("they say so") if isinstance(error, httpx.ReadTimeout) else None

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending():
            await clients.post(clients.slow())

    assert told(await played(pay, classifiers=[mine])) == FAILED


async def test_the_programs_own_classifier_is_not_believed_against_what_was_seen() -> None:
    provider = Provider(clients.slow(), httpx.RemoteProtocolError("busy"))

    def mine(error: BaseException) -> NotApplied | None:
        return NotApplied("they say so") if isinstance(error, httpx.RemoteProtocolError) else None

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), provider.client() as http:
            try:
                await http.post(URL)
            except httpx.ReadTimeout:
                await http.post(URL)

    await in_doubt(pay, provider, applied=2, classifiers=[mine])


async def test_a_group_of_one_word_is_that_word() -> None:
    provider = Provider(httpx.Response(402))

    async def pay(_payload: Any, step: Step) -> Any:
        async def post() -> None:
            async with step.sending(), provider.client() as http:
                stepfence.raise_for_status(await http.post(URL))

        async with asyncio.TaskGroup() as group:
            group.create_task(post())

    run = await played(pay)
    assert told(run) == FAILED
    assert run.status["ledger"]["refund"]["reason"] == "HTTP402"


def test_a_word_from_another_process_has_no_moment_here() -> None:
    word = NotApplied("declined", final=True, retry_after=5, reason="Declined")
    copied = pickle.loads(pickle.dumps(word))
    assert (str(copied), copied.final, copied.retry_after, copied.reason, copied.said_at) == ("declined", True, 5, "Declined", 0)
