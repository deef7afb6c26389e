"""`stepfence controller`: one replica of the controller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import kopf
import structlog

from stepfence.app import logs
from stepfence.app.apply import Applier
from stepfence.app.budget import BudgetedRecordStore, ByteBudget
from stepfence.app.sweep import Sweeper
from stepfence.app.system import SystemClock, SystemIds
from stepfence.controller.cache import Cache
from stepfence.controller.certificate_keeper import CertificateKeeper, gateway_names
from stepfence.controller.cluster import KubeCluster
from stepfence.controller.events import EventSink
from stepfence.controller.health import Readiness, WatchHealth, serving
from stepfence.controller.jobs import Injection
from stepfence.controller.leader import Leadership
from stepfence.controller.metrics import Metrics
from stepfence.controller.reconcile import Reconciler
from stepfence.controller.service import Service
from stepfence.controller.settings import ControllerSettings
from stepfence.controller.stream import CUT
from stepfence.controller.watch import kopf_settings, watch_registry
from stepfence.controller.workqueue import WorkQueue
from stepfence.core.errors import Refused, Unknown
from stepfence.ports import RunKey
from stepfence.schema import GROUP, PLURAL, VERSION
from stepfence.stores.kube import KubeRunStore
from stepfence.stores.kube_client import KubeClient, connect, kube_path, refusal
from stepfence.stores.kube_records import KubeRecordStore

__all__ = ["main"]

_LOG = structlog.get_logger(__name__)
_FIELD_MANAGER = "stepfence-controller"
_REMEMBERED = 256
_ELECTION_CALL_SECONDS = 3.0
_STOP_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class _Parts:
    service: Service
    sweeper: Sweeper
    leadership: Leadership
    cache: Cache
    health: WatchHealth
    readiness: Readiness
    metrics: Metrics


def main() -> int:
    """Run one replica until SIGTERM; return the process's exit code."""
    try:
        settings = ControllerSettings.from_environ(os.environ)
    except ValueError as error:
        sys.stderr.write(f"stepfence controller: {error}\n")
        return 2
    logs.configure(settings.log_level)
    asyncio.run(_run(settings))
    return 0


async def _run(settings: ControllerSettings) -> None:
    async with _connected(settings) as (client, election):
        parts = _assemble(settings, client, election)
        async with serving(settings.health_host, settings.health_port, parts.readiness, parts.metrics.registry):
            await _wait_for_kind(client)
            await _lead_and_watch(settings, parts)


@contextlib.asynccontextmanager
async def _connected(settings: ControllerSettings) -> AsyncIterator[tuple[KubeClient, KubeClient]]:
    """The election has connections of its own, so that no load keeps it waiting."""
    client = await connect(_FIELD_MANAGER, pool=4 * settings.workers)
    election = await connect(_FIELD_MANAGER, seconds=_ELECTION_CALL_SECONDS, pool=2)
    try:
        yield client, election
    finally:
        await election.close()
        await client.close()


def _assemble(settings: ControllerSettings, client: KubeClient, election: KubeClient) -> _Parts:
    clock, core = SystemClock(), settings.core
    queue: WorkQueue[RunKey] = WorkQueue(clock.monotonic, random.random)
    cache, health, cluster = Cache(queue.add), WatchHealth(clock.monotonic), KubeCluster(client)
    budget = ByteBudget(clock, settings.write_bytes_per_second)
    bare = KubeRecordStore(client, clock.now)
    records, store = BudgetedRecordStore(bare, budget), KubeRunStore(client, core)
    applier = Applier(store, clock, SystemIds(), core, budget=budget, observer=health.expect, remember=_REMEMBERED)
    keeper = CertificateKeeper(client, settings.pod_namespace, gateway_names(settings.pod_namespace, settings.gateway_names))

    def injection() -> Injection:
        return Injection(settings.gateway_url, keeper.bundle, core.margin)

    leadership = Leadership(election, settings)
    metrics = Metrics(cache, now=clock.now, leading=leadership.leads, depth=lambda: len(queue))
    metrics.conflicts(lambda: applier.conflicts)
    events = EventSink(cluster, settings.pod_name)
    reconciler = Reconciler(applier, records, cluster, cache, events, metrics, injection=injection, leading=leadership.leads)
    service = Service(reconciler, queue, cache, cluster, keeper, metrics, clock, leading=leadership.leads)
    leadership.on_start, leadership.on_stop = service.start_leading, service.stop_leading
    readiness = Readiness(health, _asker(client), clock.monotonic, leadership.problem)
    sweeper = Sweeper(applier, bare, clock, revision_of=cache.revision_of, may_go_on=leadership.leads)
    return _Parts(service, sweeper, leadership, cache, health, readiness, metrics)


def _asker(client: KubeClient) -> Callable[[], Awaitable[None]]:
    async def ask() -> None:
        reply = await client.get(kube_path(f"{GROUP}/{VERSION}", PLURAL), query={"limit": "1"}, seconds=_ELECTION_CALL_SECONDS)
        if not reply.ok:
            raise refusal(reply, PLURAL)

    return ask


async def _wait_for_kind(client: KubeClient) -> None:
    """Wait until the API server serves our kinds: the watches are set up once."""
    ask, pause = _asker(client), 1.0
    while True:
        try:
            await ask()
        except (Refused, Unknown) as error:
            _LOG.warning("waiting for the API server to serve AgentRuns", error=str(error))
        else:
            return
        await asyncio.sleep(pause)
        pause = min(pause * 2, 10.0)


async def _lead_and_watch(settings: ControllerSettings, parts: _Parts) -> None:
    """Run everything until SIGTERM. kopf ends every task that is younger than itself, so ours are made first."""
    service, stop = parts.service, asyncio.Event()
    takers = [asyncio.create_task(service.work(), name=f"taker {number}") for number in range(settings.workers)]
    others = [
        asyncio.create_task(parts.leadership.run(), name="election"),
        asyncio.create_task(service.keep_certificates(), name="certificates"),
        asyncio.create_task(service.resync(settings.resync_seconds), name="resync"),
        asyncio.create_task(service.sweep(parts.sweeper, settings.sweep_seconds), name="sweep"),
    ]
    stopper = asyncio.create_task(_stop_in_order(stop, service, takers, others), name="stopper")
    ended = asyncio.Event()
    stopper.add_done_callback(lambda _: ended.set())
    for task in [*takers, *others]:
        task.add_done_callback(lambda _: stop.set())
    ours = asyncio.all_tasks()
    watches = await kopf.spawn_tasks(
        registry=watch_registry(parts.cache, parts.health, _teller(parts)),
        settings=kopf_settings(parts.health),
        clusterwide=True,
        standalone=True,
        # Its default asks for the user's name, which an image need not know. The type is one that kopf does not export.
        identity=settings.pod_name,  # type: ignore[arg-type]
        stop_flag=ended,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        # kopf's own handlers would end the watches before the passes in hand are done.
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    parts.readiness.started = True
    try:
        await kopf.run_tasks(watches, ignored=ours)
    finally:
        stop.set()
        await stopper
    for task in [*takers, *others]:
        if not task.cancelled() and task.exception() is not None:
            raise RuntimeError(f"{task.get_name()} ended") from task.exception()


def _teller(parts: _Parts) -> Callable[[str], None]:
    def told(kind: str) -> None:
        parts.metrics.watch_troubles.labels(kind).inc()
        if kind != CUT:
            parts.health.failed()

    return told


async def _stop_in_order(stop: asyncio.Event, service: Service, takers: list[asyncio.Task[None]], others: list[asyncio.Task[None]]) -> None:
    """Finish the passes in hand, then resign, then let the watches go."""
    await stop.wait()
    _LOG.info("stopping")
    service.stop()
    _, late = await asyncio.wait(takers, timeout=_STOP_SECONDS)
    for task in [*late, *others]:
        task.cancel()
    await asyncio.wait([*late, *others], timeout=_STOP_SECONDS)
    _LOG.info("stopped")


if __name__ == "__main__":
    sys.exit(main())
