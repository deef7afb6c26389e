"""What a gateway counts. Each application has a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import version

from fastapi import Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from stepfence.core.summary import new_doubts
from stepfence.ports import Stored

__all__ = ["Metrics", "metrics_of"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)


class Metrics:
    """The figures of one gateway. It sees each write as an observer, and each byte as the budget's meter."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._build = Info("stepfence_build", "This program's version.", registry=self.registry)
        self._build.info({"version": version("stepfence")})
        self.requests = Histogram(
            "stepfence_gateway_request_seconds",
            "Seconds from a request to its answer.",
            ("method", "route", "code"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._of_connections()
        self.in_flight = Gauge("stepfence_gateway_requests_in_flight", "Requests being served.", registry=self.registry)
        self.replays = Counter(
            "stepfence_replays_total", "Steps that a worker began and that were Done before.", ("image",), registry=self.registry
        )
        self.lost_holders = Counter(
            "stepfence_claims_over_lost_holder_total",
            "Claims that took a run from a holder that never released it.",
            ("image",),
            registry=self.registry,
        )
        self.unknown = Counter(
            "stepfence_steps_unknown_total", "Steps whose outcome became unknown.", ("action", "image"), registry=self.registry
        )
        self.budget_seconds = Histogram(
            "stepfence_budget_wait_seconds",
            "Seconds that a write waited for the byte budget.",
            ("kind",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.budget_bytes = Counter(
            "stepfence_budget_bytes_total", "Bytes written under the byte budget.", ("kind",), registry=self.registry
        )
        self.budget_refused = Counter(
            "stepfence_budget_refused_total", "Writes that the byte budget sent away.", ("kind",), registry=self.registry
        )
        self.budget_rate = Gauge("stepfence_budget_bytes_per_second", "This gateway's share of the byte budget.", registry=self.registry)
        self.budget_waiting = Gauge("stepfence_budget_waiting", "Writes that wait for the byte budget.", registry=self.registry)

    def _of_connections(self) -> None:
        self.connections = Gauge("stepfence_gateway_connections", "Connections to the worker API.", registry=self.registry)
        self.connections_closed = Counter(
            "stepfence_gateway_connections_closed_total",
            "Connections that the gateway closed: refused, gave-way to a new one, no handshake or no whole request head in time.",
            ("reason",),
            registry=self.registry,
        )

    def count(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show a number that is counted elsewhere."""
        self.registry.register(_Read(name, text, read))

    def observe(self, before: Stored, after: Stored) -> None:
        """See `stepfence.app.apply.Observer`."""
        old, new = before.run, after.run
        if new.token > old.token and old.holder is not None and new.holder is not None and new.holder.pod_uid != old.holder.pod_uid:
            self.lost_holders.labels(new.spec.image).inc()
        for step in new_doubts(old, new):
            self.unknown.labels(step.action.value, new.spec.image).inc()

    def spent(self, size: int, waited: float, *, urgent: bool) -> None:
        """See `stepfence.app.budget.Meter`."""
        self.budget_seconds.labels(_kind(urgent)).observe(waited)
        self.budget_bytes.labels(_kind(urgent)).inc(size)

    def refused(self, size: int, *, urgent: bool) -> None:  # noqa: ARG002  (the meter is told both)
        """See `stepfence.app.budget.Meter`."""
        self.budget_refused.labels(_kind(urgent)).inc()

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)


class _Read(Collector):
    def __init__(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._name, self._text, self._read = name, text, read

    def collect(self) -> Iterable[CounterMetricFamily]:
        """See `Collector.collect`."""
        yield CounterMetricFamily(self._name, self._text, value=self._read())


def _kind(urgent: bool) -> str:
    return "settle" if urgent else "begin"


def metrics_of(request: Request) -> Metrics:
    """Return the figures of the application that serves a request."""
    found = request.app.state.metrics
    if not isinstance(found, Metrics):
        raise TypeError(f"{found!r} is no Metrics")
    return found
