"""Thousands of histories of one run: whatever is killed, late, lost or said twice, the promise holds and an end is reached.

`STEPFENCE_HISTORIES` sets how many are played (default 400, in the whole run 2,000, of 20 to 60 moves, then driven fairly to an end).
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from tests.protocol.drive import play
from tests.protocol.focus import FOCUSES, Focus
from tests.protocol.scenario import Scenario, scenarios
from tests.protocol.violations import Violation
from tests.protocol.world import Rules

HISTORIES = int(os.environ.get("STEPFENCE_HISTORIES", "400"))
SEARCHED = 6000
CHOICES = st.binary(min_size=20, max_size=60)
PLAYED = settings(
    max_examples=HISTORIES,
    deadline=None,
    database=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large],
)
SEARCH = settings(PLAYED, max_examples=SEARCHED, phases=[Phase.generate])


def seen(focus: Focus, rules: Rules, choices: bytes) -> bool:
    """Whether a history shows one of the violations that the focus is about."""
    try:
        play(focus.scenario, choices, Rules(**vars(rules)))
    except Violation as violation:
        return violation.kind in focus.kinds
    return False


@pytest.mark.timeout(HISTORIES // 10 + 120)
@PLAYED
@given(scenario=scenarios(), choices=CHOICES)
def test_no_history_breaks_the_promise_and_each_reaches_an_end(scenario: Scenario, choices: bytes) -> None:
    world = play(scenario, choices)
    assert world.run.terminal


@pytest.mark.parametrize("focus", FOCUSES, ids=lambda focus: focus.name)
def test_the_machine_finds_each_hole_when_its_rule_is_taken_out(focus: Focus, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = focus.out(monkeypatch)
    choices = find(CHOICES, lambda choices: seen(focus, rules, choices), settings=SEARCH)
    assert seen(focus, rules, choices)
    monkeypatch.undo()
    assert not seen(focus, Rules(), choices), "the same history must be harmless with the rule in place"


@pytest.mark.parametrize("focus", FOCUSES, ids=lambda focus: focus.name)
def test_the_machine_finds_nothing_there_while_the_rule_is_in_place(focus: Focus) -> None:
    with pytest.raises(NoSuchExample):
        find(CHOICES, lambda choices: seen(focus, Rules(), choices), settings=settings(SEARCH, max_examples=60))
