"""The plan: its digest, what may be appended, what a worker may not loosen (I6)."""

import pytest

from stepfence.core.entry import StepSpec
from stepfence.core.errors import Code, Refused
from stepfence.core.plan import StepRequest, default_recovery, effective, plan_digest, plan_problems, submit, take_spec_plan
from stepfence.core.words import Action, PlanSource, Recovery, Settings
from stepfence.testing.builders import at, new_run, seconds, step

READ, PAY, MORE = step("look", Action.READ), step("pay"), step("notify", Action.CREATE)


def test_the_digest_is_frozen() -> None:
    steps = [step("a", Action.READ), step("refund", approval_expires=3600, attempts=3, key_ttl=86400)]
    assert plan_digest(steps) == "sha256:6bbc171a5e91b1d4dbc4e3946a9e5be9bef61ff834eb0fbd2ae598981a9fbe9c"


def test_the_digest_tells_order_and_every_setting() -> None:
    base = plan_digest([step("a"), step("b")])
    others = [
        [step("b"), step("a")],
        [step("a"), step("b", Action.READ)],
        [step("a"), step("b", timeout=61)],
        [step("a"), step("b", settle=11)],
        [step("a"), step("b", attempts=2)],
        [step("a"), step("b", backoff=2)],
        [step("a"), step("b", key_ttl=60)],
        [step("a"), step("b", approval=True)],
        [step("a"), step("b", approval_expires=60)],
        [step("a"), step("b", probe_give_up=60)],
        [step("a"), step("b", recovery=Recovery.RERUN)],
        [step("a")],
    ]
    digests = [plan_digest(other) for other in others]
    assert len({base, *digests}) == len(others) + 1


@pytest.mark.parametrize(
    ("action", "usual"),
    [
        (Action.READ, Recovery.RERUN),
        (Action.UPSERT, Recovery.RERUN),
        (Action.CREATE, Recovery.HALT),
        (Action.PAYMENT, Recovery.HALT),
        (Action.DELETE, Recovery.HALT),
    ],
)
def test_the_usual_recovery_follows_from_the_type(action: Action, usual: Recovery) -> None:
    assert default_recovery(action, probe=False) is usual
    assert default_recovery(action, probe=True) is Recovery.PROBE
    assert effective(StepRequest("x", action)).recovery is usual
    assert effective(StepRequest("x", action, probe_give_up=5)).recovery is Recovery.PROBE


def test_a_step_that_says_nothing_is_a_create_with_the_documented_times() -> None:
    made = effective(StepRequest("x"))
    assert (made.action, made.recovery, made.timeout, made.settle, made.attempts) == (Action.CREATE, Recovery.HALT, 60, 10, 1)
    assert (made.approval, made.approval_expires, made.key_ttl, made.probe_give_up) == (False, None, None, None)


def test_an_expiry_means_an_approval() -> None:
    assert effective(StepRequest("x", approval_expires=60)).approval


def test_zero_is_a_value_and_not_the_default() -> None:
    assert effective(StepRequest("x", settle=0)).settle == 0


def test_the_plan_of_the_spec_is_taken_once_and_may_be_looser() -> None:
    loose = step(recovery=Recovery.RERUN)
    run = new_run(loose)
    assert run.plan is not None
    assert (run.plan.source, run.plan.initial, run.plan.steps) == (PlanSource.SPEC, 1, (loose,))
    assert take_spec_plan(run, at(5)) is run


def test_a_worker_submits_once_and_the_same_again_is_answered_alike() -> None:
    run, first = submit(new_run(), [READ, PAY], at(1))
    again, second = submit(run, [READ, PAY], at(9))
    assert (first.changed, second.changed) == (True, False)
    assert again is run
    assert second.plan == first.plan
    assert (first.plan.source, first.plan.accepted_at) == (PlanSource.WORKER, seconds(1))


def test_a_plan_grows_at_its_end_only() -> None:
    run, _ = submit(new_run(), [READ], at(1))
    grown, answer = submit(run, [READ, PAY], at(2))
    assert answer.changed
    assert grown.plan is not None
    assert grown.plan.accepted_at == seconds(1)
    assert grown.plan.digest == plan_digest([READ, PAY])
    assert [grown.plan.appended(one.id) for one in grown.plan.steps] == [False, True]
    shorter, answer = submit(grown, [READ], at(3))
    assert (shorter, answer.changed, answer.plan) == (grown, False, grown.plan)


@pytest.mark.parametrize(
    "steps",
    [[PAY], [PAY, READ], [READ, MORE], [step("look", Action.READ, timeout=61), PAY], [READ, MORE, PAY]],
    ids=["removed", "swapped", "replaced", "changed", "put between"],
)
def test_anything_else_is_refused(steps: list[StepSpec]) -> None:
    run, _ = submit(new_run(), [READ, PAY], at(1))
    with pytest.raises(Refused, match="only grows at its end") as refused:
        submit(run, steps, at(2))
    assert (refused.value.code, refused.value.field) == (Code.PLAN_CHANGED, "steps")


@pytest.mark.parametrize(
    ("loose", "says"),
    [
        (step(recovery=Recovery.RERUN), "Rerun"),
        (step(recovery=Recovery.RESEND_WITH_KEY, key_ttl=86400), "ResendWithKey"),
    ],
)
def test_a_worker_may_not_loosen(loose: StepSpec, says: str) -> None:
    with pytest.raises(Refused, match=f"asks for {says}") as refused:
        submit(new_run(), [READ, loose], at())
    assert refused.value.field == "steps[1].recovery"


def test_nor_in_what_it_appends() -> None:
    run, _ = submit(new_run(), [READ], at())
    with pytest.raises(Refused) as refused:
        submit(run, [READ, step(recovery=Recovery.RERUN)], at(1))
    assert refused.value.field == "steps[1].recovery"


@pytest.mark.parametrize(
    "strict",
    [
        step("x", Action.READ, recovery=Recovery.HALT),
        step("x", Action.UPSERT, probe_give_up=60),
        step("x", Action.PAYMENT, probe_give_up=60),
        step("x", Action.PAYMENT, recovery=Recovery.HALT),
    ],
    ids=lambda one: f"{one.action}-{one.recovery}",
)
def test_a_worker_may_be_stricter(strict: StepSpec) -> None:
    _, answer = submit(new_run(), [strict], at())
    assert answer.changed


def test_a_loose_plan_of_the_spec_may_be_repeated_by_the_worker() -> None:
    run = new_run(step(recovery=Recovery.RERUN))
    assert submit(run, [step(recovery=Recovery.RERUN)], at(1))[1].changed is False


@pytest.mark.parametrize(
    ("steps", "where"),
    [
        ([], "plan.steps: at least one"),
        ([READ, READ], "plan.steps[1].id: 'look' stands twice"),
        ([step("run")], "plan.steps[0].id: 'run' is reserved"),
        ([step(recovery=Recovery.PROBE)], "plan.steps[0].probe: recovery Probe needs"),
        ([step(recovery=Recovery.HALT, probe_give_up=60)], "plan.steps[0].probe: goes with recovery Probe alone"),
        ([step(recovery=Recovery.RESEND_WITH_KEY)], "plan.steps[0].idempotencyKeyTTLSeconds: "),
        ([step(recovery=Recovery.RESEND_WITH_KEY, key_ttl=60)], "plan.steps[0].idempotencyKeyTTLSeconds: "),
        ([step(f"s{number}") for number in range(4)], "plan.steps: 4 steps, at most 3"),
    ],
)
def test_a_plan_that_cannot_work_is_named(steps: list[StepSpec], where: str) -> None:
    settings = Settings(max_steps=3)
    assert (plan_problems(steps, settings) or "").startswith(where)
    with pytest.raises(Refused) as refused:
        submit(new_run(), steps, at(settings=settings))
    assert refused.value.code is Code.BAD_REQUEST
    assert where.startswith(f"plan.{refused.value.field}")
