"""From which second "it did not happen" counts, and who may settle a doubt (R1, R2, R10)."""

from dataclasses import replace
from typing import Any

import pytest

from stepfence.core.entry import Attempt, Entry, StepSpec
from stepfence.core.lifecycle import set_ending
from stepfence.core.recovery import (
    MAX_UNRESOLVED,
    counts,
    did_not_happen_counts_from,
    gives_up_at,
    machine_may_settle,
    may_begin_again_at,
    may_land_until,
    needs_person,
    resend_allowed,
)
from stepfence.core.words import Action, Outcome, Recovery, Settings, State, Token
from stepfence.testing.builders import at, new_run, seconds, step

SETTINGS = Settings()


def attempt(number: int = 1, start: float = 0, ended: float | None = None, **known: Any) -> Attempt:
    terminated = None if ended is None else seconds(ended)
    made = Attempt(number, Token(1), f"r{number}", f"pod-{number}-uid", seconds(start), seconds(start + 60), terminated)
    return replace(made, **known)


def doubt(*attempts: Attempt, **known: Any) -> Entry:
    made = attempts or (attempt(),)
    entry = Entry(State.UNKNOWN, "sf1", attempt=made[-1].number, open=made, first_started_at=made[0].started_at, asked_at=seconds(20))
    return replace(entry, **known)


@pytest.mark.parametrize(
    ("says", "attempts", "second"),
    [
        ("deadline 60 plus margin 10", (attempt(),), 70),
        ("its pod's end at 5 plus settle 10", (attempt(ended=5),), 15),
        ("whichever is first", (attempt(ended=65),), 70),
        ("of the latest attempt", (attempt(), attempt(2, start=100)), 170),
        ("of every attempt, not only the last", (attempt(start=100), attempt(2, start=110, ended=111)), 170),
        ("of those that are unresolved", (attempt(failed=True), attempt(2, start=100, ended=101)), 111),
    ],
)
def test_a_no_counts_from(says: str, attempts: tuple[Attempt, ...], second: float) -> None:
    entry = doubt(*attempts)
    assert did_not_happen_counts_from(entry, step(), SETTINGS) == seconds(second)
    assert counts(entry, step(), seconds(second), SETTINGS)
    assert not counts(entry, step(), seconds(second - 0.001), SETTINGS)


def test_a_no_counts_at_once_when_nothing_is_unresolved() -> None:
    entry = doubt(attempt(failed=True))
    assert did_not_happen_counts_from(entry, step(), SETTINGS) is None
    assert counts(entry, step(), seconds(0), SETTINGS)


def test_settle_seconds_and_margin_are_taken_from_step_and_operator() -> None:
    assert did_not_happen_counts_from(doubt(attempt(ended=5)), step(settle=30), SETTINGS) == seconds(35)
    assert did_not_happen_counts_from(doubt(), step(), Settings(margin=1)) == seconds(61)


RESEND = step(recovery=Recovery.RESEND_WITH_KEY, key_ttl=300)


@pytest.mark.parametrize(("second", "allowed"), [(0, True), (229, True), (229.999, True), (230, False), (10**6, False)])
def test_a_resend_is_allowed_while_its_end_lies_inside_the_keys_life(second: float, allowed: bool) -> None:
    assert resend_allowed(doubt(), RESEND, at(second)) is allowed  # 230 + 60 + 10 = 300
    assert (may_begin_again_at(doubt(), RESEND, at(second)) is not None) is allowed


def test_the_keys_life_counts_from_the_first_start_of_all() -> None:
    entry = doubt(attempt(2, start=200), first_started_at=seconds(0))
    assert not resend_allowed(entry, RESEND, at(230))


def test_a_resend_needs_its_recovery_a_life_and_a_start() -> None:
    assert not resend_allowed(doubt(), step(key_ttl=300), at(1))
    assert not resend_allowed(doubt(), step(recovery=Recovery.RESEND_WITH_KEY), at(1))
    assert not resend_allowed(doubt(first_started_at=None), RESEND, at(1))


@pytest.mark.parametrize(
    ("says", "planned", "entry", "second"),
    [
        ("a Read at once", step(action=Action.READ), doubt(), 20),
        ("an Upsert after R1", step(action=Action.UPSERT), doubt(), 70),
        ("an Upsert after its pod's end", step(action=Action.UPSERT), doubt(attempt(ended=5)), 20),
        ("a loosened Payment after R1", step(recovery=Recovery.RERUN), doubt(), 70),
        ("a resend at once", RESEND, doubt(), 20),
        ("a resend after the back-off", RESEND, doubt(retry_at=seconds(40)), 40),
        ("a Payment never", step(), doubt(), None),
        ("a probed Payment never by itself", step(probe_give_up=60), doubt(), None),
        ("a Read that must halt never", step(action=Action.READ, recovery=Recovery.HALT), doubt(), None),
        ("nothing that failed for good", step(action=Action.UPSERT), doubt(final=True), None),
        ("nothing whose attempts are used up", step(action=Action.UPSERT), doubt(failures=1), None),
        ("nothing whose approval is over", step(action=Action.UPSERT, approval_expires=10), doubt(approved_at=seconds(10)), None),
        ("what an approval still covers", step(action=Action.UPSERT, approval_expires=11), doubt(approved_at=seconds(10)), 70),
        ("nothing after too many doubts", RESEND, doubt(*(attempt(n) for n in range(1, MAX_UNRESOLVED + 1))), None),
        ("one less is fine", RESEND, doubt(*(attempt(n) for n in range(1, MAX_UNRESOLVED))), 20),
    ],
)
def test_a_machine_may_begin_again(says: str, planned: StepSpec, entry: Entry, second: float | None) -> None:
    moment = may_begin_again_at(entry, planned, at(20))
    assert moment == (None if second is None else seconds(second))


def test_probing_gives_up_after_the_last_moment_at_which_a_no_can_begin_to_count() -> None:
    probed = step(probe_give_up=300)
    assert gives_up_at(doubt(attempt(ended=1)), probed, SETTINGS) == seconds(370)
    assert gives_up_at(doubt(attempt(failed=True)), probed, SETTINGS) == seconds(320)
    assert gives_up_at(doubt(), step(), SETTINGS) is None


@pytest.mark.parametrize(
    ("says", "planned", "known", "second", "machine"),
    [
        ("before the probe gives up", step(probe_give_up=300), {}, 369, True),
        ("when the probe gives up", step(probe_give_up=300), {}, 370, False),
        ("when the probe said so", step(probe_give_up=300), {"gave_up": True}, 80, False),
        ("a rerun", step(action=Action.UPSERT), {}, 20, True),
        ("a halt", step(), {}, 20, False),
        ("an abandoned step", step(action=Action.UPSERT), {"abandoned": True}, 20, False),
    ],
)
def test_a_machine_settles(says: str, planned: StepSpec, known: dict[str, Any], second: float, machine: bool) -> None:
    run, entry = new_run(planned), doubt(**known)
    assert machine_may_settle(run, entry, planned, at(second)) is machine
    assert needs_person(run, entry, planned, at(second)) is not (machine or entry.abandoned)


@pytest.mark.parametrize(
    ("says", "state", "action", "ending", "person"),
    [
        ("an approval", State.AWAITING_APPROVAL, Action.PAYMENT, False, True),
        ("an approval of a run that ends", State.AWAITING_APPROVAL, Action.PAYMENT, True, False),
        ("a doubt of a run that ends", State.UNKNOWN, Action.PAYMENT, True, True),
        ("a rerunnable doubt of a run that ends", State.UNKNOWN, Action.UPSERT, True, False),
        ("a failure", State.FAILED, Action.PAYMENT, False, False),
        ("what is in flight", State.IN_FLIGHT, Action.PAYMENT, False, False),
    ],
)
def test_a_person_is_asked(says: str, state: State, action: Action, ending: bool, person: bool) -> None:
    planned = step(action=action)
    run = new_run(planned)
    run = set_ending(run, Outcome.FAILED, "Gone", "", at()) if ending else run
    assert needs_person(run, replace(doubt(), state=state), planned, at(20)) is person
    assert not needs_person(replace(run, outcome=Outcome.FAILED), replace(doubt(), state=state), planned, at(20))


@pytest.mark.parametrize(
    ("planned", "besides", "second"),
    [
        (step(action=Action.UPSERT), 1, 170),
        (step(action=Action.UPSERT), 2, 70),
        (step(action=Action.UPSERT), None, 170),
        (step(action=Action.PAYMENT, recovery=Recovery.RERUN), 1, None),
        (step(action=Action.UPSERT, recovery=Recovery.RESEND_WITH_KEY, key_ttl=900), 1, None),
    ],
)
def test_until_when_another_attempt_may_land_over_a_later_step(planned: StepSpec, besides: int | None, second: float | None) -> None:
    entry = doubt(attempt(1), attempt(2, start=100))
    found = may_land_until(entry, planned, SETTINGS, besides=besides)
    assert found == (None if second is None else seconds(second))


def test_one_attempt_alone_stands_in_nobodys_way() -> None:
    assert may_land_until(doubt(), step(action=Action.UPSERT), SETTINGS) is None
