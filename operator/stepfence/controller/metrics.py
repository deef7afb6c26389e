"""What Prometheus is told, by worker-independent names."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator
from datetime import datetime
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from stepfence.controller.cache import Cache
from stepfence.core.model import Run
from stepfence.core.summary import new_doubts

__all__ = ["Metrics"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """One registry for one controller."""

    def __init__(self, cache: Cache, *, now: Callable[[], datetime], leading: Callable[[], bool], depth: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "stepfence_reconcile_seconds", "One pass over one run.", buckets=_SECONDS, registry=self.registry
        )
        self.reconcile_errors = Counter("stepfence_reconcile_errors", "Passes that must be tried again.", ["kind"], registry=self.registry)
        self.writes = Counter("stepfence_run_writes", "Writes of AgentRuns by the controller.", registry=self.registry)
        self.swept = Counter("stepfence_records_swept", "Records deleted because no run referred to them.", registry=self.registry)
        self.jobs_created = Counter("stepfence_jobs_created", "Workers started.", registry=self.registry)
        self.settled = Counter(
            "stepfence_settled_workers", "Holders that were over and were fenced out.", ["image"], registry=self.registry
        )
        self.unknown = Counter(
            "stepfence_steps_unknown", "Steps whose outcome became unknown.", ["action", "image"], registry=self.registry
        )
        self.worker_ends = Counter("stepfence_worker_ends", "Workers that ended.", ["reason", "image"], registry=self.registry)
        self.watch_troubles = Counter(
            "stepfence_watch_troubles", "What the watches could not read as it is.", ["kind"], registry=self.registry
        )
        self.unreadable = Gauge("stepfence_unreadable_runs", "Runs that cannot be read: nothing is done for them.", registry=self.registry)
        self.registry.register(_State(cache, now, leading, depth))

    def passed(self, before: Run, after: Run, *, wrote: bool) -> None:
        """Count what one pass did to a run."""
        if not wrote:
            return
        self.writes.inc()
        image = after.spec.image
        if before.holder is not None and after.holder is None and after.token > before.token:
            self.settled.labels(image).inc()
        for step in new_doubts(before, after):
            self.unknown.labels(step.action.value, image).inc()
        worker = after.worker
        if worker is not None and worker.ended_at is not None and (before.worker is None or before.worker.ended_at != worker.ended_at):
            self.worker_ends.labels(worker.exit_reason, image).inc()

    def conflicts(self, count: Callable[[], int]) -> None:
        """Tell how often a write met another one, as the writer counts it."""
        self.registry.register(_Conflicts(count))


class _Conflicts(Collector):
    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily("stepfence_write_conflicts", "Writes that met another one, since the start.")
        family.add_metric([], self._count())
        yield family


class _State(Collector):
    """Read when asked: what the caches hold."""

    def __init__(self, cache: Cache, now: Callable[[], datetime], leading: Callable[[], bool], depth: Callable[[], int]) -> None:
        self._cache, self._now, self._leading, self._depth = cache, now, leading, depth

    def collect(self) -> Iterator[GaugeMetricFamily]:
        runs = list(self._cache.runs.values())
        phases = GaugeMetricFamily("stepfence_runs", "Runs by phase.", labels=["phase"])
        for phase, count in sorted(Tally(run.phase for run in runs).items()):
            phases.add_metric([phase], count)
        yield phases
        asked = [since for run in runs for since in run.asked]
        yield GaugeMetricFamily("stepfence_open_questions", "Questions that wait for a person.", value=len(asked))
        oldest = max(0.0, (self._now() - min(asked)).total_seconds()) if asked else 0.0
        yield GaugeMetricFamily("stepfence_oldest_question_seconds", "Age of the oldest open question.", value=oldest)
        yield GaugeMetricFamily("stepfence_queue_depth", "Runs that wait for a pass.", value=self._depth())
        yield GaugeMetricFamily("stepfence_leader", "1 in the replica that leads.", value=float(self._leading()))
        info = GaugeMetricFamily("stepfence_build_info", "Version of this program.", labels=["version"])
        info.add_metric([version("stepfence")], 1)
        yield info
