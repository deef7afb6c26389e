"""Run a gateway: `stepfence gateway`, or `python -m stepfence.gateway`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

import structlog
import uvicorn
from kubernetes.aio.config import ConfigException

from stepfence.app import Applier, TokenProofs, WorkerCalls, logs
from stepfence.app.budget import BudgetedRecordStore, ByteBudget
from stepfence.app.system import SystemClock, SystemIds
from stepfence.gateway.app import GatewayApp, create_app
from stepfence.gateway.door import Door, DoorLimits
from stepfence.gateway.edge import Limits
from stepfence.gateway.files import places_for
from stepfence.gateway.health import Readiness, create_health_app
from stepfence.gateway.metrics import Metrics
from stepfence.gateway.peers import follow_share
from stepfence.gateway.proof_keys import follow_keys
from stepfence.gateway.serving import serve
from stepfence.gateway.settings import BadSetting, GatewaySettings
from stepfence.gateway.tls import Certificate
from stepfence.schema import GROUP, PLURAL, VERSION
from stepfence.stores.kube import KubeRunStore
from stepfence.stores.kube_client import KubeClient, connect, kube_path, refusal
from stepfence.stores.kube_gate import KubeWorkerGate
from stepfence.stores.kube_peers import ready_endpoints
from stepfence.stores.kube_records import KubeRecordStore
from stepfence.stores.reviews import ReviewLimits, Reviews

__all__ = ["main", "run"]

log = structlog.get_logger(__name__)

FIELD_MANAGER = "stepfence-gateway"
# A name that no run has, so that the answer is short and still comes from the store itself.
_PROBE = kube_path(f"{GROUP}/{VERSION}", PLURAL, "default", "stepfence-readyz")


def main() -> int:
    """Run until SIGTERM; return the exit code."""
    try:
        settings = GatewaySettings.load(os.environ)
    except BadSetting as error:
        print(f"stepfence gateway: {error}", file=sys.stderr)  # noqa: T201  (before logs are set up)
        return 2
    logs.configure(settings.log_level)
    with asyncio.Runner(loop_factory=uvicorn.Config(app="").get_loop_factory()) as runner:
        return runner.run(_main(settings))


async def _main(settings: GatewaySettings) -> int:
    try:
        client = await connect(FIELD_MANAGER, seconds=settings.store_seconds)
    except ConfigException as error:
        log.error("gateway.no_cluster", error=str(error))  # noqa: TRY400  (the text says it all)
        return 2
    try:
        await run(settings, client, asyncio.Event())
    except OSError as error:
        log.error("gateway.port_taken", error=str(error))  # noqa: TRY400  (the text says it all)
        return 1
    finally:
        await client.close()
    return 0


async def run(settings: GatewaySettings, client: KubeClient, stop: asyncio.Event) -> None:
    """Serve one gateway over one API server until `stop` is set or SIGTERM comes."""
    clock, metrics = SystemClock(), Metrics()
    budget = ByteBudget(clock, settings.bytes_per_second, meter=metrics)
    metrics.budget_waiting.set_function(lambda: budget.waiting)
    readiness = Readiness(clock, _asker(client))
    proofs = TokenProofs()
    api = _api(settings, client, clock, metrics, budget, readiness, proofs)
    share = asyncio.create_task(follow_share(budget, metrics, _counter(settings, client)), name="byte budget share")
    keys = asyncio.create_task(follow_keys(settings.tls_dir, proofs), name="keys of token proofs")
    door = Door(Certificate(settings.tls_dir), _door_limits(settings), metrics)
    try:
        await serve(settings, api, create_health_app(readiness, metrics), readiness, door, stop)
    finally:
        share.cancel()
        keys.cancel()


def _api(
    settings: GatewaySettings,
    client: KubeClient,
    clock: SystemClock,
    metrics: Metrics,
    budget: ByteBudget,
    readiness: Readiness,
    proofs: TokenProofs,
) -> GatewayApp:
    core = settings.core
    reviewed = ReviewLimits(settings.token_reviews_per_second, settings.token_reviews_per_address)
    store, gate = KubeRunStore(client, core), KubeWorkerGate(client, clock, core, reviewed)
    applier = Applier(store, clock, SystemIds(), core, budget=budget, observer=metrics.observe)
    metrics.count("stepfence_conflicts", "Writes that met a version newer than the one that was read.", lambda: applier.conflicts)
    _count_reviews(metrics, gate.reviews)
    calls = WorkerCalls(applier, BudgetedRecordStore(KubeRecordStore(client, clock.now), budget), gate, proofs)
    limits = Limits(settings.max_requests, settings.request_seconds)
    return create_app(calls, gate, readiness=readiness, metrics=metrics, limits=limits)


def _door_limits(settings: GatewaySettings) -> DoorLimits:
    return DoorLimits(
        places_for(settings.max_connections),
        settings.max_connections_per_address,
        settings.new_connections_per_address,
        settings.handshake_seconds,
        settings.head_seconds,
    )


def _count_reviews(metrics: Metrics, reviews: Reviews) -> None:
    asked = "Tokens that the API server was asked about."
    metrics.count("stepfence_token_reviews", asked, lambda: reviews.asked)
    remembered = "Calls with a token that was found wrong a moment before: refused without asking."
    metrics.count("stepfence_token_reviews_remembered", remembered, lambda: reviews.remembered)
    limited = "Calls with an unknown token that were sent away, because too many wrong ones came."
    metrics.count("stepfence_token_reviews_limited", limited, lambda: reviews.limited)


def _asker(client: KubeClient) -> Callable[[], Awaitable[None]]:
    async def ask() -> None:
        reply = await client.get(_PROBE)
        if not reply.ok and not reply.object_missing:
            raise refusal(reply, "the AgentRun API")

    return ask


def _counter(settings: GatewaySettings, client: KubeClient) -> Callable[[], Awaitable[int]]:
    async def count() -> int:
        return await ready_endpoints(client, settings.pod_namespace, settings.service) if settings.pod_namespace else 1

    return count


if __name__ == "__main__":
    sys.exit(main())
