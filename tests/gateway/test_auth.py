"""Who may call: the pod that is a worker of the run, known before anything of its body is read."""

import asyncio
from collections.abc import AsyncIterator
from typing import Self

import httpx
import pytest

from stepfence.app import WorkerCalls
from stepfence.gateway.app import create_app
from stepfence.gateway.auth import POD_REQUESTS
from stepfence.ports import Caller, WorkerIdentity
from stepfence.testing.pods import MemoryGate
from tests.gateway.support import code, gateway


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer  ", "Basic YTpi", "Bearer unknown"])
async def test_a_call_without_a_good_token_is_a_401(header: str | None) -> None:
    async with gateway() as world:
        run = await world.run()
        path = f"/v1/namespaces/{run.key.namespace}/agentruns/{run.key.name}/claim"
        headers = {} if header is None else {"Authorization": header}
        refused = await world.client.post(path, json={"requestID": "a"}, headers=headers)
        assert (refused.status_code, code(refused)) == (401, "unauthenticated")
        assert refused.headers["www-authenticate"].startswith("Bearer")


async def test_a_foreign_run_and_one_that_is_not_there_are_told_alike() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await world.run("other")
        answers = []
        for namespace, name in [("support", "other"), ("support", "nowhere"), ("elsewhere", "refund")]:
            path = f"/v1/namespaces/{namespace}/agentruns/{name}/claim"
            answer = await world.client.post(path, json={"requestID": "a"}, headers={"Authorization": f"Bearer {pod.bearer}"})
            assert (answer.status_code, code(answer)) == (403, "forbidden")
            answers.append({key: value for key, value in answer.json().items() if key != "instance"})
        assert answers[0] == answers[1] == answers[2]
        assert "token" not in answers[0]
        assert "phase" not in answers[0]


async def test_a_pod_that_is_no_worker_is_a_403() -> None:
    class OfNobody(MemoryGate):
        async def worker_of(self, caller: Caller) -> WorkerIdentity | None:
            return None

    async with gateway() as world:
        pod = await world.claimed()
        cluster = world.cluster
        gate = OfNobody(world.clock, cluster.gate.pods)
        app = create_app(WorkerCalls(cluster.applier, cluster.records, gate), gate)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            pod.client = client
            assert code(await pod.post("/renew")) == "forbidden"


async def test_a_caller_is_known_before_its_body_is_read() -> None:
    class Never:
        def __aiter__(self) -> Self:
            return self

        async def __anext__(self) -> bytes:
            raise AssertionError("the body was read")

    async with gateway() as world:
        run = await world.run()
        path = f"/v1/namespaces/support/agentruns/{run.key.name}/steps/lookup/begin"
        headers = {"Authorization": "Bearer unknown", "Content-Type": "application/json"}
        refused = await world.client.post(path, content=Never(), headers=headers)
        assert code(refused) == "unauthenticated"


async def test_one_pod_takes_no_more_than_its_places_and_others_are_served() -> None:
    class Slow:
        """A body that comes when it is let."""

        def __init__(self) -> None:
            self.asked, self.let = asyncio.Event(), asyncio.Event()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            self.asked.set()
            await self.let.wait()
            yield b"{}"

    async with gateway() as world:
        greedy, other = await world.claimed(), await world.pod(await world.run("other"))
        headers = {"Authorization": f"Bearer {greedy.bearer}", "Content-Type": "application/json"}
        bodies = [Slow() for _ in range(POD_REQUESTS)]
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            for body in bodies:
                group.create_task(world.client.post(greedy.base + "/renew", content=body, headers=headers))
            for body in bodies:
                await body.asked.wait()
            refused = await greedy.post("/renew")
            assert (refused.status_code, code(refused), refused.headers["retry-after"]) == (429, "over-budget", "1")
            assert (await other.claim())["token"] == 1
            for body in bodies:
                body.let.set()
        assert (await greedy.post("/renew")).status_code == 200


async def test_a_pod_of_an_earlier_worker_may_not_claim() -> None:
    async with gateway() as world:
        first = await world.claimed()
        await first.post("/release", reason="Drained")
        world.cluster.gate.pods[first.bearer].terminated = True
        second = await world.pod(first.run)
        assert code(await first.post("/claim")) == "forbidden"
        assert (await second.claim())["token"] == 2


async def test_a_claim_waits_until_the_holder_is_over() -> None:
    async with gateway() as world:
        first = await world.claimed()
        twin = world.cluster.gate.pods[first.bearer]
        # Another pod in the same Job, as a queueing tool makes one when it suspends and resumes it.
        other = type(twin)("other-pod", "other-uid", twin.job, twin.key, twin.run_uid, twin.created_at)
        world.cluster.gate.pods["other-uid"] = other
        pod = type(first)(world.client, first.run, "other-uid")
        refused = await pod.post("/claim")
        assert (refused.status_code, code(refused), refused.json()["retryAfterSeconds"]) == (409, "holder-alive", 5)
        twin.terminated = True
        assert (await pod.claim())["token"] == 2


async def test_the_openapi_document_needs_no_token() -> None:
    async with gateway() as world:
        answer = await world.client.get("/openapi.json")
        assert answer.status_code == httpx.codes.OK
        assert answer.json()["info"]["title"] == "Stepfence worker API"
