"""What surely did not happen still fails the step without a person: being careful must not make people tired of questions."""

import asyncio
from typing import Any

import httpx
import pytest
import requests
import requests.adapters

import stepfence
from stepfence import Action, Step
from stepfence.sdk.classify import NOT_APPLIED_STATUS
from stepfence.testing import MemoryCluster
from tests.sdk import clients, web
from tests.sdk.clients import URL, Provider
from tests.sdk.payments import FAILED, QUIET, in_doubt, played, told


@pytest.mark.parametrize("status", sorted(NOT_APPLIED_STATUS))
@pytest.mark.parametrize("where", ["in the block", "after the block"])
async def test_an_answer_that_applied_nothing_fails_the_step_without_a_person(status: int, where: str) -> None:
    provider = Provider(httpx.Response(status))

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), provider.client() as http:
            answer = await http.post(URL)
            if where == "in the block":
                stepfence.raise_for_status(answer)
        stepfence.raise_for_status(answer)

    assert told(await played(pay)) == FAILED
    assert len(provider.asked) == 3


@pytest.mark.parametrize("status", [406, 408, 409, 413, 416, 424, 425, 418, 500, 502, 503, 504])
async def test_any_other_answer_is_a_doubt(status: int) -> None:
    provider = Provider(httpx.Response(status))

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), provider.client() as http:
            stepfence.raise_for_status(await http.post(URL))

    await in_doubt(pay, provider)


@pytest.mark.parametrize("error", [httpx.ConnectError(""), httpx.ConnectTimeout(""), httpx.PoolTimeout(""), httpx.UnsupportedProtocol("")])
@pytest.mark.parametrize("thread", [False, True])
async def test_no_connection_fails_the_step_without_a_person(error: Exception, thread: bool) -> None:
    async def pay(_payload: Any, step: Step) -> Any:
        if thread:
            await asyncio.to_thread(_post_in_thread, step)
        async with step.sending():
            await clients.post(error)

    def _post_in_thread(step: Step) -> None:
        with step.sending():
            clients.post_blocking(error)

    assert told(await played(pay)) == FAILED


async def test_an_address_without_a_scheme_fails_the_step_without_a_person() -> None:
    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), httpx.AsyncClient() as http:
            await http.post("provider.test/refunds")

    assert told(await played(pay)) == FAILED


async def test_an_address_that_is_none_fails_the_step_without_a_person_before_the_block() -> None:
    async def pay(_payload: Any, step: Step) -> Any:
        async with httpx.AsyncClient() as http:
            request = http.build_request("POST", "http://[bad")
            async with step.sending():
                await http.send(request)

    assert told(await played(pay)) == FAILED


async def test_requests_without_a_connection_fails_the_step_without_a_person() -> None:
    def pay(_payload: Any, step: Step) -> Any:
        with step.sending():
            requests.post("http://127.0.0.1:9/", timeout=5)

    assert told(await played(pay, sync=True)) == FAILED


@pytest.mark.parametrize("status", [402, 429])
async def test_requests_with_an_answer_that_applied_nothing(status: int) -> None:
    with web.provider(web.answers(status)) as provider:

        def pay(_payload: Any, step: Step) -> Any:
            with step.sending():
                stepfence.raise_for_status(requests.post(provider.url, timeout=5))

        assert told(await played(pay, sync=True)) == FAILED


async def test_a_read_may_fail_by_an_answer_without_a_mark() -> None:
    async def look(_payload: Any, _step: Step) -> Any:
        stepfence.raise_for_status(await clients.post(httpx.Response(404)))

    async with MemoryCluster() as cluster:
        run = await cluster.create("look", plan=[{"id": "look", "action": "Read"}], input={})
        with pytest.raises(stepfence.StepFailed, match="HTTP404"):
            async with (await run.worker()).connect(QUIET) as connected:
                await connected.step("look", Action.READ, {}, look)


async def test_an_error_that_what_plays_the_provider_gave_a_request_of_its_own_fails_the_step_without_a_person() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=httpx.Request(request.method, request.url))

    async def pay(_payload: Any, step: Step) -> Any:
        async with step.sending(), httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            await http.post(URL)

    assert told(await played(pay)) == FAILED
