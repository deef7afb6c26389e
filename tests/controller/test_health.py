"""When a replica is alive and ready."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from stepfence.controller.health import Readiness, WatchHealth, serving
from stepfence.core.errors import Unknown
from stepfence.ports import RunKey, Stored
from stepfence.testing.builders import new_run
from stepfence.testing.clock import FakeClock

KEY = RunKey("support", "refund")


def stored(revision: str) -> Stored:
    return Stored(KEY, new_run(), revision)


def event(revision: str) -> dict[str, Any]:
    return {"metadata": {"namespace": KEY.namespace, "name": KEY.name, "resourceVersion": revision}}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def watches(clock: FakeClock) -> WatchHealth:
    return WatchHealth(clock.monotonic)


@pytest.mark.parametrize(
    ("heard", "dead"),
    [([], True), (["8"], True), (["9"], False), (["10"], False), (["8", "9"], False)],
    ids=["nothing", "an older one only", "that one", "a later one", "both"],
)
def test_a_watch_is_dead_when_a_minute_after_a_write_it_has_told_of(
    watches: WatchHealth, clock: FakeClock, heard: list[str], dead: bool
) -> None:
    watches.expect(stored("7"), stored("9"))
    for revision in heard:
        watches.heard(event(revision))
    clock.advance(60)
    assert watches.problem() is None
    clock.advance(1)
    assert (watches.problem() is not None) is dead


def test_a_later_write_does_not_put_off_the_first_one(watches: WatchHealth, clock: FakeClock) -> None:
    watches.expect(stored("7"), stored("8"))
    clock.advance(50)
    watches.expect(stored("8"), stored("9"))
    clock.advance(11)
    assert watches.problem() == "the watch has not told of a write to support/refund"


def test_requests_that_fail_for_more_than_a_minute_make_it_dead_until_they_stop_failing(watches: WatchHealth, clock: FakeClock) -> None:
    for _ in range(8):
        watches.failed()
        clock.advance(8)
    assert watches.problem() is None
    watches.failed()
    assert watches.problem() == "the watches cannot reach the API server"
    clock.advance(31)
    assert watches.problem() is None


def test_failures_with_long_rests_between_are_no_outage(watches: WatchHealth, clock: FakeClock) -> None:
    for _ in range(10):
        watches.failed()
        clock.advance(31)
    watches.failed()
    assert watches.problem() is None


class Store:
    def __init__(self) -> None:
        self.asked, self.answers = 0, True

    async def ask(self) -> None:
        self.asked += 1
        if not self.answers:
            raise Unknown("no route")


async def test_a_replica_is_ready_when_it_hears_and_the_store_answers(watches: WatchHealth, clock: FakeClock) -> None:
    store = Store()
    election: list[str] = []
    readiness = Readiness(watches, store.ask, clock.monotonic, lambda: election[-1] if election else None)
    assert await readiness.problem() == "the watches have not begun"
    readiness.started = True
    assert await readiness.problem() is None
    store.answers = False
    assert await readiness.problem() is None
    assert store.asked == 1
    clock.advance(10)
    assert await readiness.problem() == "the store does not answer: no route"
    store.answers = True
    clock.advance(1)
    assert await readiness.problem() is None
    election.append("nobody can lead")
    assert await readiness.problem() == "nobody can lead"


async def test_the_three_routes(watches: WatchHealth, clock: FakeClock, unused_tcp_port: int) -> None:
    registry = CollectorRegistry()
    Gauge("stepfence_x", "x", registry=registry).set(3)
    readiness = Readiness(watches, Store().ask, clock.monotonic, lambda: None)
    async with serving("127.0.0.1", unused_tcp_port, readiness, registry), httpx.AsyncClient(trust_env=False) as client:
        base = f"http://127.0.0.1:{unused_tcp_port}"
        assert (await client.get(f"{base}/livez")).status_code == 200
        not_yet = await client.get(f"{base}/readyz")
        assert (not_yet.status_code, not_yet.text) == (503, "the watches have not begun\n")
        readiness.started = True
        assert (await client.get(f"{base}/readyz")).status_code == 200
        assert "stepfence_x 3.0" in (await client.get(f"{base}/metrics")).text


def test_the_run_of_a_stored_version_does_not_matter(watches: WatchHealth) -> None:
    watches.expect(stored("1"), replace(stored("2"), run=new_run(accepted=False)))
    assert watches.problem() is None
