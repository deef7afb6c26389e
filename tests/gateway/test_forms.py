"""Bodies of any form: what cannot be kept is refused by its field before anything begins, and no report of what happened is lost for it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.gateway.support import Gateway, Pod, code, gateway


def deep(levels: int) -> str:
    return '{"a":[' * (levels // 2) + "1" + "]}" * (levels // 2)


FORMS = {
    "65 levels": ("[" + deep(64) + "]").encode(),
    "200 levels": deep(200).encode(),
    "2,000 levels": deep(2_000).encode(),
    "100,000 levels": deep(100_000).encode(),
    "half of a character": b'{"name":"\\ud800"}',
    "bytes that are no UTF-8": b'{"name":"caf\xe9"}',
    "a number beyond all floats": b'{"amount":1e400}',
    "no number": b"[NaN]",
    "a number of 5,000 digits": b"[" + b"7" * 5_000 + b"]",
}
EACH = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


async def post(pod: Pod, path: str, field: str, text: bytes, **body: Any) -> httpx.Response:
    """Call a route with a field whose text is given."""
    rest = json.dumps({"requestID": "r-1", "token": pod.token, **body}).encode()
    headers = {"Authorization": f"Bearer {pod.bearer}", "Content-Type": "application/json"}
    return await pod.client.post(pod.base + path, content=rest[:-1] + f',"{field}":'.encode() + text + b"}", headers=headers)


async def begun(world: Gateway) -> Pod:
    pod = await world.claimed()
    assert (await pod.post("/steps/lookup/begin", payload=None)).json()["outcome"] == "Go"
    return pod


@EACH
async def test_a_payload_of_a_form_that_cannot_be_kept_is_refused_by_its_name_and_nothing_begins(form: bytes) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        refused = await post(pod, "/steps/lookup/begin", "payload", form)
        assert (refused.status_code, code(refused), refused.json()["field"]) == (400, "bad-request", "payload")
        assert pod.run.status.get("ledger", {}) == {}


@EACH
async def test_a_step_is_done_whatever_the_form_of_its_result_and_a_replay_tells_the_same(form: bytes) -> None:
    async with gateway() as world:
        pod = await begun(world)
        done = await post(pod, "/steps/lookup/complete", "result", form, attempt=1)
        assert (done.status_code, done.json()["outcome"]) == (200, "Done")
        again = await post(pod, "/steps/lookup/complete", "result", form, attempt=1)
        assert again.json() == done.json()
        replayed = (await pod.post("/steps/lookup/begin", payload=None)).json()
        assert (replayed["outcome"], replayed["result"]) == ("Done", done.json()["result"])
        assert (await pod.claim())["ledger"]["lookup"]["result"] == done.json()["result"]


async def test_no_report_takes_long_to_read_whatever_stands_in_it() -> None:
    async with gateway() as world:
        pod = await begun(world)
        async with asyncio.timeout(10):
            refused = await post(pod, "/steps/lookup/lose", "message", b"[" * 3_000 + b'"' + b'\\"' * 40_000, attempt=1, reason="R")
        assert (refused.status_code, refused.json()["field"]) == (400, "body")


@EACH
async def test_the_result_of_a_run_is_refused_by_its_name_and_the_run_goes_on(form: bytes) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        refused = await post(pod, "/finish", "result", form)
        assert (refused.status_code, code(refused), refused.json()["field"]) == (400, "bad-request", "result")
        assert (await pod.post("/finish", result=None)).json()["outcome"] == "Succeeded"


@EACH
async def test_what_is_said_of_an_attempt_is_heard_whatever_stands_beside_it(form: bytes) -> None:
    async with gateway() as world:
        pod = await begun(world)
        lost = await post(pod, "/steps/lookup/lose", "ofANewerVersion", form, attempt=1, reason="TimedOut")
        assert (lost.status_code, lost.json()["outcome"]) == (200, "Unknown")


async def test_sixty_four_levels_go_through() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        text = deep(64).encode()
        went = await post(pod, "/steps/lookup/begin", "payload", text)
        assert json.dumps(went.json()["payload"], separators=(",", ":")).encode() == text
        done = await post(pod, "/steps/lookup/complete", "result", text, attempt=1)
        assert done.json()["resultStored"] is True
        assert json.dumps((await pod.claim())["ledger"]["lookup"]["result"], separators=(",", ":")).encode() == text
