"""One pass over one run: gather, decide, one write, then what the decision asks of the cluster, then the story."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from stepfence.app.apply import Applied, Applier
from stepfence.app.bodies import Bodies
from stepfence.controller.cache import Cache
from stepfence.controller.cluster import Cluster, NotCreated
from stepfence.controller.events import EventSink, Unread
from stepfence.controller.facts import job_fact
from stepfence.controller.gather import Gatherer, Refusal
from stepfence.controller.jobs import Injection, build_job
from stepfence.controller.metrics import Metrics
from stepfence.core.decide import Decided, WorkerPlan, decide
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Run
from stepfence.core.notices import Notice, notices
from stepfence.core.words import At
from stepfence.core.world import World
from stepfence.ports import RecordStore, RunKey, Stored
from stepfence.schema import Unreadable

__all__ = ["Again", "NotLeading", "Reconciler"]

_LOG = structlog.get_logger(__name__)


class NotLeading(Exception):
    """Another replica leads: nothing more may be done in this pass."""


class Again(Exception):
    """The pass did all it could; something did not take effect and must be tried again."""


@dataclass(frozen=True, slots=True)
class _Told:
    run: Run
    at: At


class Reconciler:
    """Level-triggered: a pass looks at what is, never at what happened, so that any pass may be lost, repeated or late."""

    def __init__(
        self,
        applier: Applier,
        records: RecordStore,
        cluster: Cluster,
        cache: Cache,
        events: EventSink,
        metrics: Metrics,
        *,
        injection: Callable[[], Injection],
        leading: Callable[[], bool],
    ) -> None:
        self._applier, self._records, self._cluster, self._cache, self._events = applier, records, cluster, cache, events
        self._metrics, self._injection, self._leading = metrics, injection, leading
        self._gatherer = Gatherer(cache, cluster)
        self._bodies = Bodies(records, applier.settings)
        self._refusals: dict[RunKey, Refusal] = {}
        self._told: dict[RunKey, _Told] = {}
        self._unreadable: set[RunKey] = set()

    def forget(self, key: RunKey) -> None:
        """Drop what is remembered of a run."""
        self._refusals.pop(key, None)
        self._told.pop(key, None)
        self._mark_unreadable(key, False)

    async def reconcile(self, key: RunKey) -> datetime | None:
        """Do one pass and return when time alone calls for the next.

        Raises `Again`, `NotLeading`, and what the store raises: `Refused`, `Conflict`, `Unknown`. A run that is gone is forgotten.
        """
        try:
            seen = await self._applier.read(key)
        except Refused as refused:
            if isinstance(refused, Unreadable):
                await self._tell_unreadable(key, refused)
            if refused.code is not Code.NOT_FOUND:
                raise
            self.forget(key)
            return None
        self._mark_unreadable(key, False)
        world = await self._gatherer.world(seen.run, self._refusals.get(key), self._applier.at())
        seen, world = await self._before_the_first(seen, world)
        self._require_lead()
        applied = await self._apply(seen, world)
        decided, run = applied.answer, applied.stored.run
        done = await self._act(key, run, decided)
        await self._tell(seen, run)
        if not done or decided.spend or decided.mark:
            raise Again("the worker is not started yet")
        self._cache.sweep(run.uid, frozenset((*world.jobs, *world.pods)))
        return decided.wake_at

    async def _tell_unreadable(self, key: RunKey, refused: Refused) -> None:
        """Post that nothing is done for a run, and count it: who looks at the run has no other way to see that."""
        self._mark_unreadable(key, True)
        seen = self._cache.runs.get(key)
        if seen is not None and self._leading():
            notice = Notice("Warning", "Unreadable", f"{refused.detail}: nothing is done for this run before it can be read")
            await self._events.tell(Unread(key.namespace, key.name, seen.uid), (notice,), self._applier.at().now)

    def _mark_unreadable(self, key: RunKey, unreadable: bool) -> None:
        (self._unreadable.add if unreadable else self._unreadable.discard)(key)
        self._metrics.unreadable.set(len(self._unreadable))

    def _require_lead(self) -> None:
        if not self._leading():
            raise NotLeading

    async def _before_the_first(self, seen: Stored, world: World) -> tuple[Stored, World]:
        """Spend and mark the identity, when the decision asks for it (I11)."""
        run = seen.run
        if run.worker is not None or run.terminal:
            return seen, world
        asked = decide(run, world, self._applier.at())
        if asked.spend:
            self._require_lead()
            world = replace(world, identity=await self._records.spend(asked.run))
            asked = decide(run, world, self._applier.at())
        if asked.mark:
            self._require_lead()
            if await self._cluster.mark(seen.key, run.uid):
                world = replace(world, mark=run.uid)
            seen = await self._applier.read(seen.key)  # the mark has moved the object
        return seen, world

    async def _apply(self, seen: Stored, world: World) -> Applied[Decided]:
        answers = self._bodies.answers()

        def edit(run: Run, at: At) -> tuple[Run, Decided]:
            if run.uid != seen.run.uid:
                raise Refused(Code.NOT_FOUND, "another run has this name now")
            decided = decide(run, replace(world, bodies=answers.on(run)), at)
            return decided.run, decided

        applied = await self._applier.apply(seen.key, edit, seen=seen, just_read=True, urgent=True, refresh=True, bodies=answers)
        self._metrics.passed(seen.run, applied.stored.run, wrote=applied.wrote)
        return applied

    async def _act(self, key: RunKey, run: Run, decided: Decided) -> bool:
        """Do what the decision asks of the cluster; False when something must be tried again."""
        done = True
        if decided.create is not None:
            self._require_lead()
            done = await self._create(key, run, decided.create)
        for pod in decided.delete_pods:
            self._require_lead()
            _LOG.info("deleting pod", namespace=run.namespace, run=run.name, pod=pod.name, reason=pod.reason)
            if not await self._cluster.delete_pod(run.namespace, pod.name, pod.uid):
                self._cache.mark_gone(run.uid, pod.uid)
        for job in decided.delete_jobs:
            self._require_lead()
            _LOG.info("deleting job", namespace=run.namespace, run=run.name, job=job.name)
            await self._cluster.delete_job(run.namespace, job.name, job.uid)
        return done

    async def _create(self, key: RunKey, run: Run, plan: WorkerPlan) -> bool:
        document = await self._cluster.run_object(key)
        if document is None or document["metadata"]["uid"] != run.uid:
            return True
        made = await self._cluster.create_job(build_job(run, document["spec"]["template"], plan, self._injection()))
        if isinstance(made, NotCreated):
            self._refusals[key] = Refusal(plan.job, made.message, made.invalid)
            _LOG.warning("job refused", namespace=run.namespace, run=run.name, job=plan.job, error=made.message)
            return False
        self._refusals.pop(key, None)
        if job_fact(made.job, run.uid).foreign:
            return False  # the next pass finds it there and takes the next number
        self._cache.see_job(made.job)
        if made.now:
            self._metrics.jobs_created.inc()
            _LOG.info("worker started", namespace=run.namespace, run=run.name, job=plan.job)
        return True

    async def _tell(self, seen: Stored, run: Run) -> None:
        """Post what happened since the last look, whoever wrote it. A new leader begins its story with what it does itself."""
        last = self._told.get(seen.key)
        at = self._applier.at()
        if last is None or last.run.uid != run.uid:
            last = _Told(seen.run, at)
        story = notices(last.run, last.at, run, at)
        if run.terminal:
            self._told.pop(seen.key, None)
        else:
            self._told[seen.key] = _Told(run, at)
        await self._events.tell(run, story, at.now)
