"""While a request is still on its way, or may be, nothing is told as "surely not applied"."""

import asyncio
import concurrent.futures
import multiprocessing
import threading
from typing import Any

import httpx
import pytest

from stepfence import NotApplied, Step
from tests.sdk import clients, web
from tests.sdk.clients import URL, Provider
from tests.sdk.payments import FAILED, IN_DOUBT, in_doubt, played, told


async def test_a_sibling_that_raises_while_a_request_is_on_its_way() -> None:
    provider, arrived, go_on = Provider(httpx.Response(200)), asyncio.Event(), asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        arrived.set()
        await go_on.wait()
        return provider(request)

    async def pay(_payload: Any, step: Step) -> Any:
        async def post() -> None:
            async with step.sending(), httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
                await http.post(URL)

        async def other() -> None:
            await arrived.wait()
            asyncio.get_running_loop().call_later(0.05, go_on.set)
            raise KeyError("customer")

        await asyncio.gather(post(), other())

    await in_doubt(pay, provider)


async def test_a_task_group_whose_sibling_raises_cancels_the_request_and_that_says_nothing() -> None:
    provider, arrived = Provider(httpx.Response(200)), asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        provider(request)
        arrived.set()
        await asyncio.Event().wait()
        raise AssertionError("it never answers")

    async def pay(_payload: Any, step: Step) -> Any:
        async def post() -> None:
            async with step.sending(), httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
                await http.post(URL)

        async def other() -> None:
            await arrived.wait()
            raise NotApplied("no such customer")

        async with asyncio.TaskGroup() as group:
            group.create_task(post())
            group.create_task(other())

    await in_doubt(pay, provider)


class InThread:
    """Sends from a thread, and answers only once it is released."""

    def __init__(self) -> None:
        self.arrived, self.release = threading.Event(), threading.Event()
        self.provider = Provider(self._answer)

    def _answer(self, _request: httpx.Request) -> httpx.Response:
        self.arrived.set()
        assert self.release.wait(20)
        return httpx.Response(200)

    @property
    def asked(self) -> list[str]:
        return self.provider.asked

    def post(self) -> Any:
        with self.provider.blocking() as http:
            return http.post(URL).status_code

    def release_soon(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.release.set)


async def test_a_thread_that_still_sends_when_the_deadline_passes() -> None:
    thread = InThread()

    async def pay(_payload: Any, step: Step) -> Any:
        def post() -> None:
            with step.sending():
                thread.post()

        thread.release_soon(0.5)
        await asyncio.to_thread(post)

    await in_doubt(pay, thread, limit=0.2)


@pytest.mark.parametrize("raises", [TimeoutError, NotApplied])
async def test_a_future_of_an_executor_that_is_given_up_on(raises: type[Exception]) -> None:
    thread = InThread()

    def pay(_payload: Any, step: Step) -> Any:
        def post() -> None:
            with step.sending():
                thread.post()

        pool = concurrent.futures.ThreadPoolExecutor(1)
        future = pool.submit(post)
        assert thread.arrived.wait(20)
        pool.shutdown(wait=False)
        try:
            future.result(timeout=0)
        except TimeoutError as error:
            threading.Timer(0.2, thread.release.set).start()
            raise raises("given up") from error

    await in_doubt(pay, thread)


async def test_a_thread_that_is_left_behind_is_waited_for_before_anything_is_told() -> None:
    thread, order = InThread(), list[str]()

    async def pay(_payload: Any, step: Step) -> Any:
        def post() -> None:
            with step.sending():
                thread.post()
            order.append("sent")

        task = asyncio.get_running_loop().run_in_executor(None, post)
        task.add_done_callback(lambda _: order.append("ended"))
        await asyncio.to_thread(thread.arrived.wait, 20)
        thread.release_soon(0.1)
        raise KeyError("customer")

    await in_doubt(pay, thread)
    assert order[0] == "sent"


async def test_a_request_that_was_started_in_a_block_and_goes_on_after_it() -> None:
    provider, arrived, go_on = Provider(httpx.Response(200)), asyncio.Event(), asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        arrived.set()
        await go_on.wait()
        return provider(request)

    async def pay(_payload: Any, step: Step) -> Any:
        http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        async with step.sending():
            task = asyncio.create_task(http.post(URL))
            await arrived.wait()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        task.add_done_callback(lambda _: None)
        raise NotApplied("gave up")

    await in_doubt(pay, provider)


async def test_a_word_that_was_said_while_another_request_was_open_does_not_cover_it() -> None:
    provider = Provider(httpx.Response(200))

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), provider.client() as http:
            word = NotApplied("declined")
            await http.post(URL)
        raise word

    await in_doubt(pay, provider)


async def test_a_word_that_was_made_before_the_attempt_is_taken_as_said_when_it_is_raised() -> None:
    provider, word = Provider(httpx.Response(402)), NotApplied("declined", final=True)

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), provider.client() as http:
            answer = await http.post(URL)
        assert answer.status_code == 402
        raise word

    assert told(await played(pay)) == FAILED


async def test_nothing_is_sent_once_the_end_of_the_attempt_is_told() -> None:
    provider, told_by_now = Provider(httpx.Response(200)), asyncio.Event()
    late: list[str] = []

    async def pay(_payload: Any, step: Step) -> Any:
        async def stray() -> None:
            await told_by_now.wait()
            try:
                async with step.sending(), provider.client() as http:
                    await http.post(URL)
            except RuntimeError as error:
                late.append(str(error))

        tasks.append(asyncio.create_task(stray()))
        async with step.sending():
            await clients.post(clients.refused())

    tasks: list[asyncio.Task[None]] = []
    run = await played(pay)
    told_by_now.set()
    await asyncio.gather(*tasks)
    assert told(run) == FAILED
    assert provider.asked == []
    assert late == [f"attempt {number} of step 'refund' is over, and how it ended is told: nothing more is sent" for number in (1, 2, 3)]


async def test_a_block_is_for_one_request() -> None:
    async def pay(_payload: Any, step: Step) -> Any:
        block = step.sending()
        async with block:
            pass
        async with block:
            pass

    assert told(await played(pay)) == IN_DOUBT


async def test_a_request_that_a_task_of_a_block_begins_after_it() -> None:
    provider, left = Provider(httpx.Response(200)), asyncio.Event()

    async def pay(_payload: Any, step: Step) -> Any:
        async def later() -> None:
            await left.wait()
            async with provider.client() as http:
                await http.post(URL)

        async with step.sending():
            task = asyncio.create_task(later())
        left.set()
        await task
        raise NotApplied("gave up")

    await in_doubt(pay, provider)


async def test_a_block_is_not_entered_in_a_forked_process() -> None:
    with web.provider(web.answers(200, applies=True)) as provider:

        def pay(_payload: Any, step: Step) -> Any:
            def post() -> None:
                with step.sending():
                    httpx.post(provider.url)

            child = multiprocessing.get_context("fork").Process(target=post)
            child.start()
            child.join()
            raise RuntimeError(f"exit code {child.exitcode}")

        assert told(await played(pay, sync=True)) == FAILED
        assert provider.applied == []


async def test_a_task_of_a_block_sends_nothing_once_the_attempt_is_told_as_failed() -> None:
    provider, told_by_now, tasks = Provider(httpx.Response(200)), asyncio.Event(), list[asyncio.Task[str]]()

    async def pay(_payload: Any, step: Step) -> Any:
        async def later() -> str:
            await told_by_now.wait()
            try:
                async with provider.client() as http:
                    await http.post(URL)
            except RuntimeError as error:
                return str(error)
            return "sent"

        async with step.sending():
            tasks.append(asyncio.create_task(later()))
            await clients.post(clients.refused())

    assert told(await played(pay)) == FAILED
    told_by_now.set()
    assert all("nothing more is sent" in said for said in await asyncio.gather(*tasks))
    assert provider.asked == []
