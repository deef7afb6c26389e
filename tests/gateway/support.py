"""A gateway in this process over the memory stores, called over HTTP as a worker of any language would."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from stepfence.core.errors import Unknown
from stepfence.ports import RunKey, Stored, Write
from stepfence.testing import FakeClock, FakeIds, MemoryCluster, MemoryRun

TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "agent:1"}]}}
PLAN = [{"id": "lookup", "action": "Read"}, {"id": "refund", "action": "Payment"}]


class Pod:
    """A worker pod that speaks plain HTTP."""

    def __init__(self, client: httpx.AsyncClient, run: MemoryRun, bearer: str) -> None:
        self.client, self.run, self.bearer = client, run, bearer
        self.token = 0
        self.proof: str | None = None
        self._ids = itertools.count(1)

    @property
    def base(self) -> str:
        return f"/v1/namespaces/{self.run.key.namespace}/agentruns/{self.run.key.name}"

    async def post(self, path: str, **body: Any) -> httpx.Response:
        """Call a route; `requestID`, `token` and `tokenProof` are filled in unless given."""
        proof = {} if self.proof is None else {"tokenProof": self.proof}
        whole = {"requestID": f"{self.bearer[:8]}-{next(self._ids)}", "token": self.token, **proof, **body}
        return await self.client.post(self.base + path, json=whole, headers={"Authorization": f"Bearer {self.bearer}"})

    async def claim(self) -> dict[str, Any]:
        """Take the run and keep its token with the proof of it."""
        answer = await self.post("/claim")
        assert answer.status_code == 200, answer.text
        claimed: dict[str, Any] = answer.json()
        self.token, self.proof = claimed["token"], claimed["tokenProof"]
        return claimed

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(self.base + path, headers={"Authorization": f"Bearer {self.bearer}"})


class Gateway:
    """A memory cluster with its gateway, and pods that call it."""

    def __init__(self, cluster: MemoryCluster, clock: FakeClock, client: httpx.AsyncClient) -> None:
        self.cluster, self.clock, self.client = cluster, clock, client

    async def run(self, name: str = "refund", **spec: Any) -> MemoryRun:
        return await self.cluster.create(name, **{"plan": PLAN, "namespace": "support", "template": TEMPLATE, **spec})

    async def pod(self, run: MemoryRun) -> Pod:
        """The pod of the run's next worker."""
        worker = await run.worker()
        return Pod(self.client, run, worker.pod.uid)

    async def claimed(self, **spec: Any) -> Pod:
        pod = await self.pod(await self.run(**spec))
        await pod.claim()
        return pod


@asynccontextmanager
async def gateway() -> AsyncIterator[Gateway]:
    clock = FakeClock()
    async with (
        MemoryCluster(clock=clock, ids=FakeIds()) as cluster,
        httpx.AsyncClient(transport=httpx.ASGITransport(cluster.app), base_url="http://gateway") as client,
    ):
        yield Gateway(cluster, clock, client)


class Away:
    """A store whose writes are lost while `away`: whether they took effect, nobody hears."""

    def __init__(self, store: Any) -> None:
        self._store, self.away = store, False

    async def load(self, key: RunKey) -> Stored:
        if self.away:
            raise Unknown("the store is away")
        stored: Stored = await self._store.load(key)
        return stored

    async def save(self, write: Write) -> Stored:
        if self.away:
            raise Unknown("the store is away")
        stored: Stored = await self._store.save(write)
        return stored


def code(answer: httpx.Response) -> str:
    """The stable part of a problem's type."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["instance"] == answer.request.url.path
    prefix, _, last = body["type"].rpartition("/")
    assert prefix == "https://stepfence.dev/problems"
    return str(last)
