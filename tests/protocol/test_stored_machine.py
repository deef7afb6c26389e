"""The Hypothesis state machine over the one writer, the schema and the memory store, with a fault at any write."""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.protocol import people
from tests.protocol.drive import drive_to_the_end, moves
from tests.protocol.scenario import Scenario, scenarios
from tests.protocol.stored_world import Fault, StoredWorld
from tests.protocol.violations import Violation
from tests.protocol.world import Rules

HISTORIES = int(os.environ.get("STEPFENCE_STORED_HISTORIES", "60"))
CHOICE = st.integers(0, 255)


class StoredRun(RuleBasedStateMachine):
    """One run and all that may happen to it. Invariants are checked by the world at every write and every effect."""

    world_rules = Rules()
    world: StoredWorld | None = None

    @initialize(scenario=scenarios())
    def begin(self, scenario: Scenario) -> None:
        self.world = StoredWorld(scenario, self.world_rules)
        people.reconcile(self.world)

    def _move(self, choice: int) -> None:
        if self.world is None:
            raise AssertionError("not begun")
        possible = moves(self.world)
        try:
            self.world.make(*possible[choice % len(possible)])
        except Violation as violation:
            violation.add_note("\n".join([str(self.world.scenario), *self.world.trace]))
            raise

    @rule(first=CHOICE, second=CHOICE, third=CHOICE)
    def moves_are_made(self, first: int, second: int, third: int) -> None:
        for choice in (first, second, third):
            self._move(choice)

    @precondition(lambda self: self.world is not None)
    @rule(choice=CHOICE, fault=st.sampled_from(Fault))
    def a_fault_strikes_the_next_write(self, choice: int, fault: Fault) -> None:
        if self.world is not None:
            self.world.store.fault = fault
            self.world.trace.append(f"   next: {fault}")
        self._move(choice)

    def teardown(self) -> None:
        if self.world is None:
            return
        self.world.store.fault = None
        try:
            drive_to_the_end(self.world)
        except Violation as violation:
            violation.add_note("\n".join([str(self.world.scenario), *self.world.trace]))
            raise
        assert self.world.run.terminal


def play(machine: type[StoredRun], histories: int, **more: Any) -> None:
    profile = settings(
        max_examples=histories,
        stateful_step_count=20,
        deadline=None,
        database=None,
        derandomize=True,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large],
        **more,
    )
    run_state_machine_as_test(machine, settings=profile)


@pytest.mark.timeout(900)
def test_no_history_over_the_store_breaks_the_promise_and_each_reaches_an_end() -> None:
    play(StoredRun, HISTORIES)


def test_the_machine_sees_a_store_that_does_not_compare_versions() -> None:
    class BlindRun(StoredRun):
        world_rules = Rules(compare_and_swap=False)

    with pytest.raises(Violation):
        play(BlindRun, 200, phases=[Phase.generate])
