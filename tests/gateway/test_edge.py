"""Ids, places, deadlines and figures of requests."""

import asyncio
from typing import Any

import httpx
import pytest
import structlog

from stepfence.app import WorkerCalls
from stepfence.gateway.app import GatewayApp, create_app
from stepfence.gateway.edge import Limits
from stepfence.ports import Caller
from tests.gateway.support import Gateway, Pod, code, gateway


class Held:
    """A gate that keeps its callers waiting until it is opened."""

    def __init__(self, gate: Any) -> None:
        self._gate, self.opened, self.entered = gate, asyncio.Event(), asyncio.Event()

    async def identify(self, bearer: str, address: str = "") -> Caller:
        self.entered.set()
        await self.opened.wait()
        caller: Caller = await self._gate.identify(bearer, address)
        return caller

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gate, name)


async def held(world: Gateway, limits: Limits) -> tuple[GatewayApp, Held, Pod]:
    gate = Held(world.cluster.gate)
    pod = await world.claimed()
    app = create_app(WorkerCalls(world.cluster.applier, world.cluster.records, gate), gate, limits=limits)
    pod.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")
    return app, gate, pod


def figures(app: GatewayApp) -> str:
    return app.state.metrics.text().decode()  # type: ignore[no-any-return]


async def test_calls_beyond_the_places_are_told_to_come_back_and_probes_are_answered() -> None:
    async with gateway() as world:
        _, gate, pod = await held(world, Limits(requests=1))
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            first = group.create_task(pod.post("/renew"))
            await gate.entered.wait()
            refused = await pod.post("/renew")
            assert (refused.status_code, code(refused), refused.headers["retry-after"]) == (429, "over-budget", "1")
            assert (await pod.client.get("/livez")).status_code == 200
            gate.opened.set()
        assert first.result().status_code == 200
        assert (await pod.post("/renew")).status_code == 200


async def test_a_request_past_its_deadline_is_a_503() -> None:
    async with gateway() as world:
        _, _, pod = await held(world, Limits(seconds=0.01))
        late = await pod.post("/renew")
        assert (late.status_code, code(late)) == (503, "store-unavailable")
        assert late.headers["stepfence-request-id"]


async def test_every_answer_carries_the_callers_request_id() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        assert (await pod.post("/renew", requestID="mine")).headers["stepfence-request-id"] == "mine"
        assert (await pod.post("/drain", requestID="mine-too", token=9)).headers["stepfence-request-id"] == "mine-too"
        by_header = await pod.client.get("/nothing", headers={"Stepfence-Request-Id": "by-header"})
        assert by_header.headers["stepfence-request-id"] == "by-header"
        for bad in ("", "no spaces", "x" * 65):
            answer = await pod.client.get("/livez", headers={"Stepfence-Request-Id": bad})
            assert len(answer.headers["stepfence-request-id"]) == 22
            assert answer.headers["stepfence-request-id"] != bad


async def test_requests_are_counted_by_route_never_by_path() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await pod.post("/steps/lookup/begin", payload=None)
        await pod.post("/steps/nowhere/begin", payload=None)
        await pod.client.get("/some/path")
        text = figures(world.cluster.app)
    route = "/v1/namespaces/{namespace}/agentruns/{name}/steps/{step}/begin"
    assert f'stepfence_gateway_request_seconds_count{{code="200",method="POST",route="{route}"}} 1.0' in text
    assert f'stepfence_gateway_request_seconds_count{{code="409",method="POST",route="{route}"}} 1.0' in text
    assert 'stepfence_gateway_request_seconds_count{code="404",method="GET",route="unmatched"} 1.0' in text
    assert "nowhere" not in text


async def test_a_line_in_the_log_names_run_step_and_token_and_no_payload() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
            await pod.post("/steps/refund/begin", requestID="r1", payload={"card": "s3cret"})
            await pod.post("/renew", requestID="r2")
    begun, renewed = [line for line in lines if line["event"] == "gateway.request"]
    assert (begun["run"], begun["step"], begun["token"], begun["request_id"]) == ("support/refund", "refund", 1, "r1")
    assert (renewed["step"], renewed["request_id"]) == (None, "r2")
    assert "s3cret" not in str(lines)


@pytest.mark.parametrize("released", [True, False])
async def test_claims_over_a_holder_that_never_released_are_counted(released: bool) -> None:
    async with gateway() as world:
        metrics = world.cluster.app.state.metrics
        world.cluster.applier._observer = metrics.observe
        first = await world.claimed()
        await first.post("/steps/lookup/begin", payload=None)
        if released:
            await first.post("/release", reason="Drained")
        twin = world.cluster.gate.pods[first.bearer]
        world.cluster.gate.pods["other-uid"] = type(twin)("other", "other-uid", twin.job, twin.key, twin.run_uid, twin.created_at)
        twin.terminated = True
        await type(first)(world.client, first.run, "other-uid").claim()
        text = metrics.text().decode()
    assert ('stepfence_claims_over_lost_holder_total{image="agent:1"} 1.0' in text) is not released
    assert 'stepfence_steps_unknown_total{action="Read",image="agent:1"} 1.0' in text


async def test_a_process_that_claims_again_in_its_pod_is_no_lost_holder() -> None:
    async with gateway() as world:
        metrics = world.cluster.app.state.metrics
        world.cluster.applier._observer = metrics.observe
        pod = await world.claimed()
        await pod.claim()
        assert "stepfence_claims_over_lost_holder_total{" not in metrics.text().decode()


def test_applications_share_nothing() -> None:
    first, second = (create_app(None, None) for _ in range(2))  # type: ignore[arg-type]
    assert first.state.metrics.registry is not second.state.metrics.registry
    assert first.openapi() == second.openapi()
