"""What becomes of a key after its pass, and what a replica does while it leads and while it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import cast

import pytest

from stepfence.controller.cache import Cache
from stepfence.controller.certificate_keeper import CertificateKeeper
from stepfence.controller.metrics import Metrics
from stepfence.controller.reconcile import Again, NotLeading, Reconciler
from stepfence.controller.service import Service
from stepfence.controller.workqueue import WorkQueue
from stepfence.core.errors import Code, Conflict, Refused, Unknown
from stepfence.ports import RunKey
from stepfence.testing.clock import EPOCH, FakeClock
from tests.controller.harness import Controller, World

KEY = RunKey("support", "refund")


class Passes:
    """A reconciler that does what the test says and notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[RunKey] = []
        self.forgotten: list[RunKey] = []
        self.does: Callable[[], datetime | None] = lambda: None
        self.seen = asyncio.Event()

    async def reconcile(self, key: RunKey) -> datetime | None:
        self.asked.append(key)
        self.seen.set()
        return self.does()

    def forget(self, key: RunKey) -> None:
        self.forgotten.append(key)


class Keeper:
    def __init__(self) -> None:
        self.renewed, self.fails = 0, False

    async def renew(self, now: datetime) -> None:
        self.renewed += 1
        if self.fails:
            raise Conflict("another replica wrote too")


class Bench:
    def __init__(self) -> None:
        self.clock, self.passes, self.keeper, self.leads = FakeClock(), Passes(), Keeper(), True
        self.queue: WorkQueue[RunKey] = WorkQueue(self.clock.monotonic, lambda: 0.5)
        self.cache = Cache(self.queue.add)
        self.cluster = World().cluster
        self.service = Service(
            cast("Reconciler", self.passes),
            self.queue,
            self.cache,
            self.cluster,
            cast("CertificateKeeper", self.keeper),
            Metrics(self.cache, now=self.clock.now, leading=lambda: self.leads, depth=lambda: 0),
            self.clock,
            leading=lambda: self.leads,
        )
        metadata = {"namespace": "support", "name": "refund", "uid": "run-1", "resourceVersion": "1"}
        self.cache.see_run({"metadata": metadata, "status": {}})

    async def look(self, does: Callable[[], datetime | None]) -> None:
        self.passes.does = does
        await self.service.look(await self.queue.take())

    def next_look(self) -> float | None:
        """Seconds until the key is looked at again."""
        schedule = self.queue._schedule
        if len(schedule):
            return 0.0
        due = schedule.next_due()
        return None if due is None else due - self.clock.monotonic()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def raises(error: Exception) -> Callable[[], datetime | None]:
    def does() -> datetime | None:
        raise error

    return does


@pytest.mark.parametrize(
    ("does", "again"),
    [
        (lambda: None, None),
        (lambda: EPOCH + timedelta(seconds=42), 42),
        (lambda: EPOCH - timedelta(seconds=1), 0),
        (raises(Conflict("moved")), 0.5),
        (raises(Unknown("lost")), 0.5),
        (raises(Again("not yet")), 0.5),
        (raises(TimeoutError()), 0.5),
        (raises(NotLeading()), 1),
        (raises(Refused(Code.OVER_BUDGET, "wait", retry_after=7)), 7),
        (raises(Refused(Code.BAD_REQUEST, "rules")), 0.5),
        (raises(Refused(Code.NOT_FOUND, "gone")), None),
    ],
    ids=[
        "never, when nothing is to come",
        "when time alone calls for it",
        "at once, when that has passed",
        "soon after a conflict",
        "soon after a lost reply",
        "soon, when something did not take effect",
        "soon after a pass that hung",
        "soon, should the lead come back",
        "when the budget says so",
        "soon after a refusal",
        "never, when the run is gone",
    ],
)
async def test_a_key_is_looked_at_again(bench: Bench, does: Callable[[], datetime | None], again: float | None) -> None:
    await bench.look(does)
    assert bench.next_look() == again


async def test_a_run_that_no_watch_knows_any_more_is_forgotten(bench: Bench) -> None:
    bench.cache.runs.clear()
    await bench.look(lambda: EPOCH + timedelta(seconds=42))
    assert (bench.next_look(), bench.passes.forgotten) == (None, [KEY])


async def test_an_error_that_nobody_foresaw_ends_the_taker(bench: Bench) -> None:
    with pytest.raises(ZeroDivisionError):
        await bench.look(raises(ZeroDivisionError()))


async def test_nothing_is_taken_before_the_lead_and_the_certificates(bench: Bench) -> None:
    bench.keeper.fails = True
    takers = asyncio.create_task(bench.service.work())
    keeper = asyncio.create_task(bench.service.keep_certificates())
    await asyncio.wait([takers, keeper], timeout=0.01)
    assert bench.keeper.renewed == 0
    bench.service.start_leading()
    await asyncio.wait([takers, keeper], timeout=0.01)
    assert (bench.keeper.renewed, bench.passes.asked) == (1, [])
    bench.keeper.fails = False
    bench.service.start_leading()
    async with asyncio.timeout(5):
        await bench.passes.seen.wait()
    for task in (takers, keeper):
        task.cancel()
    await asyncio.wait([takers, keeper])


async def test_a_replica_that_no_longer_leads_puts_its_keys_back(bench: Bench) -> None:
    bench.service.start_leading()
    bench.leads = False
    taker = asyncio.create_task(bench.service.work())
    bench.service._certified.set()
    await asyncio.wait([taker], timeout=0.01)
    assert (bench.passes.asked, bench.next_look()) == ([], 1)
    taker.cancel()
    await asyncio.wait([taker])


async def test_takers_end_when_the_service_stops(bench: Bench) -> None:
    takers = [asyncio.create_task(bench.service.work()) for _ in range(2)]
    bench.service.stop()
    done, late = await asyncio.wait(takers, timeout=5)
    assert (len(done), late) == (2, set())


async def test_a_resync_finds_the_end_that_no_watch_told_of() -> None:
    world = World()
    world.create()
    controller = Controller(world)
    await controller.settle()
    bench = Bench()
    world.cluster.listed_to(bench.cache)
    bench.service._cluster = world.cluster
    run = await world.run()
    assert [pod.gone for pod in bench.cache.pods(run.uid)] == [False]
    world.cluster.pods.clear()
    await bench.service.compare()
    assert [pod.gone for pod in bench.cache.pods(run.uid)] == [True]
    assert [job.gone for job in bench.cache.jobs(run.uid)] == [False]
