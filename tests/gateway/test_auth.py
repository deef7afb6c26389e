"""Who may call: the pod that is a worker of the run, known before anything of its body is read."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from stepfence.app import Applier, WorkerCalls
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Run
from stepfence.gateway.app import create_app
from stepfence.gateway.auth import POD_REQUESTS, RECOGNISED
from stepfence.ports import Caller, RunKey, Stored, WorkerIdentity
from stepfence.testing import FakeIds
from stepfence.testing.pods import MemoryGate
from tests.gateway.support import Gateway, Pod, code, gateway


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


class OfNobody(MemoryGate):
    """What a replica sees that meets a pod when its Job is gone: the token is good, and nothing says whose worker it is."""

    async def worker_of(self, caller: Caller) -> WorkerIdentity | None:
        return None

    async def renew(self, run: Run, caller: Caller) -> None:
        """Without a Job there is none whose Lease could be renewed."""
        raise Refused(Code.FORBIDDEN, "this pod is no worker")


@asynccontextmanager
async def without_jobs(world: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A replica of its own, which has seen nothing yet."""
    cluster = world.cluster
    gate = OfNobody(world.clock, cluster.gate.pods)
    applier = Applier(cluster.store, world.clock, FakeIds(), cluster.settings)
    app = create_app(WorkerCalls(applier, cluster.records, gate), gate)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        yield client


async def test_a_pod_that_is_no_worker_is_a_403_whether_the_run_is_there_or_not() -> None:
    async with gateway() as world, without_jobs(world) as replica:
        pod = await world.pod(await world.run())
        pod.client = replica
        assert code(await pod.post("/claim")) == "forbidden"
        assert code(await pod.post("/renew")) == "forbidden"
        world.cluster.store.delete(pod.run.key)
        assert code(await pod.post("/renew")) == "forbidden"


class Reads:
    """A store that counts what is read."""

    def __init__(self, store: Any) -> None:
        self._store, self.count = store, 0

    async def load(self, key: RunKey) -> Stored:
        self.count += 1
        stored: Stored = await self._store.load(key)
        return stored

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_pod_that_nobody_owns_costs_no_read_a_call_whatever_runs_it_names() -> None:
    async with gateway() as world, without_jobs(world) as replica:
        runs = [await world.run(f"run-{number}") for number in range(20)]
        stranger = await world.pod(runs[0])
        stranger.client = replica
        reads = Reads(world.cluster.store)
        deps = replica._transport.app.state.deps  # type: ignore[attr-defined]
        deps.calls._applier._store = reads
        answers: Counter[str] = Counter()
        for _ in range(50):
            for stranger.run in runs:
                answers[code(await stranger.post("/renew"))] += 1
        # It is refused at four; whether it is a worker of any other is not looked up for the moment, so that is no refusal.
        assert (reads.count, answers) == (4, {"forbidden": 50 * 4, "over-budget": 50 * 16})
        world.clock.advance(10)
        stranger.run = runs[19]
        assert code(await stranger.post("/renew")) == "forbidden"
        assert reads.count == 5


async def test_a_worker_whose_job_is_gone_is_heard_however_often_its_pod_named_the_wrong_run() -> None:
    async with gateway() as world, without_jobs(world) as replica:
        worker = await world.claimed()
        mine, others = worker.run, [await world.run(f"run-{number}") for number in range(3)]
        worker.client = replica
        for worker.run in others:
            assert code(await worker.post("/renew")) == "forbidden"
        worker.run = mine
        assert (await worker.post("/renew")).status_code == 200


async def test_the_truth_of_a_lost_worker_is_heard_by_any_replica_when_its_job_is_gone() -> None:
    async with gateway() as world, without_jobs(world) as replica:
        zombie = await world.claimed()
        await zombie.post("/steps/refund/begin", payload={"amount": 1})
        world.cluster.gate.pods[zombie.bearer].terminated = True
        await zombie.run.reconcile()
        assert (zombie.run.phase, zombie.run.status["fencingToken"]) == ("NeedsReconciliation", 2)
        zombie.client = replica
        heard = await zombie.post("/steps/refund/complete", attempt=1, result={"id": "re_1"})
        assert (heard.status_code, heard.json()["outcome"], heard.json()["result"]) == (200, "Done", {"id": "re_1"})
        # It has nothing more to say that counts.
        assert code(await zombie.post("/steps/lookup/begin", payload={})) == "forbidden"


async def test_a_holder_whose_job_was_deleted_goes_on_at_any_replica() -> None:
    async with gateway() as world, without_jobs(world) as replica:
        pod = await world.claimed()
        pod.client = replica
        world.clock.advance(10)
        renewed = await pod.post("/renew")
        assert (renewed.status_code, renewed.json()["stop"]) == (200, None), renewed.text
        assert pod.run.status["holder"]["renewedAt"] > pod.run.status["holder"]["claimedAt"]
        begun = await pod.post("/steps/refund/begin", payload={"amount": 1})
        assert begun.json()["outcome"] == "Go"
        assert (await pod.post("/steps/refund/complete", attempt=1, result=None)).json()["outcome"] == "Done"
        assert (await pod.post("/finish", result=None)).json() == {"outcome": "Succeeded"}


async def test_a_pod_that_is_no_worker_does_not_hear_that_a_store_went_back_in_time() -> None:
    async with gateway() as world, without_jobs(world) as replica:
        worker, stranger = await world.claimed(), await world.pod(await world.run("other"))
        stranger.client, stranger.run = replica, worker.run
        older = world.cluster.store.document(worker.run.key)
        await worker.post("/drain")
        assert code(await stranger.post("/renew")) == "forbidden"
        put_back(world, older)
        world.clock.advance(10)
        assert code(await stranger.post("/renew")) == "forbidden"
        assert worker.run.status["hold"]["reason"] == "LedgerBehind"


@pytest.mark.parametrize("result", ["re_1", "x" * 5000], ids=["small", "large"])
async def test_the_truth_is_heard_by_the_replica_that_sees_first_that_the_store_went_back_in_time(result: str) -> None:
    async with gateway() as world:
        worker = await world.claimed()
        await worker.post("/steps/refund/begin", payload={"amount": 1})
        older = world.cluster.store.document(worker.run.key)
        await worker.post("/drain")
        put_back(world, older)
        heard = await worker.post("/steps/refund/complete", attempt=1, result=result)
        assert (heard.status_code, heard.json().get("outcome")) == (200, "Done"), heard.text
        assert worker.run.status["hold"]["reason"] == "LedgerBehind"
        assert code(await worker.post("/steps/lookup/begin", payload={})) == "held"


def put_back(world: Gateway, older: dict[str, Any]) -> None:
    """Make the store what it was, as etcd is from a snapshot, under a revision that nobody has seen."""
    metadata = older["metadata"]
    restored = {**older, "metadata": {**metadata, "resourceVersion": "restored"}}
    world.cluster.store._objects[RunKey(metadata["namespace"], metadata["name"])] = restored


async def test_a_pod_of_a_run_that_was_made_again_says_nothing_of_the_new_one() -> None:
    async with gateway() as world, without_jobs(world) as replica:
        old = await world.claimed()
        old.client = replica
        assert (await old.post("/steps/refund/begin", payload={})).status_code == 200
        world.cluster.store.delete(old.run.key)
        new = await world.run()
        old.token = 9
        for path, body in (("/steps/refund/complete", {"attempt": 1, "result": None}), ("/steps/refund/begin", {"payload": {}})):
            assert code(await old.post(path, **body)) in ("forbidden", "not-found")
        assert new.status.get("hold") is None
        assert new.status.get("ledger", {}) == {}


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
            # A run of others is not looked at either: that may cost the store a read for each call.
            foreign = Pod(world.client, other.run, greedy.bearer)
            assert code(await foreign.post("/renew")) == "over-budget"
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


async def test_the_gate_is_told_which_address_a_token_came_from_and_believes_no_header() -> None:
    class Asked(MemoryGate):
        async def identify(self, bearer: str, address: str = "") -> Caller:
            addresses.append(address)
            return await super().identify(bearer, address)

    addresses: list[str] = []
    async with gateway() as world:
        run = await world.run()
        gate = Asked(world.clock, world.cluster.gate.pods)
        app = create_app(WorkerCalls(world.cluster.applier, world.cluster.records, gate), gate)
        transport = httpx.ASGITransport(app, client=("10.0.0.7", 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            headers = {"Authorization": "Bearer unknown", "X-Forwarded-For": "10.9.9.9", "Forwarded": "for=10.9.9.9"}
            path = f"/v1/namespaces/support/agentruns/{run.key.name}/claim"
            assert code(await client.post(path, json={}, headers=headers)) == "unauthenticated"
    assert addresses == ["10.0.0.7"]


async def test_a_connection_is_recognised_by_a_call_of_a_worker_about_its_run_and_by_no_other() -> None:
    recognised: list[str] = []
    async with gateway() as world:
        worker, other = await world.claimed(), await world.run("other")

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            await world.cluster.app({**scope, RECOGNISED: lambda: recognised.append(scope["path"])}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(watched), base_url="http://gateway") as client:
            for pod in (Pod(client, other, worker.bearer), Pod(client, worker.run, "unknown")):
                assert code(await pod.post("/renew")) in ("forbidden", "unauthenticated")
            assert (await client.get("/livez")).status_code == 200
            assert recognised == []
            worker.client = client
            assert (await worker.post("/renew")).status_code == 200
    assert recognised == [worker.base + "/renew"]
