"""Odd exceptions, odd classifiers and odd moments end a block, and nothing is lost or taken for sure by them."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from stepfence import NotApplied, Step
from stepfence.sdk.sending import Sending
from tests.sdk import clients
from tests.sdk.clients import URL, Provider
from tests.sdk.payments import FAILED, IN_DOUBT, in_doubt, played, told


class Declined(NotApplied):
    """A word of the program that does not call what it is made from."""

    def __init__(self, code: str) -> None:
        self.code = code


class Odd(Exception):
    """Compares, counts and speaks as no exception does."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("cannot be compared")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        raise RuntimeError("cannot be told")


async def test_a_word_that_does_not_call_its_base_is_a_word() -> None:
    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending():
            await clients.post(httpx.Response(200))
        raise Declined("insufficient_funds")

    assert told(await played(pay)) == FAILED


async def test_a_word_that_was_said_by_a_class_of_its_own_while_a_request_is_open() -> None:
    provider, arrived, go_on = Provider(httpx.Response(200)), asyncio.Event(), asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        arrived.set()
        await go_on.wait()
        return provider(request)

    async def pay(_payload: Any, step: Step) -> Any:
        async def post() -> None:
            async with step.sending(), httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
                await http.post(URL)

        task = asyncio.create_task(post())
        await arrived.wait()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        task.add_done_callback(lambda _done: None)
        raise Declined("no such customer")

    await in_doubt(pay, provider)


@pytest.mark.parametrize("cause", [True, False])
async def test_an_error_that_is_its_own_cause(cause: bool) -> None:
    async def refused(_payload: Any, step: Step) -> Any:
        try:
            async with step.sending():
                await clients.post(clients.refused())
        except httpx.ConnectError:
            first, second = KeyError("first"), KeyError("second")
            if cause:
                raise first from first
            first.__context__, second.__context__ = second, first
            raise first from None

    assert told(await asyncio.wait_for(played(refused), 20)) == FAILED


@pytest.mark.parametrize("where", ["in the block", "before the block", "after the block"])
async def test_an_exception_that_behaves_as_none_does(where: str) -> None:
    async def pay(_payload: Any, step: Step) -> Any:
        if where == "before the block":
            raise Odd
        async with step.sending():
            if where == "in the block":
                raise Odd
        raise Odd

    assert told(await played(pay, classifiers=[lambda _error: None])) == (FAILED if where == "before the block" else IN_DOUBT)


@pytest.mark.parametrize("answer", ["raises", "no word"])
async def test_a_classifier_that_is_wrong_ends_the_block_in_doubt_and_says_so(answer: str) -> None:
    provider = Provider(clients.slow())

    def mine(error: BaseException) -> Any:
        if answer == "raises":
            raise AttributeError("response")
        return True

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), provider.client() as http:
            await http.post(URL)

    run = await asyncio.wait_for(played(pay, classifiers=[mine]), 20)
    assert told(run) == IN_DOUBT
    assert len(provider.asked) == 1
    assert run.status["ledger"]["refund"]["reason"] in ("AttributeError", "TypeError")


async def test_a_wrong_classifier_before_the_programs_word() -> None:
    provider = Provider(clients.slow())

    def mine(error: BaseException) -> Any:
        raise AttributeError("response")

    async def pay(_payload: Any, step: Step) -> Any:
        try:
            async with step.sending(), provider.client() as http:
                await http.post(URL)
        except AttributeError as error:
            raise NotApplied("broken") from error

    await in_doubt(pay, provider, classifiers=[mine])


async def test_a_generator_that_is_closed_in_another_task_ends_its_block_in_doubt() -> None:
    provider = Provider(httpx.Response(200))

    async def pay(_payload: Any, step: Step) -> Any:
        async def posting() -> AsyncIterator[int]:
            async with step.sending(), provider.client() as http:
                yield (await http.post(URL)).status_code

        generator = posting()
        assert await asyncio.create_task(anext(generator)) == 200  # type: ignore[arg-type]
        await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]
        raise NotApplied("declined")

    await in_doubt(pay, provider)


async def test_a_block_that_the_garbage_collector_leaves_while_another_one_is_entered() -> None:
    async def pay(_payload: Any, step: Step) -> Any:
        def waiting() -> Any:
            with step.sending():
                yield

        generator: Any = waiting()
        next(generator)
        with step._sends.lock:
            del generator
            gc.collect()
        raise KeyError("customer")

    assert told(await asyncio.wait_for(played(pay), 20)) == IN_DOUBT


async def test_a_task_that_outlives_the_attempt_piles_nothing_up() -> None:
    blocks: list[Sending] = []
    provider, told_of = Provider(httpx.Response(200)), asyncio.Event()
    tasks = []

    async def pay(_payload: Any, step: Step) -> Any:
        async def reports() -> int:
            await told_of.wait()
            async with provider.client() as http:
                for _ in range(5):
                    await http.post(URL)
            return len(blocks[0]._exchanges.seen)

        blocks.append(step.sending())
        async with blocks[0]:
            tasks.append(asyncio.create_task(reports()))
        return "done"

    await played(pay)
    told_of.set()
    assert await tasks[0] == 0
