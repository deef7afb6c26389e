"""The order of work: numbers for moments, no waiting; and the takers' side with its real waits."""

from __future__ import annotations

import asyncio

import pytest

from stepfence.controller.workqueue import Closed, Schedule, WorkQueue
from stepfence.testing.clock import FakeClock


@pytest.fixture
def schedule() -> Schedule[str]:
    return Schedule(lambda: 0.5)


def test_a_key_stands_in_the_queue_once(schedule: Schedule[str]) -> None:
    for key in ("a", "b", "a"):
        schedule.add(key)
    assert [schedule.take(0), schedule.take(0), schedule.take(0)] == ["a", "b", None]


def test_a_key_in_hand_is_not_given_to_another_taker_and_comes_again(schedule: Schedule[str]) -> None:
    schedule.add("a")
    assert schedule.take(0) == "a"
    schedule.add("a")
    assert schedule.take(0) is None
    schedule.done("a")
    assert schedule.take(0) == "a"
    schedule.done("a")
    assert schedule.take(0) is None


def test_a_timer_waits_for_its_moment_and_the_sooner_one_counts(schedule: Schedule[str]) -> None:
    schedule.add_at("a", 10)
    schedule.add_at("a", 5)
    schedule.add_at("a", 20)
    assert (schedule.next_due(), schedule.take(4.9), schedule.take(5)) == (5, None, "a")
    schedule.done("a")
    assert schedule.take(100) is None


def test_a_success_replaces_the_wake_that_was_asked_before(schedule: Schedule[str]) -> None:
    schedule.add_at("a", 50)
    schedule.add("a")
    schedule.take(0)
    schedule.done("a", wake=70)
    assert (schedule.take(60), schedule.take(70)) == (None, "a")


def test_a_timer_that_fires_while_its_key_is_in_hand_is_not_lost(schedule: Schedule[str]) -> None:
    schedule.add("a")
    schedule.take(0)
    schedule.add_at("a", 1)
    assert schedule.take(2) is None
    schedule.done("a")
    assert schedule.take(2) == "a"


def test_failures_in_a_row_wait_longer_up_to_a_cap_and_a_success_ends_the_row(schedule: Schedule[str]) -> None:
    schedule.add("a")
    now, pauses = 0.0, []
    for _ in range(9):
        assert schedule.take(now) == "a"
        pauses.append(schedule.failed("a", now))
        assert schedule.take(now + pauses[-1] - 0.01) is None
        now += pauses[-1]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    schedule.take(now)
    schedule.done("a")
    schedule.add("a")
    schedule.take(now)
    assert schedule.failed("a", now) == 0.5


@pytest.mark.parametrize(("drawn", "pause"), [(0.0, 0.4), (1.0, 0.6)])
def test_a_pause_is_spread(drawn: float, pause: float) -> None:
    schedule: Schedule[str] = Schedule(lambda: drawn)
    schedule.add("a")
    schedule.take(0)
    assert schedule.failed("a", 0) == pytest.approx(pause)


def test_a_failure_waits_at_least_as_long_as_asked(schedule: Schedule[str]) -> None:
    schedule.add("a")
    schedule.take(0)
    assert schedule.failed("a", 0, at_least=5) == 5


def test_what_happens_during_a_failed_pass_waits_for_the_pause(schedule: Schedule[str]) -> None:
    schedule.add("a")
    schedule.take(0)
    schedule.add("a")
    schedule.failed("a", 0)
    assert (schedule.take(0.4), schedule.take(0.5)) == (None, "a")


def test_a_key_that_is_no_more_is_forgotten(schedule: Schedule[str]) -> None:
    schedule.add("a")
    schedule.add_at("a", 5)
    schedule.drop("a")
    assert schedule.take(10) is None
    assert schedule.next_due() is None


async def test_takers_wait_for_a_key_and_each_gets_its_own() -> None:
    queue: WorkQueue[str] = WorkQueue(FakeClock().monotonic, lambda: 0.5)
    takers = [asyncio.create_task(queue.take()) for _ in range(2)]
    await asyncio.wait(takers, timeout=0)
    queue.add("a")
    queue.add("b")
    async with asyncio.timeout(5):
        assert sorted(await asyncio.gather(*takers)) == ["a", "b"]


async def test_a_taker_wakes_for_a_timer_that_is_asked_for_while_it_waits() -> None:
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue(clock.monotonic, lambda: 0.5)
    taker = asyncio.create_task(queue.take())
    await asyncio.wait([taker], timeout=0)
    queue.add_after("a", 30)
    await asyncio.wait([taker], timeout=0)
    assert not taker.done()
    clock.advance(30)
    queue.add_after("b", 30)  # any change makes takers look at the clock again
    async with asyncio.timeout(5):
        assert await taker == "a"


async def test_a_closed_queue_tells_its_takers() -> None:
    queue: WorkQueue[str] = WorkQueue(FakeClock().monotonic, lambda: 0.5)
    taker = asyncio.create_task(queue.take())
    await asyncio.wait([taker], timeout=0)
    queue.close()
    with pytest.raises(Closed):
        async with asyncio.timeout(5):
            await taker
