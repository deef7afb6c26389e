"""The gateway over a real API server, its callers taken at their word: token reviews are cached and cost a step nothing."""

from __future__ import annotations

import asyncio
import sys

import uvicorn

from bench.latency import key_of, started
from stepfence.app import Applier, WorkerCalls
from stepfence.app.system import SystemClock, SystemIds
from stepfence.core.fencing import HolderFact
from stepfence.core.model import Run
from stepfence.core.words import Settings
from stepfence.gateway.app import create_app
from stepfence.ports import Caller, WorkerIdentity
from stepfence.stores.kube import KubeRunStore
from stepfence.stores.kube_client import connect
from stepfence.stores.memory import MemoryRecordStore


class TrustingGate:
    """The bearer is the run's name; its pod is the one of the run's worker."""

    def __init__(self, applier: Applier) -> None:
        self._applier = applier

    async def identify(self, bearer: str, address: str = "") -> Caller:
        return Caller("default", bearer, f"pod-of-{bearer}")

    async def worker_of(self, caller: Caller) -> WorkerIdentity | None:
        stored = (await self._applier.apply(key_of(caller.pod), started)).stored
        return WorkerIdentity(caller.pod, stored.run.uid, f"{caller.pod}-job")

    async def holder(self, run: Run) -> HolderFact:
        return HolderFact.ALIVE if run.holder else HolderFact.OVER

    async def renew(self, run: Run, caller: Caller) -> None:
        return None


class CachedGate(TrustingGate):
    """As the real one, it asks once for each pod."""

    def __init__(self, applier: Applier) -> None:
        super().__init__(applier)
        self._known: dict[str, WorkerIdentity | None] = {}

    async def worker_of(self, caller: Caller) -> WorkerIdentity | None:
        if caller.pod_uid not in self._known:
            self._known[caller.pod_uid] = await super().worker_of(caller)
        return self._known[caller.pod_uid]


async def _serve(port: int) -> None:
    client = await connect("stepfence-bench")
    settings = Settings()
    applier = Applier(KubeRunStore(client, settings), SystemClock(), SystemIds(), settings)
    gate = CachedGate(applier)
    app = create_app(WorkerCalls(applier, MemoryRecordStore(), gate), gate)
    await uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, access_log=False)).serve()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
