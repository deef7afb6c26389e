"""The byte budget: time goes in, nobody sleeps."""

import asyncio
from collections.abc import Callable

import pytest

from stepfence.app.budget import BudgetedRecordStore, ByteBudget
from stepfence.app.line import Line
from stepfence.core.errors import Code, Refused
from stepfence.ports import RecordKind, RunKey
from stepfence.stores import MemoryRecordStore
from stepfence.testing import FakeClock
from stepfence.testing.builders import new_run

MIB = 1024 * 1024


A, B = RunKey("support", "a"), RunKey("billing", "b")


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
            group.create_task(budget.spend(A, 100, urgent=False))
            await settle()
            group.create_task(budget.spend(A, 50, urgent=False))
            await settle()
            group.create_task(budget.spend(A, 50, urgent=True))
            await settle()
            assert budget.waiting == 2
            await timers.advance(0.5)
            assert seen.spent_writes == [(100, 0, False), (50, 0.5, True)]
            await timers.advance(0.5)
        assert seen.spent_writes[2] == (50, 1.0, False)
        assert budget.waiting == 0

    async def test_who_waits_too_long_is_refused(self) -> None:
        budget, timers, seen = budget_of(100)
        await budget.spend(A, 100, urgent=False)
        waiting = asyncio.create_task(budget.spend(A, 100, urgent=False))
        await settle()
        settling = [asyncio.create_task(budget.spend(A, 100, urgent=True)) for _ in range(10)]
        await settle()
        await timers.advance(10)
        await asyncio.gather(*settling)
        with pytest.raises(Refused) as refused:
            await waiting
        assert refused.value.code is Code.OVER_BUDGET
        assert seen.refused_writes == [(100, False)]

    async def test_a_cancelled_write_leaves_the_line(self) -> None:
        budget, timers, seen = budget_of(100)
        await budget.spend(A, 100, urgent=False)
        given_up = asyncio.create_task(budget.spend(A, 100, urgent=False))
        await settle()
        after = asyncio.create_task(budget.spend(A, 10, urgent=False))
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
        await budget.spend(A, 10, urgent=False)
        waiting = asyncio.create_task(budget.spend(A, 10, urgent=False))
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

    async def test_who_is_pushed_out_of_a_full_line_is_refused_at_once(self) -> None:
        budget, timers, seen = budget_of(100)
        budget._line = Line(100, 0, waiting=2)
        await budget.spend(A, 100, urgent=False)
        flood = [asyncio.create_task(budget.spend(A, 1, urgent=True)) for _ in range(2)]
        await settle()
        other = asyncio.create_task(budget.spend(B, 1, urgent=False))
        await settle()
        with pytest.raises(Refused) as refused:
            await flood[1]
        assert refused.value.code is Code.OVER_BUDGET
        assert seen.refused_writes == [(1, True)]
        await timers.advance(0.02)
        await asyncio.gather(flood[0], other)

    async def test_who_is_pushed_out_by_one_that_goes_at_once_is_refused_at_once_too(self) -> None:
        budget, _, seen = budget_of(100)
        budget._line = Line(100, 0, waiting=1)
        await budget.spend(A, 60, urgent=False)
        waiting = asyncio.create_task(budget.spend(A, 50, urgent=False))
        await settle()
        await budget.spend(B, 1, urgent=True)
        with pytest.raises(Refused):
            await waiting
        assert seen.refused_writes == [(50, False)]
