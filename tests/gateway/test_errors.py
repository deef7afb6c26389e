"""Every error is a problem with the field named, and tells nothing that its reader may not know."""

import json
from typing import Any

import httpx
import pytest

from stepfence.app import Applier, WorkerCalls
from stepfence.gateway.app import create_app
from stepfence.gateway.auth import BODY_BYTES
from stepfence.testing import FakeIds
from tests.gateway.support import Away, Gateway, Pod, code, gateway

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("/claim", {"requestID": "no spaces"}, "requestID"),
    ("/claim", {"requestID": "x" * 65}, "requestID"),
    ("/claim", {"requestID": 5}, "requestID"),
    ("/renew", {"token": "1"}, "token"),
    ("/renew", {"token": True}, "token"),
    ("/renew", {"token": None}, "token"),
    ("/plan", {}, "steps"),
    ("/plan", {"steps": []}, "steps"),
    ("/plan", {"steps": [{"id": "a"}, {"id": "Not-A-Label"}]}, "steps[1].id"),
    ("/plan", {"steps": [{"id": "a", "action": "Explode"}]}, "steps[0].action"),
    ("/plan", {"steps": [{"id": "a", "recovery": "Hope"}]}, "steps[0].recovery"),
    ("/plan", {"steps": [{"id": "a", "timeoutSeconds": 0}]}, "steps[0].timeoutSeconds"),
    ("/plan", {"steps": [{"id": "a", "idempotencyKeyTTLSeconds": 1.5}]}, "steps[0].idempotencyKeyTTLSeconds"),
    ("/plan", {"steps": [{"id": "a"}, {"id": "a"}]}, "steps[1].id"),
    ("/plan", {"steps": [{"id": f"s{n}"} for n in range(257)]}, "steps"),
    ("/plan", {"steps": [{"id": "a", "action": "Payment", "recovery": "Rerun"}]}, "steps[0].recovery"),
    ("/steps/lookup/begin", {}, "payload"),
    ("/steps/NoLabel/begin", {"payload": None}, "step"),
    ("/steps/lookup/complete", {"result": None}, "attempt"),
    ("/steps/lookup/complete", {"attempt": 0, "result": None}, "attempt"),
    ("/steps/lookup/complete", {"attempt": 1.5, "result": None}, "attempt"),
    ("/steps/lookup/fail", {"reason": "R"}, "attempt"),
    ("/steps/lookup/lose", {"attempt": "the first", "reason": "R"}, "attempt"),
    ("/steps/lookup/probe", {"attempt": True}, "attempt"),
    ("/steps/lookup/complete", {"attempt": 1, "token": "mine", "result": None}, "token"),
    ("/fail", {}, "reason"),
]


@pytest.mark.parametrize(("path", "body", "field"), BAD, ids=[f"{path} {field}" for path, _, field in BAD])
async def test_a_bad_body_is_a_400_that_names_the_field(path: str, body: dict[str, Any], field: str) -> None:
    async with gateway() as world:
        pod = await world.claimed(plan=None) if path == "/plan" else await world.claimed()
        refused = await pod.post(path, **body)
        assert (refused.status_code, code(refused)) == (400, "bad-request")
        assert refused.json()["field"] == field


async def test_a_problem_never_repeats_the_input() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        refused = await pod.post("/steps/lookup/complete", attempt="s3cret", result="s3cret")
        assert "s3cret" not in refused.text


async def raw(pod: Pod, content: bytes, **headers: str) -> httpx.Response:
    whole = {"Authorization": f"Bearer {pod.bearer}", "Content-Type": "application/json", **headers}
    return await pod.client.post(f"{pod.base}/steps/lookup/begin", content=content, headers=whole)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b'{"requestID": "a", "token": NaN}', b'{"a":' * 20_000],
    ids=["nothing", "half", "a list", "a text", "no UTF-8", "NaN", "too deep"],
)
async def test_what_is_no_json_object_is_a_400(content: bytes) -> None:
    async with gateway() as world:
        refused = await raw(await world.claimed(), content)
        assert (refused.status_code, code(refused)) == (400, "bad-request")


async def test_a_payload_that_json_cannot_carry_is_refused_by_name() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        refused = await raw(pod, b'{"requestID": "a", "token": 1, "payload": Infinity}')
        assert (code(refused), refused.json()["field"]) == ("bad-request", "payload")


async def test_a_payload_beyond_a_record_is_too_large_before_anything_is_intended() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        refused = await pod.post("/steps/lookup/begin", payload="x" * (256 * 1024))
        assert (refused.status_code, code(refused), refused.json()["field"]) == (413, "too-large", "payload")
        assert "ledger" not in pod.run.status


@pytest.mark.parametrize("said", [True, False], ids=["with its length", "in pieces"])
async def test_a_body_over_the_limit_is_a_413(said: bool) -> None:
    async def pieces() -> Any:
        for _ in range(BODY_BYTES // 65536 + 1):
            yield b"x" * 65536

    async with gateway() as world:
        pod = await world.claimed()
        headers = {"Authorization": f"Bearer {pod.bearer}", "Content-Type": "application/json"}
        content: Any = b"x" * (BODY_BYTES + 1) if said else pieces()
        refused = await pod.client.post(f"{pod.base}/renew", content=content, headers=headers)
        assert (refused.status_code, code(refused)) == (413, "too-large")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_another_media_type_is_a_415(kind: str) -> None:
    async with gateway() as world:
        refused = await raw(await world.claimed(), b"{}", **{"Content-Type": kind})
        assert (refused.status_code, code(refused), refused.json()["field"]) == (415, "unsupported-media-type", "Content-Type")


async def test_an_unknown_route_is_a_404_and_a_wrong_method_a_405() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        assert code(await pod.post("/nothing")) == "not-found"
        assert code(await pod.client.get("/")) == "not-found"
        wrong = await pod.get("/claim")
        assert (wrong.status_code, code(wrong), wrong.headers["allow"]) == (405, "method-not-allowed", "POST")


async def test_a_store_that_is_away_is_a_503_and_the_repeated_call_goes_through() -> None:
    async with gateway() as world:
        pod, away = await away_from(world)
        away.away = True
        lost = await pod.post("/steps/lookup/begin", requestID="same", payload=None)
        assert (lost.status_code, code(lost), lost.headers["retry-after"]) == (503, "store-unavailable", "1")
        assert "away" not in lost.json()["detail"]
        away.away = False
        assert (await pod.post("/steps/lookup/begin", requestID="same", payload=None)).json()["outcome"] == "Go"


async def away_from(world: Gateway) -> tuple[Pod, Away]:
    """A claimed pod whose gateway may lose its store."""
    pod = await world.claimed()
    away = Away(world.cluster.store)
    calls = WorkerCalls(Applier(away, world.clock, FakeIds(), world.cluster.settings), world.cluster.records, world.cluster.gate)
    pod.client = httpx.AsyncClient(transport=httpx.ASGITransport(create_app(calls, world.cluster.gate)), base_url="http://gateway")
    return pod, away


async def test_a_run_that_is_gone_is_a_404() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        world.cluster.store.delete(pod.run.key)
        for path, body in [("/claim", {}), ("/steps/lookup/begin", {"payload": None}), ("/renew", {})]:
            assert code(await pod.post(path, **body)) == "not-found"


async def test_an_error_that_nobody_expected_is_a_500_problem_with_an_id() -> None:
    class Broken:
        async def identify(self, bearer: str, address: str = "") -> Any:
            raise ZeroDivisionError("internals")

    async with gateway() as world:
        pod = await world.claimed()
        app = create_app(WorkerCalls(world.cluster.applier, world.cluster.records, world.cluster.gate), Broken())  # type: ignore[arg-type]
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            pod.client = client
            failed = await pod.post("/renew")
        assert (failed.status_code, code(failed)) == (500, "internal")
        assert "internals" not in failed.text
        assert failed.headers["stepfence-request-id"]


async def test_absent_facts_are_left_out_of_a_problem() -> None:
    async with gateway() as world:
        answer = await world.client.get("/nothing")
        assert set(json.loads(answer.text)) == {"type", "title", "status", "detail", "instance"}
