"""What was not seen is no evidence: requests in contexts, clients and moments that the block does not see."""

import asyncio
import concurrent.futures
import contextlib
import functools
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import requests
import urllib3

import stepfence
from stepfence import NotApplied, Step
from tests.sdk import clients, web
from tests.sdk.clients import URL, Provider
from tests.sdk.payments import FAILED, IN_DOUBT, in_doubt, played, told


@pytest.mark.parametrize("location", ["myapp://done", "http://.bad/"])
async def test_a_redirect_to_no_address_in_a_thread_that_was_not_handed_its_context(location: str) -> None:
    with web.provider(web.answers(303, applies=True, Location=location)) as provider:

        async def pay(_payload: Any, step: Step) -> Any:
            async with step.sending():
                post = functools.partial(requests.post, provider.url, timeout=5)
                await asyncio.get_running_loop().run_in_executor(None, post)

        await in_doubt(pay, provider)


class Elsewhere(httpx.AsyncBaseTransport):
    """A transport that nobody can see into."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.provider(request)


@pytest.mark.parametrize(
    "last", [clients.refused(), httpx.UnsupportedProtocol("gopher"), httpx.Response(404)], ids=lambda value: type(value).__name__
)
async def test_a_redirect_from_where_nobody_sees_to_where_one_does(last: Any) -> None:
    provider = Provider(httpx.Response(303, headers={"location": "http://receipts.test/1"}), last)

    async def pay(_payload: Any, step: Step) -> Any:
        mounts = {"http://provider.test": Elsewhere(provider)}
        async with step.sending(), provider.client(mounts=mounts, follow_redirects=True) as http:
            (await http.post(URL)).raise_for_status()

    await in_doubt(pay, provider)


@pytest.mark.parametrize("last", [clients.refused(), httpx.Response(404)], ids=lambda value: type(value).__name__)
async def test_a_look_up_that_fails_says_nothing_of_what_another_client_sent(last: Any) -> None:
    provider = Provider(httpx.Response(200), last)

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), provider.client(mounts={"http://provider.test": Elsewhere(provider)}) as http:
            await http.post(URL)
            stepfence.raise_for_status(await http.get("http://status.test/"))

    await in_doubt(pay, provider)


async def test_a_get_that_is_the_effect_and_was_lost_before_it_was_refused() -> None:
    provider = Provider(clients.slow(), httpx.Response(429))

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), provider.client() as http:
            with contextlib.suppress(httpx.TimeoutException):
                await http.get(URL)
            stepfence.raise_for_status(await http.get(URL))

    assert told(await played(pay)) == IN_DOUBT
    assert len(provider.log) == 2


class InParts:
    """A provider that applies what it has got of a body, and waits for more."""

    def __init__(self) -> None:
        self.arrived = threading.Event()

    def __call__(self, provider: web.Provider, connection: socket.socket, method: str) -> None:
        provider.applied.append(method)
        self.arrived.set()

    def wait(self) -> None:
        """Wait until it has begun."""
        assert self.arrived.wait(20)


@pytest.mark.parametrize("transport", [httpx.MockTransport, Elsewhere], ids=["seen", "not seen"])
async def test_a_body_whose_source_cannot_be_reached_was_sent_in_part(transport: Any) -> None:
    source, in_parts = Provider(clients.refused()), InParts()

    async def lines() -> AsyncIterator[bytes]:
        yield b"pay 1\n"
        await asyncio.to_thread(in_parts.wait)
        async with httpx.AsyncClient(transport=transport(source)) as http:
            yield (await http.get("http://orders.test/2")).content

    with web.provider(in_parts) as provider:

        async def pay(_payload: Any, step: Step) -> Any:
            async with step.sending(), httpx.AsyncClient() as http:
                await http.post(provider.url, content=lines())

        await in_doubt(pay, provider)


@pytest.mark.parametrize("thread", [False, True], ids=["seen", "not seen"])
@pytest.mark.parametrize("client", [httpx, requests, urllib3])
async def test_a_body_whose_source_cannot_be_reached_without_a_loop(client: Any, thread: bool) -> None:
    in_parts = InParts()
    nowhere: dict[str, Any] = {"httpx": httpx.get, "requests": requests.get, "urllib3": lambda url: urllib3.request("GET", url, retries=0)}

    def lines() -> Iterator[bytes]:
        yield b"pay 1\n"
        in_parts.wait()
        get = functools.partial(nowhere[client.__name__], "http://127.0.0.1:9/")
        if thread:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                yield pool.submit(get).result().content
        yield get().content

    def classifier(error: BaseException) -> NotApplied | None:
        return stepfence.classify_requests(requests.ConnectionError(error)) if isinstance(error, urllib3.exceptions.HTTPError) else None

    with web.provider(in_parts) as provider:

        def pay(_payload: Any, step: Step) -> Any:
            with step.sending():
                if client is httpx:
                    httpx.post(provider.url, content=lines())
                elif client is requests:
                    requests.post(provider.url, data=lines())
                else:
                    urllib3.request("POST", provider.url, body=lines(), retries=False)

        await in_doubt(pay, provider, sync=True, classifiers=[*stepfence.DEFAULT_CLASSIFIERS, classifier])


async def test_an_app_in_this_process_that_cannot_reach_the_next_one() -> None:
    applied = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        applied.append(scope["path"])
        async with Provider(clients.refused()).client() as http:
            await http.post("http://bank.test/transfers")

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
            await http.post(URL)

    assert told(await played(pay)) == IN_DOUBT
    assert applied == ["/refunds"]


async def test_a_client_that_is_seen_only_from_the_middle_of_the_block_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it is imported in the block, and another block begins meanwhile."""
    unwatched = urllib3.HTTPConnectionPool.urlopen
    while hasattr(unwatched, "__wrapped__"):
        unwatched = unwatched.__wrapped__

    with web.provider(web.applies_and_disappears) as provider:

        def pay(_payload: Any, step: Step) -> Any:
            with step.sending():
                monkeypatch.setattr(urllib3.HTTPConnectionPool, "urlopen", unwatched)
                with contextlib.suppress(requests.ConnectionError):
                    requests.post(provider.url, timeout=5)
                other = threading.Thread(target=enter, args=(step,))
                other.start()
                other.join()
                requests.post(provider.url, timeout=5)

        def enter(step: Step) -> None:
            with contextlib.suppress(requests.ConnectionError), step.sending():
                requests.post("http://127.0.0.1:9/", timeout=5)

        assert told(await played(pay, sync=True)) == IN_DOUBT
        assert provider.applied == ["POST"]


async def test_blocks_that_are_left_out_of_order_see_to_their_ends() -> None:
    provider = Provider(clients.refused(), clients.slow(), clients.refused())

    async def pay(_payload: Any, step: Step) -> Any:
        first, second = step.sending(), step.sending()
        http = provider.client()
        first.__enter__()
        try:
            with second:
                with contextlib.suppress(httpx.ConnectError):
                    await http.post(URL)
                first.__exit__(NotApplied, NotApplied("not this one"), None)
                with contextlib.suppress(httpx.TimeoutException):
                    await http.post(URL)
                await http.post(URL)
        finally:
            await http.aclose()

    await in_doubt(pay, provider, applied=3)


async def test_no_connection_for_a_look_up_in_the_block_and_for_the_request() -> None:
    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), Provider(httpx.Response(200), clients.refused()).client() as http:
            await http.get(URL)
            await http.post(URL)

    assert told(await played(pay)) == FAILED
