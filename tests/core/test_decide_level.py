"""Passes that are repeated, late, lost or decided on an old look at the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stepfence.core.decide import decide
from stepfence.core.fencing import HolderFact, Release, release
from stepfence.core.lifecycle import finish
from stepfence.core.model import Run
from stepfence.core.reports import lose
from stepfence.core.words import Action
from stepfence.core.world import JobFact, World
from stepfence.testing.builders import at, claimed, new_run, report, seconds, step
from tests.core.decide_states import (
    LIVE,
    NO_IMAGE,
    NO_JOB,
    TERMINATED,
    doubtful,
    held,
    in_flight,
    job,
    pod,
    released,
    started,
    world,
)

STATES: dict[str, tuple[Callable[[], Run], World, float]] = {
    "a new run": (lambda: new_run(step(), accepted=False), world(), 0),
    "a run whose number is written and whose Job is not": (started, NO_JOB, 2),
    "a waiting pod": (started, world(job(), pod(problem=NO_IMAGE)), 5),
    "a run at work": (in_flight, LIVE, 9),
    "a worker that crashed": (in_flight, world(job(), TERMINATED), 9),
    "an open question": (doubtful, world(job(done=True), TERMINATED), 40),
    "a released run": (lambda: released(Release.DRAINED), LIVE, 9),
    "a hung step": (in_flight, LIVE, 80),
    "a refused pod": (started, world(job(), refused="quota"), 31),
    "a finished run": (lambda: finish(held(), None, at(8)), world(job(done=True), pod(terminal=True, exit_code=0)), 20),
}


@pytest.mark.parametrize("name", STATES)
def test_two_reconciles_of_one_state_decide_alike(name: str) -> None:
    make, known, now = STATES[name]
    assert decide(make(), known, at(now)) == decide(make(), known, at(now))


@pytest.mark.parametrize("name", STATES)
def test_deciding_again_on_what_was_written_changes_nothing_more(name: str) -> None:
    make, known, now = STATES[name]
    once = decide(make(), known, at(now))
    again = decide(once.run, known, at(now, nonce="another"))
    assert again.run == once.run
    assert again.delete_pods == once.delete_pods


@pytest.mark.parametrize("name", ["a new run", "a run whose number is written and whose Job is not", "a released run"])
def test_a_controller_that_was_killed_after_its_write_makes_the_job_later(name: str) -> None:
    """What the lost pass would have done in the world, the next pass does: nothing is made twice under one number."""
    make, known, now = STATES[name]
    lost = decide(make(), known, at(now))
    assert lost.create is not None
    nothing = JobFact(name=lost.create.job, number=lost.create.number, gone=True, seen=False)
    resumed = decide(lost.run, replace(known, jobs=(*(j for j in known.jobs if j.name != nothing.name), nothing)), at(now + 1))
    assert resumed.create == lost.create


@pytest.mark.parametrize("name", STATES)
def test_waking_at_the_said_moment_is_enough(name: str) -> None:
    """Between now and `wake_at` nothing changes by time alone."""
    make, known, now = STATES[name]
    settled = decide(make(), known, at(now))
    if settled.wake_at is None:
        assert decide(settled.run, known, at(now + 1e6)).run == settled.run
        return
    left = (settled.wake_at - seconds(now)).total_seconds()
    before = decide(settled.run, known, at(now + left * 0.999))
    assert (before.run, before.delete_pods) == (settled.run, settled.delete_pods)


def test_the_controller_wakes_when_did_not_happen_begins_to_count() -> None:
    """The question must then say so by itself (R1): confirmed terminal at second 5, settled 10 s later."""
    assert decide(doubtful(), world(job(done=True), TERMINATED), at(11)).wake_at == seconds(15)


def test_a_lost_claim_of_the_world_never_fences_a_pod_that_it_does_not_know() -> None:
    """The run was read after the pod cache: the new holder is not in it."""
    stale = world(job(1, done=True), pod(1, "old", terminal=True, exit_code=0))
    run = claimed(started(), 2, "fresh")
    decided = decide(run, stale, at(30))
    assert decided.run.holder is not None
    assert decided.run.token == run.token


def test_the_next_claim_waits_for_a_second_pod_of_the_same_job() -> None:
    run = release(held(), Release.DRAINED, at(8))
    assert decide(run, world(job(), pod(), pod(name="second")), at(30)).create is None


def test_lose_and_rerun_goes_on_in_the_same_worker() -> None:
    run = in_flight(step(action=Action.READ))
    run = lose(run, report(run), "Timeout", "", at(9))[0]
    decided = decide(run, LIVE, at(10))
    assert decided.create is None
    assert decided.run.holder is not None
    assert claimed(run, 11, "other", HolderFact.OVER).token == run.token + 1
