"""How workers end, what counts, and what people see of one that does not start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepfence.core.decide import decide
from stepfence.core.fencing import Release, drain, release
from stepfence.core.model import Run
from stepfence.core.reports import complete
from stepfence.core.words import Action, Outcome
from stepfence.core.world import PodProblem, World
from stepfence.testing.builders import POD, at, begun, body, report, seconds, step
from tests.core.decide_states import (
    JOB_1,
    LIVE,
    NO_IMAGE,
    NO_JOB,
    TERMINATED,
    held,
    job,
    pod,
    released,
    started,
    worker,
    world,
)

# --- how workers end, and what counts ---


def progressed(run: Run, now: float = 4) -> Run:
    run, _ = begun(run, now, "look")
    return complete(run, report(run, name="look"), body("x"), at(now))[0]


LOOK_PAY = (step("look", Action.READ), step())


@pytest.mark.parametrize(
    ("before", "known", "now", "expected"),
    [
        (held(), world(job(), TERMINATED), 8, (1, "Crashed", 1)),
        (started(), world(job(done=True), pod(terminal=True, exit_code=1)), 8, (1, "Crashed", 1)),
        (progressed(held(*LOOK_PAY)), world(job(), TERMINATED), 8, (2, "", 0)),
        (released(Release.DRAINED), LIVE, 8, (2, "", 0)),
        (released(Release.DRAINED, 4), LIVE, 4, (1, "Drained", 0)),
        (released(Release.ERROR), LIVE, 8, (1, "Crashed", 1)),
        (held(), world(job(), pod(terminal=True, deletion_at=seconds(7), exit_code=143)), 8, (2, "", 0)),
        (held(), world(job(), pod(terminal=True, disrupted=True, exit_code=137)), 8, (2, "", 0)),
        (held(), world(job(), pod(gone=True)), 8, (1, "Lost", 1)),
        (drain(held()), world(job(), pod(gone=True)), 8, (2, "", 0)),
        (started(), world(job(done=True)), 8, (2, "", 0)),
        (started(), world(job(suspended=True), pod(terminal=True, exit_code=143)), 8, (1, "", 0)),
        (release(held(), Release.DRAINED, at(6)), world(job(suspended=True), pod()), 8, (1, "", 0)),
    ],
    ids=[
        "a crash counts, and the next one waits",
        "a crash before the claim counts",
        "a worker that brought a step to Done does not count, the next one starts at once",
        "a drained one does not count, the next one starts at once, its pod still ending",
        "but not two of them within one back-off",
        "an error that the worker announced counts",
        "a deleted pod does not count",
        "an evicted pod does not count",
        "a pod that vanished counts",
        "a pod that vanished while draining does not",
        "a Job that ended with no pod to be seen does not",
        "a Job that a queueing tool suspended has not ended",
        "nor has one whose pod drained because of that",
    ],
)
def test_worker_end(before: Run, known: World, now: float, expected: tuple[int, str, int]) -> None:
    assert worker(decide(before, known, at(now))) == expected


@pytest.mark.parametrize(("code", "text"), [(1, "exit code 1"), (0, "exit code 0 without finish"), (75, "exit code 75 (Drained, but")])
def test_the_exit_code_of_a_crash_is_kept_for_people(code: int, text: str) -> None:
    ended = decide(held(), world(job(), pod(terminal=True, exit_code=code)), at(8)).run.worker
    assert ended is not None
    assert ended.message.startswith(text)


def test_an_exit_code_that_comes_after_the_announced_error_is_added() -> None:
    announced = decide(released(Release.ERROR), LIVE, at(8)).run
    ended = decide(announced, world(job(), pod(terminal=True, exit_code=3, message="boom")), at(9)).run.worker
    assert ended is not None
    assert ended.message == "exit code 3: boom"


def test_back_off_grows_and_is_capped() -> None:
    run, waits, now = started(backoff_limit=8), [], 10.0
    for number in range(1, 10):
        crashed = world(job(number, done=True), pod(number, f"pod-{number}", terminal=True, exit_code=1))
        ended = decide(run, crashed, at(now)).run
        if ended.worker is None or ended.worker.retry_at is None:
            run = ended
            break
        waits.append((ended.worker.retry_at - seconds(now)).total_seconds())
        assert decide(ended, world(job(number, done=True)), at(now + waits[-1] - 0.5)).create is None
        now += waits[-1]
        run = decide(ended, world(job(number, done=True)), at(now)).run
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    assert (run.outcome, run.reason) == (Outcome.FAILED, "BackoffLimitExceeded")
    assert run.message.startswith("9 workers in a row brought nothing forward (backoffLimit 8); the last one: Crashed: exit code 1")


def test_a_worker_that_failed_to_move_the_run_at_the_limit_ends_it_with_the_last_reason() -> None:
    refused = world(job(), refused="exceeded quota: pods=0")
    decided = decide(started(backoff_limit=0), refused, at(31))
    assert (decided.run.outcome, decided.run.reason) == (Outcome.FAILED, "BackoffLimitExceeded")
    assert "PodCreateRefused: exceeded quota" in decided.run.message


def test_the_limit_waits_for_the_exit_code_of_an_announced_error() -> None:
    run = release(held(backoff_limit=0), Release.ERROR, at(8))
    waiting = decide(run, LIVE, at(8)).run
    assert waiting.outcome is None
    ended = decide(waiting, world(job(), pod(terminal=True, exit_code=9)), at(9)).run
    assert "exit code 9" in ended.message


# --- pods that do not start ---


NO_ROOM = PodProblem("Unschedulable", "0/2 nodes are available", fatal=False)


@pytest.mark.parametrize(
    ("known", "now", "problem", "ended"),
    [
        (world(job(), pod(problem=NO_IMAGE)), 5, "ImagePullBackOff", False),
        (world(job(), pod(problem=NO_IMAGE)), 31, "", True),
        (world(job(), pod(problem=NO_ROOM)), 500, "Unschedulable", False),
        (world(job(), refused="exceeded quota"), 12, "PodCreateRefused", False),
        (world(job(), refused="exceeded quota"), 31, "", True),
        (replace(NO_JOB, not_created="namespace is being terminated"), 500, "JobCreateRefused", False),
    ],
    ids=[
        "a missing image is shown",
        "and given up after half a minute",
        "a pod that finds no node is shown, for ever",
        "a refused pod is shown",
        "and given up too",
        "a refused Job is shown, and tried again",
    ],
)
def test_what_people_see_of_a_worker_that_does_not_start(known: World, now: float, problem: str, ended: bool) -> None:
    run = decide(started(), known, at(now)).run
    assert (run.worker_problem or ("",))[0] == problem
    assert run.worker is not None
    assert (run.worker.ended_at is not None, run.worker.failures) == (ended, int(ended))


def test_pod_and_job_of_a_worker_that_was_given_up_are_deleted() -> None:
    given_up = decide(started(), world(job(), pod(problem=NO_IMAGE)), at(31))
    assert [gone.name for gone in given_up.delete_pods] == [POD]
    refused = decide(started(), world(job(), refused="exceeded quota"), at(31))
    assert [gone.name for gone in refused.delete_jobs] == [JOB_1]
