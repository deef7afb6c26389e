"""The controller's tasks: takers of the queue, the election, certificates, resync; and how they stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from stepfence.app.sweep import Sweeper
from stepfence.controller.cache import Cache
from stepfence.controller.certificate_keeper import CertificateKeeper
from stepfence.controller.cluster import Cluster
from stepfence.controller.metrics import Metrics
from stepfence.controller.reconcile import Again, NotLeading, Reconciler
from stepfence.controller.workqueue import Closed, WorkQueue
from stepfence.core.errors import Code, Conflict, Refused, Unknown
from stepfence.ports import Clock, RunKey

__all__ = ["Service"]

_LOG = structlog.get_logger(__name__)
_PASS_SECONDS = 60.0
_NOT_LEADING_AGAIN = 1.0
_CERTIFICATES_EVERY, _CERTIFICATES_AGAIN = 3600.0, 5.0
# When a pass stopped because it had deleted enough for one.
_SWEEP_ON = 30.0


class Service:
    """Takes keys from the queue while this replica leads. A follower hears everything and touches nothing."""

    def __init__(
        self,
        reconciler: Reconciler,
        queue: WorkQueue[RunKey],
        cache: Cache,
        cluster: Cluster,
        keeper: CertificateKeeper,
        metrics: Metrics,
        clock: Clock,
        *,
        leading: Callable[[], bool],
    ) -> None:
        self._reconciler, self._queue, self._cache, self._cluster, self._keeper = reconciler, queue, cache, cluster, keeper
        self._metrics, self._clock, self._leading = metrics, clock, leading
        self._lead = asyncio.Event()
        self._certified = asyncio.Event()
        self._renew = asyncio.Event()

    def start_leading(self) -> None:
        """Look at everything: what happened meanwhile is seen, not told."""
        self._lead.set()
        self._renew.set()
        for key in self._cache.known():
            self._queue.add(key)

    def stop_leading(self) -> None:
        """Touch nothing more. A pass in hand asks before each thing that it does."""
        self._lead.clear()
        self._certified.clear()

    def stop(self) -> None:
        """Take no more keys; the passes in hand are finished, and then each taker ends."""
        self._queue.close()
        self._lead.set()
        self._certified.set()

    async def work(self) -> None:
        """Be one taker of the queue, until `stop`."""
        while True:
            # Workers must be told whom to trust, so nothing starts before the certificates stand.
            await self._lead.wait()
            await self._certified.wait()
            try:
                key = await self._queue.take()
            except Closed:
                return
            if self._leading():
                await self.look(key)
            else:
                self._queue.done(key)
                self._queue.add_after(key, _NOT_LEADING_AGAIN)

    async def look(self, key: RunKey) -> None:
        """Do one pass over a key that was taken, and put it down."""
        try:
            with self._metrics.reconcile_seconds.time():
                async with asyncio.timeout(_PASS_SECONDS):
                    wake = await self._reconciler.reconcile(key)
        except NotLeading:
            self._queue.done(key)
            self._queue.add_after(key, _NOT_LEADING_AGAIN)
        except (Again, Conflict, Unknown, TimeoutError) as error:
            self._failed(key, type(error).__name__, str(error))
        except Refused as refused:
            self._refused(key, refused)
        else:
            self._settled(key, None if wake is None else max(0.0, (wake - self._clock.now()).total_seconds()))

    def _settled(self, key: RunKey, wake_after: float | None) -> None:
        self._queue.done(key, wake_after=wake_after)
        if key not in self._cache.runs:
            self._queue.drop(key)
            self._reconciler.forget(key)

    def _refused(self, key: RunKey, refused: Refused) -> None:
        if refused.code is Code.NOT_FOUND:
            self._reconciler.forget(key)
            self._settled(key, None)
        else:
            self._failed(key, refused.code.value, refused.detail, at_least=refused.retry_after or 0.0)

    def _failed(self, key: RunKey, kind: str, detail: str, *, at_least: float = 0.0) -> None:
        self._metrics.reconcile_errors.labels(kind).inc()
        pause = self._queue.failed(key, at_least=at_least)
        _LOG.warning("pass failed", namespace=key.namespace, run=key.name, kind=kind, detail=detail, again_after=round(pause, 1))

    async def keep_certificates(self) -> None:
        """While leading, renew what is due, for ever."""
        while True:
            await self._lead.wait()
            self._renew.clear()
            done = await self._tried("certificates", self._renew_certificates)
            if done and self._leading():
                self._certified.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CERTIFICATES_EVERY if done else _CERTIFICATES_AGAIN):
                    await self._renew.wait()

    async def _renew_certificates(self) -> None:
        if self._leading():
            await self._keeper.renew(self._clock.now())

    async def resync(self, seconds: float) -> None:
        """Every so often find what a watch has missed, and look at every run, for ever."""
        while True:
            await asyncio.sleep(seconds)
            if self._leading():
                await self._tried("resync", self.compare)

    async def compare(self) -> None:
        """Take in the end of Jobs and pods that no watch told of; look at every run."""
        for kind in ("jobs", "pods"):
            before = self._cache.uids(kind)
            self._cache.absent(kind, await self._cluster.labelled(kind), before)
        for key in self._cache.known():
            self._queue.add(key)

    async def sweep(self, sweeper: Sweeper, seconds: float) -> None:
        """Every so often, while leading, delete records that no run refers to, for ever."""
        pause = seconds
        while True:
            await asyncio.sleep(pause)
            pause = seconds
            if self._leading():
                pause = await self.sweep_once(sweeper, seconds)

    async def sweep_once(self, sweeper: Sweeper, seconds: float) -> float:
        """Do one pass; return the seconds until the next."""
        more = False

        async def sweep() -> None:
            nonlocal more
            swept = await sweeper.sweep()
            self._metrics.swept.inc(swept.deleted)
            more = swept.more

        await self._tried("sweep", sweep)
        return min(seconds, _SWEEP_ON) if more else seconds

    @staticmethod
    async def _tried(what: str, attempt: Callable[[], Awaitable[None]]) -> bool:
        try:
            await attempt()
        except (Conflict, Refused, Unknown) as error:
            _LOG.warning("will be tried again", what=what, error=str(error))
            return False
        return True
