"""The line before the byte budget: time goes in, nobody sleeps. Of one run, in its order; of several, fairly."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfence.app.line import AHEAD_SECONDS, Line, Ticket
from stepfence.core.errors import Code, Refused
from stepfence.ports import RunKey

MIB = 1024 * 1024
RUN = RunKey("support", "refund")


def waits(line: Line, size: int, now: float = 0, *, urgent: bool = False, key: RunKey = RUN) -> Ticket:
    ticket = line.join(key, size, now, urgent=urgent)
    assert ticket is not None
    return ticket


class TestOneRun:
    def test_a_seconds_worth_goes_at_once_and_the_next_waits_for_its_bytes(self) -> None:
        line = Line(100, 0)
        assert [line.join(RUN, 50, 0, urgent=False) for _ in range(2)] == [None, None]
        ticket = waits(line, 50)
        assert line.next_in(0) == 0.5
        assert line.go(0.4) == []
        assert line.go(0.5) == [ticket]
        assert line.next_in(0.5) is None

    def test_what_is_not_used_is_kept_for_a_second_only(self) -> None:
        line = Line(100, 0)
        assert line.join(RUN, 100, 60, urgent=False) is None
        waits(line, 1, 60)

    def test_urgent_writes_go_first_and_each_class_keeps_its_order(self) -> None:
        line = Line(100, 0)
        line.join(RUN, 100, 0, urgent=False)
        begin_1, begin_2 = waits(line, 10), waits(line, 10)
        done_1, done_2 = waits(line, 10, urgent=True), waits(line, 10, urgent=True)
        assert line.go(0.2) == [done_1, done_2]
        assert line.go(0.4) == [begin_1, begin_2]

    def test_nobody_overtakes_those_who_wait_before(self) -> None:
        line = Line(100, 0)
        line.join(RUN, 100, 0, urgent=False)
        large = waits(line, 90)
        small = waits(line, 1, 0.5)
        assert line.go(0.5) == []
        assert line.go(0.95) == [large, small]

    def test_nobody_overtakes_those_whose_turn_has_come_but_who_were_not_woken_yet(self) -> None:
        line = Line(100, 0)
        line.join(RUN, 100, 0, urgent=False)
        first = waits(line, 50)
        second = waits(line, 10, 0.9)
        assert line.go(0.9) == [first, second]

    def test_an_object_larger_than_a_second_goes_and_is_paid_for_after(self) -> None:
        line = Line(100, 0)
        assert line.join(RUN, 250, 0, urgent=False) is None
        next_one = waits(line, 100)
        assert line.next_in(0) == 2.5
        assert line.go(2.5) == [next_one]

    def test_a_line_that_is_too_long_is_refused_with_the_time_to_come_back(self) -> None:
        line = Line(100, 0, wait=10)
        line.join(RUN, 100, 0, urgent=False)
        for _ in range(10):
            waits(line, 100)
        with pytest.raises(Refused) as refused:
            line.join(RUN, 100, 0, urgent=False)
        assert (refused.value.code, refused.value.retry_after) == (Code.OVER_BUDGET, 1.0)
        assert waits(line, 100, urgent=True) in line.go(1.0)

    def test_a_line_with_too_many_in_it_is_refused(self) -> None:
        line = Line(100, 0, waiting=2)
        line.join(RUN, 100, 0, urgent=False)
        waits(line, 1)
        waits(line, 1)
        with pytest.raises(Refused):
            line.join(RUN, 1, 0, urgent=True)

    def test_who_was_overtaken_for_too_long_is_sent_away(self) -> None:
        line = Line(100, 0, wait=2)
        line.join(RUN, 100, 0, urgent=False)
        begin = waits(line, 100)
        settling = [waits(line, 100, now, urgent=True) for now in (0.5, 1.0)]
        assert line.go(1.5) == settling[:1]
        assert line.expire(2.0) == [begin]
        assert line.next_in(2.0) == 0.5

    def test_who_leaves_makes_room(self) -> None:
        line = Line(100, 0)
        line.join(RUN, 100, 0, urgent=False)
        first, second = waits(line, 100), waits(line, 100)
        line.leave(first)
        assert line.go(1.0) == [second]

    def test_a_smaller_share_holds_from_now_on(self) -> None:
        line = Line(100, 0)
        line.set_rate(50, 0)
        assert line.join(RUN, 50, 0, urgent=False) is None
        waits(line, 50)
        assert line.next_in(0) == 1.0

    def test_over_a_long_time_no_more_goes_than_the_rate(self) -> None:
        line, gone = Line(MIB, 0), 0
        for tick in range(600):
            now = tick / 10
            with contextlib.suppress(Refused):
                gone += 300_000 if line.join(RUN, 300_000, now, urgent=tick % 3 == 0) is None else 0
            gone += sum(due.size for due in line.go(now))
            line.expire(now)
        assert 59 * MIB <= gone <= 61 * MIB


def empty(rate: float = 100, **limits: float) -> Line:
    """A line whose bucket has nothing left."""
    line = Line(rate, 0, **limits)  # type: ignore[arg-type]
    line.join(RunKey("before", "before"), int(rate), 0, urgent=False)
    return line


def order(line: Line, seconds: float = 1000) -> list[Ticket]:
    """Everybody in the order of their turns."""
    gone: list[Ticket] = []
    while (wait := line.next_in(line._at)) is not None and line._at < seconds:
        gone += line.go(line._at + wait + 1e-9)
    return gone


class TestSeveralRuns:
    HOSTILE, OTHER, THIRD = RunKey("support", "hostile"), RunKey("support", "other"), RunKey("billing", "third")

    @pytest.mark.parametrize("key", [OTHER, THIRD], ids=["of the same namespace", "of another namespace"])
    @pytest.mark.parametrize("urgent", [False, True])
    def test_a_thousand_reports_of_one_run_delay_one_write_of_another_by_a_bounded_share(self, key: RunKey, urgent: bool) -> None:
        line = empty(1000, wait=10_000)
        for _ in range(1000):
            waits(line, 100, urgent=True, key=self.HOSTILE)
        mine = waits(line, 50, urgent=urgent, key=key)
        before = order(line).index(mine)
        assert before * 100 <= (100 if urgent else AHEAD_SECONDS * 1000 + 100)

    def test_the_same_with_two_classes_alone_would_have_waited_for_all_of_them(self) -> None:
        """What a run that floods the line does to its own begin: it waits behind its own reports."""
        line = empty(1000, wait=10_000)
        for _ in range(1000):
            waits(line, 100, urgent=True, key=self.HOSTILE)
        mine = waits(line, 50, key=self.HOSTILE)
        assert order(line).index(mine) == 1000

    def test_a_namespace_of_many_runs_delays_another_one_by_no_more(self) -> None:
        line = empty(1000, wait=10_000)
        for number in range(100):
            for _ in range(5):
                waits(line, 100, urgent=True, key=RunKey("support", f"run-{number}"))
        mine = waits(line, 50, key=self.THIRD)
        assert order(line).index(mine) * 100 <= AHEAD_SECONDS * 1000 + 100

    def test_a_report_goes_before_what_others_begin(self) -> None:
        line = empty(1000)
        for number in range(20):
            waits(line, 100, key=RunKey("support", f"run-{number}"))
        report = waits(line, 100, urgent=True, key=self.OTHER)
        assert order(line)[0] is report

    def test_runs_take_turns_by_bytes_not_by_writes(self) -> None:
        line = empty(1000, wait=1000)
        small = [waits(line, 10, key=self.OTHER) for _ in range(40)]
        large = [waits(line, 100, key=self.HOSTILE) for _ in range(4)]
        gone = order(line)
        for number in range(1, 4):
            taken = gone[: gone.index(large[number])]
            assert abs(sum(each.size for each in taken if each in small) - 100 * number) <= 100

    def test_who_comes_back_at_once_each_time_has_no_more_than_who_stands_in_line(self) -> None:
        line, now = empty(1000, wait=1000), 0.0
        patient = [waits(line, 100, key=self.OTHER) for _ in range(10)]
        again: Ticket | None = waits(line, 100, key=self.HOSTILE)
        had = {True: 0, False: 0}
        while patient:
            now += 0.1
            for gone in line.go(now):
                had[gone is again] += 100
                if gone is again:
                    again = line.join(self.HOSTILE, 100, now, urgent=False)
                else:
                    patient.remove(gone)
            assert abs(had[True] - had[False]) <= 200

    def test_who_comes_back_at_once_with_one_report_each_time_does_not_go_first_for_ever(self) -> None:
        line, now, had = empty(1000), 0.0, 0
        mine = waits(line, 100, key=self.OTHER)
        again: Ticket | None = waits(line, 100, urgent=True, key=self.HOSTILE)
        while mine not in (gone := line.go(now := now + 0.1)):
            assert gone == [again]
            had += 100
            assert had <= AHEAD_SECONDS * 1000 + 100
            again = line.join(self.HOSTILE, 100, now, urgent=True)

    def test_who_was_away_has_saved_nothing_up(self) -> None:
        line = empty(1000, wait=1000)
        waits(line, 10, key=self.OTHER)
        for _ in range(10):
            waits(line, 100, key=self.HOSTILE)
        line.go(1)
        late = [waits(line, 100, 1, key=self.OTHER) for _ in range(5)]
        assert {each.key for each in order(line)[:3]} == {self.OTHER, self.HOSTILE}
        assert len(late) == 5

    def test_what_went_at_once_while_nobody_waited_is_held_against_nobody(self) -> None:
        line = Line(1000, 0)
        for second in range(100):
            assert line.join(self.HOSTILE, 1000, second, urgent=False) is None
        mine, other = waits(line, 1000, 99, key=self.HOSTILE), waits(line, 1000, 99, key=self.OTHER)
        assert order(line) in ([mine, other], [other, mine])


class TestPlaces:
    FLOOD, OTHER, THIRD = RunKey("support", "flood"), RunKey("support", "other"), RunKey("billing", "third")

    def test_a_run_that_fills_the_line_gives_its_last_place_to_one_with_fewer(self) -> None:
        for key in (self.OTHER, self.THIRD):
            line = empty(waiting=10)
            flood = [waits(line, 1, urgent=True, key=self.FLOOD) for _ in range(10)]
            mine = waits(line, 1, key=key)
            assert line.expire(0) == [flood[-1]]
            assert line.expire(0) == []
            assert len(line) == 10
            assert mine in order(line)

    def test_who_has_as_many_places_as_anybody_is_refused(self) -> None:
        line = empty(waiting=4)
        for key in (self.FLOOD, self.FLOOD, self.OTHER, self.OTHER):
            waits(line, 1, key=key)
        for key in (self.FLOOD, self.OTHER):
            with pytest.raises(Refused):
                line.join(key, 1, 0, urgent=True)
        assert line.expire(0) == []
        waits(line, 1, key=self.THIRD)

    def test_what_begins_gives_way_before_what_settles(self) -> None:
        line = empty(waiting=3)
        waits(line, 1, key=self.FLOOD)
        begin = waits(line, 1, key=self.FLOOD)
        waits(line, 1, urgent=True, key=self.FLOOD)
        waits(line, 1, key=self.THIRD)
        assert line.expire(0) == [begin]


@dataclass
class Play:
    """Writes of some runs over time, and when each went."""

    line: Line = field(default_factory=lambda: Line(1000, 0, wait=8, waiting=64))
    joined: dict[Ticket, float] = field(default_factory=dict)
    went: dict[Ticket, float] = field(default_factory=dict)
    away: list[Ticket] = field(default_factory=list)


KEYS = st.builds(RunKey, st.sampled_from(["a", "b"]), st.sampled_from(["1", "2", "3"]))
WRITES = st.lists(st.tuples(KEYS, st.integers(1, 2500), st.booleans(), st.sampled_from([0.0, 0.0, 0.1, 1.0, 4.0])), max_size=120)


@given(WRITES)
def test_nobody_is_lost_or_served_twice_no_run_is_out_of_order_and_no_more_goes_than_the_rate(
    writes: list[tuple[RunKey, int, bool, float]],
) -> None:
    play, now, at_once = Play(), 0.0, 0
    line = play.line

    def look() -> None:
        for ticket in line.go(now):
            assert play.went.setdefault(ticket, now) == now
            assert ticket.until + 4 >= now
        play.away.extend(line.expire(now))

    for key, size, urgent, pause in writes:
        now += pause
        look()
        with contextlib.suppress(Refused):
            ticket = line.join(key, size, now, urgent=urgent)
            if ticket is None:
                at_once += size
            else:
                play.joined[ticket] = now
        look()
        assert len(line) <= 64
        assert at_once + sum(each.size for each in play.went) <= 1000 * (now + 1) + 2500
    while (wait := line.next_in(now)) is not None:
        now += wait + 1e-9
        look()
    assert len(play.joined) == len(play.went) + len(play.away)
    assert set(play.joined) == set(play.went) | set(play.away)
    assert (line._lanes, line._tickets) == ({}, {})
    for one in play.went:
        for other in play.went:
            if (one.key, one.urgent) == (other.key, other.urgent) and one.number < other.number:
                assert play.went[one] <= play.went[other]


@given(st.lists(st.tuples(st.integers(1, 400), st.booleans()), min_size=1, max_size=60), st.integers(1, 400), st.booleans())
def test_whatever_one_run_has_in_line_another_waits_for_a_bounded_share_of_it(
    flood: list[tuple[int, bool]], size: int, same_namespace: bool
) -> None:
    line = empty(1000, wait=10_000)
    for each, urgent in flood:
        waits(line, each, urgent=urgent, key=RunKey("support", "flood"))
    mine = waits(line, size, key=RunKey("support" if same_namespace else "billing", "mine"))
    gone = order(line)
    assert sum(each.size for each in gone[: gone.index(mine)]) <= AHEAD_SECONDS * 1000 + 400


def test_it_does_not_remember_everybody_for_ever() -> None:
    line = Line(MIB, 0)
    for number in range(3000):
        with contextlib.suppress(Refused):
            line.join(RunKey(f"namespace-{number}", f"run-{number}"), 1000, number / 10, urgent=False)
            line.join(RunKey("one", f"run-{number}"), 1000, number / 10, urgent=False)
    assert len(line._namespaces) < 600
    assert len(line._runs) < 800
    assert len(line._runs["one"]) < 600
