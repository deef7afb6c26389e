"""An error or an answer speaks of one request: where there were several, it is no word on the payment. Real clients, real connections."""

from typing import Any

import httpx
import pytest
import requests
import requests.adapters
import tenacity
import urllib3.util

import stepfence
from stepfence import Action, NotApplied, Step
from stepfence.testing import MemoryCluster
from tests.sdk import clients, web
from tests.sdk.clients import URL, Provider
from tests.sdk.payments import FAILED, IN_DOUBT, PLAN, QUIET, in_doubt, played, told


def _redirect() -> httpx.Response:
    return httpx.Response(303, headers={"location": "/receipts/1"})


@pytest.mark.parametrize(
    "followed",
    [
        httpx.Response(404),
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("slow"),
        httpx.PoolTimeout("no place"),
        httpx.UnsupportedProtocol("gopher"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("how", ["raise_for_status", "stepfence", "after the block"])
async def test_what_follows_a_redirect_says_nothing_of_the_post(followed: httpx.Response | Exception, how: str) -> None:
    provider = Provider(_redirect(), followed)

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), provider.client(follow_redirects=True) as http:
            answer = await http.post(URL)
            if how == "raise_for_status":
                answer.raise_for_status()
            if how == "stepfence":
                stepfence.raise_for_status(answer)
        stepfence.raise_for_status(answer)

    await in_doubt(pay, provider)


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_that_keeps_the_method(status: int) -> None:
    provider = Provider(httpx.Response(status, headers={"location": "/v2/refunds"}), clients.refused())

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), provider.client(follow_redirects=True) as http:
            await http.post(URL)

    await in_doubt(pay, provider, applied=2)


@pytest.mark.parametrize("end", [web.answers(404), web.applies_and_hangs_up], ids=["404", "hangs up"])
async def test_requests_follows_redirects_by_default(end: web.Scene) -> None:
    with web.provider(web.answers(303, applies=True, Location="/receipts/1"), end) as provider:

        def pay(_payload: Any, step: Step) -> Any:
            with step.sending():
                requests.post(provider.url, timeout=5).raise_for_status()

        run = await played(pay, sync=True)
        assert told(run) == IN_DOUBT
        assert provider.applied.count("POST") == 1


async def test_a_redirect_of_requests_to_where_nothing_listens() -> None:
    with web.provider(web.answers(303, applies=True, Location="http://127.0.0.1:9/")) as provider:

        def pay(_payload: Any, step: Step) -> Any:
            with step.sending():
                requests.post(provider.url, timeout=5)

        await in_doubt(pay, provider)


@pytest.mark.parametrize("location", ["http://[bad/", "gopher://provider/"])
async def test_a_redirect_of_requests_to_what_is_no_address(location: str) -> None:
    with web.provider(web.answers(303, applies=True, Location=location)) as provider:

        def pay(_payload: Any, step: Step) -> Any:
            with step.sending():
                requests.post(provider.url, timeout=5)

        await in_doubt(pay, provider)


@pytest.mark.parametrize("last", [web.answers(402), web.answers(429)], ids=["402", "429"])
@pytest.mark.parametrize("first", [web.answers(503, applies=True), web.applies_and_hangs_up], ids=["503", "hangs up"])
@pytest.mark.parametrize("says", ["raise_for_status", "NotApplied"])
async def test_a_retry_of_urllib3_hides_the_first_answer(first: web.Scene, last: web.Scene, says: str) -> None:
    with web.provider(first, last) as provider:

        def pay(_payload: Any, step: Step) -> Any:
            retry = urllib3.util.Retry(3, allowed_methods=None, status_forcelist=[503], backoff_factor=0)
            with requests.Session() as http:
                http.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry))
                with step.sending():
                    answer = http.post(provider.url, timeout=5)
                    if says == "NotApplied" and answer.status_code in (402, 429):
                        raise NotApplied("declined")
                    answer.raise_for_status()

        await in_doubt(pay, provider)


async def test_a_retry_of_urllib3_that_ends_without_a_connection() -> None:
    with web.provider(web.applies_and_disappears) as provider:

        def pay(_payload: Any, step: Step) -> Any:
            retry = urllib3.util.Retry(2, allowed_methods=None, backoff_factor=0)
            with requests.Session() as http:
                http.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry))
                with step.sending():
                    http.post(provider.url, timeout=5)

        await in_doubt(pay, provider)


def _tries() -> Any:
    on = tenacity.retry_if_exception_type(httpx.HTTPError)
    return tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(3), reraise=True, retry=on)


@pytest.mark.parametrize("last", [clients.refused(), httpx.Response(402)], ids=["refused", "402"])
@pytest.mark.parametrize("around", ["the request", "the block"])
async def test_tenacity_inside_perform(last: Any, around: str) -> None:
    provider = Provider(clients.slow(), last)

    async def pay(_payload: Any, step: Step) -> Any:
        async with provider.client() as http:
            if around == "the request":
                async with step.sending():
                    async for attempt in _tries():
                        with attempt:
                            stepfence.raise_for_status(await http.post(URL))
            async for attempt in _tries():
                with attempt:
                    async with step.sending():
                        stepfence.raise_for_status(await http.post(URL))

    run = await played(pay)
    assert told(run) == IN_DOUBT


async def test_a_perform_that_tenacity_wraps() -> None:
    provider = Provider(clients.slow(), clients.refused())

    @tenacity.retry(stop=tenacity.stop_after_attempt(2), reraise=True)
    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), provider.client() as http:
            await http.post(URL)

    assert told(await played(pay)) == IN_DOUBT


@pytest.mark.parametrize("first", [clients.slow(), httpx.Response(503)], ids=["lost", "503"])
@pytest.mark.parametrize("word", ["status", "NotApplied"])
async def test_a_loop_around_the_client(first: Any, word: str) -> None:
    provider = Provider(first, httpx.Response(402))

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), provider.client() as http:
            for _ in range(3):
                try:
                    answer = await http.post(URL)
                except httpx.TransportError:
                    continue
                if word == "NotApplied" and answer.status_code == 402:
                    raise NotApplied("declined")
                if answer.status_code < 500:
                    stepfence.raise_for_status(answer)

    await in_doubt(pay, provider, applied=2)


async def test_a_transport_that_repeats() -> None:
    provider = Provider(clients.slow(), httpx.Response(429))

    class Repeating(httpx.AsyncBaseTransport):
        inner = httpx.MockTransport(provider)

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            try:
                return await self.inner.handle_async_request(request)
            except httpx.TransportError:
                return await self.inner.handle_async_request(request)

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), httpx.AsyncClient(transport=Repeating()) as http:
            (await http.post(URL)).raise_for_status()

    await in_doubt(pay, provider, applied=2)


async def test_a_transport_that_nobody_can_see_into() -> None:
    provider = Provider(httpx.Response(429))

    class Opaque(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return provider(request)

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), httpx.AsyncClient(transport=Opaque()) as http:
            (await http.post(URL)).raise_for_status()

    await in_doubt(pay, provider)


async def test_a_login_before_the_request() -> None:
    provider = Provider(httpx.Response(200, json={}), clients.refused())

    class Login(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            yield httpx.Request("POST", "http://login.test/token")
            yield request

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), httpx.AsyncClient(transport=httpx.MockTransport(provider), auth=Login()) as http:
            await http.post(URL)

    await in_doubt(pay, provider, applied=2)


async def test_a_client_that_retries_its_connection_has_sent_nothing() -> None:
    def pay(_payload: Any, step: Step) -> Any:
        with step.sending(), httpx.Client(transport=httpx.HTTPTransport(retries=2), trust_env=False) as http:
            http.post("http://127.0.0.1:9/")

    assert told(await played(pay, sync=True)) == FAILED


async def test_a_look_up_before_the_request_does_no_harm() -> None:
    provider = Provider(httpx.Response(200), httpx.Response(402))

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), provider.client() as http:
            await http.get(URL)
            stepfence.raise_for_status(await http.post(URL))

    assert told(await played(pay)) == FAILED


async def test_a_kept_connection_that_is_dropped_after_the_request_was_written() -> None:
    with web.provider(web.answers(200), web.applies_and_hangs_up) as provider:

        def pay(_payload: Any, step: Step) -> Any:
            with httpx.Client(trust_env=False) as http:
                http.get(provider.url)
                with step.sending():
                    http.post(provider.url)

        await in_doubt(pay, provider, sync=True)


async def test_http2_that_goes_away_having_seen_the_request() -> None:
    with web.goes_away(last_stream=1) as provider:

        def pay(_payload: Any, step: Step) -> Any:
            with step.sending(), httpx.Client(http1=False, http2=True, trust_env=False) as http:
                http.post(provider.url)

        await in_doubt(pay, provider, sync=True)


@pytest.mark.parametrize("where", ["in the block", "after the blocks"])
async def test_an_answer_to_the_second_of_two_payments_says_nothing_of_the_first(where: str) -> None:
    provider = Provider(httpx.Response(200), httpx.Response(404))

    async def pay(_payload: Any, step: Step) -> Any:
        async with provider.client() as http:
            async with step.sending():
                await http.post(URL)
            async with step.sending():
                answer = await http.post(URL)
                if where == "in the block":
                    stepfence.raise_for_status(answer)
            stepfence.raise_for_status(answer)

    await in_doubt(pay, provider, applied=2)


async def test_the_sdks_own_calls_are_no_requests_of_the_step() -> None:
    provider = Provider(httpx.Response(402))
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund", plan=PLAN, input={})
        with pytest.raises(stepfence.StepFailed):  # noqa: PT012  (leaving the block is part of the test)
            async with (await run.worker()).connect(QUIET) as connected:

                async def pay(_payload: Any, step: Step) -> Any:
                    async with step.sending(), provider.client() as http:
                        answer = await http.post(URL)
                        await connected.plan(PLAN)
                        stepfence.raise_for_status(answer)

                await connected.step("refund", Action.PAYMENT, {}, pay)
        assert told(run) == FAILED
