"""The byte budget: time goes in, nobody sleeps."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from stepfence.app.budget import BudgetedRecordStore, ByteBudget, Line, Ticket
from stepfence.core.errors import Code, Refused
from stepfence.ports import RecordKind
from stepfence.stores import MemoryRecordStore
from stepfence.testing import FakeClock
from stepfence.testing.builders import new_run

MIB = 1024 * 1024


def waits(line: Line, size: int, now: float = 0, *, urgent: bool = False) -> Ticket:
    ticket = line.join(size, now, urgent=urgent)
    assert ticket is not None
    return ticket


class TestLine:
    def test_a_seconds_worth_goes_at_once_and_the_next_waits_for_its_bytes(self) -> None:
        line = Line(100, 0)
        assert [line.join(50, 0, urgent=False) for _ in range(2)] == [None, None]
        ticket = waits(line, 50)
        assert line.next_in(0) == 0.5
        assert line.go(0.4) == []
        assert line.go(0.5) == [ticket]
        assert line.next_in(0.5) is None

    def test_what_is_not_used_is_kept_for_a_second_only(self) -> None:
        line = Line(100, 0)
        assert line.join(100, 60, urgent=False) is None
        waits(line, 1, 60)

    def test_urgent_writes_go_first_and_each_class_keeps_its_order(self) -> None:
        line = Line(100, 0)
        line.join(100, 0, urgent=False)
        begin_1, begin_2 = waits(line, 10), waits(line, 10)
        done_1, done_2 = waits(line, 10, urgent=True), waits(line, 10, urgent=True)
        assert line.go(0.2) == [done_1, done_2]
        assert line.go(0.4) == [begin_1, begin_2]

    def test_nobody_overtakes_those_who_wait_before(self) -> None:
        line = Line(100, 0)
        line.join(100, 0, urgent=False)
        large = waits(line, 90)
        small = waits(line, 1, 0.5)
        assert line.go(0.5) == []
        assert line.go(0.95) == [large, small]

    def test_nobody_overtakes_those_whose_turn_has_come_but_who_were_not_woken_yet(self) -> None:
        line = Line(100, 0)
        line.join(100, 0, urgent=False)
        first = waits(line, 50)
        second = waits(line, 10, 0.9)
        assert line.go(0.9) == [first, second]

    def test_an_object_larger_than_a_second_goes_and_is_paid_for_after(self) -> None:
        line = Line(100, 0)
        assert line.join(250, 0, urgent=False) is None
        next_one = waits(line, 100)
        assert line.next_in(0) == 2.5
        assert line.go(2.5) == [next_one]

    def test_a_line_that_is_too_long_is_refused_with_the_time_to_come_back(self) -> None:
        line = Line(100, 0, wait=10)
        line.join(100, 0, urgent=False)
        for _ in range(10):
            waits(line, 100)
        with pytest.raises(Refused) as refused:
            line.join(100, 0, urgent=False)
        assert (refused.value.code, refused.value.retry_after) == (Code.OVER_BUDGET, 1.0)
        assert waits(line, 100, urgent=True) in line.go(1.0)

    def test_a_line_with_too_many_in_it_is_refused(self) -> None:
        line = Line(100, 0, waiting=2)
        line.join(100, 0, urgent=False)
        waits(line, 1)
        waits(line, 1)
        with pytest.raises(Refused):
            line.join(1, 0, urgent=True)

    def test_who_was_overtaken_for_too_long_is_sent_away(self) -> None:
        line = Line(100, 0, wait=2)
        line.join(100, 0, urgent=False)
        begin = waits(line, 100)
        settling = [waits(line, 100, now, urgent=True) for now in (0.5, 1.0)]
        assert line.go(1.5) == settling[:1]
        assert line.expire(2.0) == [begin]
        assert line.next_in(2.0) == 0.5

    def test_who_leaves_makes_room(self) -> None:
        line = Line(100, 0)
        line.join(100, 0, urgent=False)
        first, second = waits(line, 100), waits(line, 100)
        line.leave(first)
        assert line.go(1.0) == [second]

    def test_a_smaller_share_holds_from_now_on(self) -> None:
        line = Line(100, 0)
        line.set_rate(50, 0)
        assert line.join(50, 0, urgent=False) is None
        waits(line, 50)
        assert line.next_in(0) == 1.0

    def test_over_a_long_time_no_more_goes_than_the_rate(self) -> None:
        line, gone = Line(MIB, 0), 0
        for tick in range(600):
            now = tick / 10
            with contextlib.suppress(Refused):
                gone += 300_000 if line.join(300_000, now, urgent=tick % 3 == 0) is None else 0
            gone += sum(due.size for due in line.go(now))
            line.expire(now)
        assert 59 * MIB <= gone <= 61 * MIB


class Timers:
    """Timers that fire when the clock is moved past them."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._set: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._set.append((self._clock.monotonic() + seconds, call))

    async def advance(self, seconds: float) -> None:
        """Move the clock from timer to timer, letting those who were woken go on."""
        end = self._clock.monotonic() + seconds
        while due := sorted((timer for timer in self._set if timer[0] <= end + 1e-6), key=lambda timer: timer[0])[:1]:
            self._set.remove(due[0])
            self._clock.advance(max(0.0, due[0][0] - self._clock.monotonic()))
            due[0][1]()
            await settle()
        self._clock.advance(max(0.0, end - self._clock.monotonic()))


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(5):
        await asyncio.tasks.sleep(0)


class Seen:
    """A meter that keeps what it is told."""

    def __init__(self) -> None:
        self.spent_writes: list[tuple[int, float, bool]] = []
        self.refused_writes: list[tuple[int, bool]] = []

    def spent(self, size: int, waited: float, *, urgent: bool) -> None:
        self.spent_writes.append((size, round(waited, 3), urgent))

    def refused(self, size: int, *, urgent: bool) -> None:
        self.refused_writes.append((size, urgent))


def budget_of(rate: float) -> tuple[ByteBudget, Timers, Seen]:
    clock, seen = FakeClock(), Seen()
    timers = Timers(clock)
    return ByteBudget(clock, rate, meter=seen, later=timers.later), timers, seen


class TestByteBudget:
    async def test_writes_wait_their_turn_and_the_meter_is_told(self) -> None:
        budget, timers, seen = budget_of(100)
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            group.create_task(budget.spend(100, urgent=False))
            await settle()
            group.create_task(budget.spend(50, urgent=False))
            await settle()
            group.create_task(budget.spend(50, urgent=True))
            await settle()
            assert budget.waiting == 2
            await timers.advance(0.5)
            assert seen.spent_writes == [(100, 0, False), (50, 0.5, True)]
            await timers.advance(0.5)
        assert seen.spent_writes[2] == (50, 1.0, False)
        assert budget.waiting == 0

    async def test_who_waits_too_long_is_refused(self) -> None:
        budget, timers, seen = budget_of(100)
        await budget.spend(100, urgent=False)
        waiting = asyncio.create_task(budget.spend(100, urgent=False))
        await settle()
        settling = [asyncio.create_task(budget.spend(100, urgent=True)) for _ in range(10)]
        await settle()
        await timers.advance(10)
        await asyncio.gather(*settling)
        with pytest.raises(Refused) as refused:
            await waiting
        assert refused.value.code is Code.OVER_BUDGET
        assert seen.refused_writes == [(100, False)]

    async def test_a_cancelled_write_leaves_the_line(self) -> None:
        budget, timers, seen = budget_of(100)
        await budget.spend(100, urgent=False)
        given_up = asyncio.create_task(budget.spend(100, urgent=False))
        await settle()
        after = asyncio.create_task(budget.spend(10, urgent=False))
        await settle()
        given_up.cancel()
        await settle()
        assert budget.waiting == 1
        await timers.advance(1.0)
        await after
        assert seen.spent_writes[1:] == [(10, 1.0, False)]

    async def test_the_budget_is_shared_by_the_gateways(self) -> None:
        budget, _, _ = budget_of(MIB)
        for gateways, rate in [(1, MIB), (2, MIB / 2), (4, MIB / 4), (0, MIB)]:
            budget.share(gateways)
            assert budget.rate == rate

    async def test_a_larger_share_wakes_who_can_go_now(self) -> None:
        budget, timers, seen = budget_of(100)
        budget.share(10)
        await budget.spend(10, urgent=False)
        waiting = asyncio.create_task(budget.spend(10, urgent=False))
        await settle()
        budget.share(1)
        await timers.advance(0.1)
        await waiting
        assert seen.spent_writes[1] == (10, 0.1, False)

    async def test_records_count_too_results_first(self) -> None:
        budget, _, seen = budget_of(MIB)
        records = BudgetedRecordStore(MemoryRecordStore(), budget)
        run = new_run()
        name = await records.put(run, RecordKind.PAYLOAD, '"é"', "sha256:" + "0" * 64)
        await records.put(run, RecordKind.RESULT, '"x"', "sha256:" + "1" * 64)
        assert await records.get(run, name) == '"é"'
        assert await records.spend(run) == run.uid
        assert seen.spent_writes == [(1028, 0, False), (1027, 0, True), (1024, 0, False)]
