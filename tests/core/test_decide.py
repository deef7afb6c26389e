"""What the controller decides about a run and its holder, one sentence a case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepfence.core.decide import WorkerPlan, decide
from stepfence.core.model import Decision
from stepfence.core.words import Action, Outcome, State, Verdict
from stepfence.core.world import PodFact, World
from stepfence.testing.builders import at, new_run, seconds, step, with_decision
from tests.core.decide_states import (
    JOB_1,
    JOB_2,
    LIVE,
    NO_JOB,
    TERMINATED,
    held,
    in_flight,
    job,
    pod,
    started,
    worker,
    world,
)

# --- accepting a run ---


def test_a_new_run_is_accepted_and_its_first_worker_is_numbered_in_one_write() -> None:
    decided = decide(new_run(step(), accepted=False), world(), at())
    assert decided.run.started_at == seconds(0)
    assert decided.run.plan is not None
    assert decided.create == WorkerPlan(1, JOB_1)
    assert worker(decided) == (1, "", 0)


def test_a_spec_that_no_schema_can_check_fails_before_any_worker() -> None:
    run = new_run(step(), accepted=False, problems=("spec.input: 70000 bytes, at most 65536",))
    decided = decide(run, world(), at())
    assert (decided.run.outcome, decided.run.reason) == (Outcome.FAILED, "InvalidSpec")
    assert "70000" in decided.run.message
    assert decided.create is None
    assert decided.run.worker is None


@pytest.mark.parametrize("spec", [{"suspend": True}, {"cancel": True}], ids=["suspended", "cancelled"])
def test_no_worker_is_numbered_for_a_new_run_that_is(spec: dict[str, bool]) -> None:
    decided = decide(new_run(step(), accepted=False, **spec), world(), at())
    assert decided.create is None
    assert decided.run.worker is None


def test_cancel_of_a_run_without_a_worker_ends_it() -> None:
    decided = decide(new_run(step(), accepted=False, cancel=True), world(), at())
    assert decided.run.outcome is Outcome.CANCELLED
    assert decided.run.cancel_requested_at == seconds(0)


# --- identity ---


def test_a_run_id_is_spent_before_the_first_worker() -> None:
    decided = decide(new_run(step(), run_id="r"), world(), at())
    assert (decided.spend, decided.create, decided.run.worker) == (True, None, None)


def test_an_object_is_marked_with_its_uid_before_the_first_worker() -> None:
    decided = decide(new_run(step(), run_id="r"), world(identity="uid-1", mark=None), at())
    assert (decided.spend, decided.mark, decided.run.worker) == (False, True, None)


def test_a_run_with_a_spent_and_marked_identity_starts() -> None:
    assert decide(new_run(step(), run_id="r"), world(identity="uid-1"), at()).create == WorkerPlan(1, JOB_1)


def test_a_run_id_that_another_object_spent_fails_with_no_worker() -> None:
    decided = decide(new_run(step(), run_id="r"), world(identity="other"), at())
    assert (decided.run.outcome, decided.run.reason) == (Outcome.FAILED, "AlreadyRan")
    assert decided.run.worker is None


def test_an_object_with_anothers_mark_and_no_ledger_is_held_for_a_person() -> None:
    decided = decide(new_run(step(), accepted=False), world(mark="other"), at())
    assert decided.run.hold is not None
    assert decided.run.hold.reason == "LedgerMissing"
    assert decided.run.worker is None


@pytest.mark.parametrize(
    ("verdict", "outcome", "mark"), [(Verdict.RESUME, None, True), (Verdict.ABANDON, Outcome.FAILED, False)], ids=["resume", "abandon"]
)
def test_a_person_lets_a_run_without_ledger_go_on_or_gives_it_up(verdict: Verdict, outcome: Outcome | None, mark: bool) -> None:
    restored = decide(new_run(step(), accepted=False, run_id="r"), world(mark="other", identity="other"), at()).run
    assert restored.hold is not None
    answered = with_decision(restored, f"run.{restored.hold.question}", Decision(verdict))
    decided = decide(answered, world(mark="other", identity="other"), at(9))
    assert (decided.run.outcome, decided.mark) == (outcome, mark)
    if outcome is None:
        assert decide(decided.run, world(identity="other"), at(10)).create == WorkerPlan(1, JOB_1)


# --- the Job of the recorded number ---


@pytest.mark.parametrize(
    ("known", "create"),
    [
        (world(), None),
        (NO_JOB, WorkerPlan(1, JOB_1)),
        (world(job()), None),
        (LIVE, None),
    ],
    ids=["nothing is known of it: wait", "it was never made: make it", "it is there", "its pod is there"],
)
def test_the_recorded_worker_keeps_its_number_when(known: World, create: WorkerPlan | None) -> None:
    decided = decide(started(), known, at(2))
    assert decided.create == create
    assert worker(decided) == (1, "", 0)


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (world(job(gone=True)), "Deleted"),
        (world(replace(job(), foreign=True)), "NameTaken"),
    ],
    ids=["it was made and is gone", "its name is taken by another object"],
)
def test_the_next_number_is_taken_when(known: World, reason: str) -> None:
    ended = decide(started(), known, at(7))
    assert (ended.run.worker and ended.run.worker.number, ended.create) == (2, WorkerPlan(2, JOB_2))
    early = decide(started(), known, at(2))
    assert worker(early) == (1, reason, 0)
    assert early.wake_at is not None


def test_no_job_is_made_for_the_recorded_number_while_the_run_is_suspended() -> None:
    run = started()
    assert decide(replace(run, spec=replace(run.spec, suspend=True)), NO_JOB, at(2)).create is None


# --- a holder that is over ---


@pytest.mark.parametrize(
    ("known", "now", "over"),
    [
        (world(), 5, False),
        (LIVE, 5, False),
        (LIVE, 3000, False),
        (world(job(), TERMINATED), 5, True),
        (world(job(), pod(terminal=True)), 5, True),
        (world(job(), pod(gone=True)), 5, True),
        (world(job(), pod(deletion_at=seconds(20))), 10, False),
        (world(job(), pod(deletion_at=seconds(20))), 21, False),
        (world(job(), pod(deletion_at=seconds(20))), 62, True),
        (world(job(), pod(deletion_at=seconds(20)), lease_renewed_at=seconds(50)), 62, False),
        (world(job(), pod(deletion_at=seconds(20)), lease_renewed_at=seconds(50)), 110, True),
    ],
    ids=[
        "not when nothing is known of its pod",
        "not while its pod runs",
        "not because its lease ran out",
        "when the kubelet reported its containers terminated",
        "when its phase is terminal",
        "when its pod is gone",
        "not because its pod is marked for deletion",
        "not when its grace passed but its lease lives",
        "when grace and lease have both passed (a lost node)",
        "not while its own Lease is renewed",
        "when that too has run out",
    ],
)
def test_a_holder_is_fenced_out(known: World, now: float, over: bool) -> None:
    before = held(step(action=Action.READ))
    decided = decide(before, known, at(now))
    assert (decided.run.token > before.token) is over
    assert (decided.run.holder is None) is over


def test_settling_makes_the_open_step_unknown_without_starting_a_pod() -> None:
    decided = decide(in_flight(), world(job(), TERMINATED), at(5))
    entry = decided.run.ledger["pay"]
    assert (entry.state, entry.reason) == (State.UNKNOWN, "WorkerLost")
    assert entry.open[0].terminated_at == seconds(5)
    assert decided.create is None
    assert worker(decided) == (1, "Crashed", 1)


@pytest.mark.parametrize("known", [pod(terminal=True), pod(gone=True)], ids=["a phase set by garbage collection", "a vanished object"])
def test_no_end_is_confirmed_by(known: PodFact) -> None:
    entry = decide(in_flight(), world(job(), known), at(5)).run.ledger["pay"]
    assert entry.state is State.UNKNOWN
    assert entry.open[0].terminated_at is None


@pytest.mark.parametrize(
    ("asked", "next_worker"),
    [
        ({"action": Action.READ}, True),
        ({"action": Action.UPSERT}, True),
        ({"action": Action.PAYMENT, "probe_give_up": 300}, True),
        ({"action": Action.PAYMENT}, False),
        ({"action": Action.CREATE}, False),
    ],
    ids=["a Read is rerun", "an Upsert is rerun", "a step with a probe is probed", "a Payment waits", "a Create waits"],
)
def test_after_a_crash_in_the_middle_of_a_step(asked: dict[str, Any], next_worker: bool) -> None:
    settled = decide(in_flight(step(**asked)), world(job(), TERMINATED), at(5)).run
    decided = decide(settled, world(job(done=True), TERMINATED), at(60))
    assert (decided.create is not None) is next_worker


def test_a_pod_marked_for_deletion_that_holds_the_run_is_told_to_drain() -> None:
    decided = decide(held(), world(job(), pod(deletion_at=seconds(90))), at(5))
    assert decided.run.holder is not None
    assert decided.run.holder.draining
