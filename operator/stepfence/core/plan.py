"""The plan: effective settings of a step, its document and digest, what a worker may submit (I6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepfence.core.canonical import canonical, digest
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Plan, Run, StepSpec
from stepfence.core.words import Action, At, PlanSource, Recovery, Settings, StepId

__all__ = [
    "PlanAnswer",
    "StepRequest",
    "default_recovery",
    "effective",
    "plan_digest",
    "plan_problems",
    "submit",
    "take_spec_plan",
]

_ORDER = {Recovery.RERUN: 0, Recovery.RESEND_WITH_KEY: 1, Recovery.PROBE: 2, Recovery.HALT: 3}


@dataclass(frozen=True, slots=True)
class StepRequest:
    """A step as asked for; None means the default. Times in seconds."""

    id: str
    action: Action = Action.CREATE
    recovery: Recovery | None = None
    timeout: int | None = None
    settle: int | None = None
    attempts: int | None = None
    backoff: int | None = None
    key_ttl: int | None = None
    approval: bool = False
    approval_expires: int | None = None
    probe_give_up: int | None = None


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """The recorded plan, and whether the call changed it."""

    plan: Plan
    changed: bool


def default_recovery(action: Action, probe: bool) -> Recovery:
    """Read, Upsert `Rerun`; a step with a probe `Probe`; the rest `Halt`."""
    if probe:
        return Recovery.PROBE
    return Recovery.RERUN if action in (Action.READ, Action.UPSERT) else Recovery.HALT


def effective(step: StepRequest) -> StepSpec:
    """Return the step with every default filled in."""
    return StepSpec(
        id=StepId(step.id),
        action=step.action,
        recovery=step.recovery or default_recovery(step.action, step.probe_give_up is not None),
        timeout=60 if step.timeout is None else step.timeout,
        settle=10 if step.settle is None else step.settle,
        attempts=1 if step.attempts is None else step.attempts,
        backoff=1 if step.backoff is None else step.backoff,
        key_ttl=step.key_ttl,
        approval=step.approval or step.approval_expires is not None,
        approval_expires=step.approval_expires,
        probe_give_up=step.probe_give_up,
    )


def plan_digest(steps: Sequence[StepSpec]) -> str:
    """Return the digest over the effective steps, in order."""
    return digest(canonical([_document(step) for step in steps]))


def _document(step: StepSpec) -> Any:
    return [
        step.id,
        step.action,
        step.recovery,
        step.timeout,
        step.settle,
        step.attempts,
        step.backoff,
        step.key_ttl,
        step.approval,
        step.approval_expires,
        step.probe_give_up,
    ]


def plan_problems(steps: Sequence[StepSpec], settings: Settings) -> str | None:
    """Return what is wrong with a plan, or None. The CRD refuses the same at apply; this holds where no schema looked."""
    if not steps:
        return "plan.steps: at least one step is needed"
    if len(steps) > settings.max_steps:
        return f"plan.steps: {len(steps)} steps, at most {settings.max_steps}"
    seen: set[str] = set()
    for index, step in enumerate(steps):
        where = f"plan.steps[{index}]"
        if step.id in seen:
            return f"{where}.id: {step.id!r} stands twice"
        if step.id == "run":
            return f"{where}.id: 'run' is reserved"
        if step.recovery is Recovery.PROBE and step.probe_give_up is None:
            return f"{where}.probe: recovery Probe needs probe.giveUpAfterSeconds"
        if step.recovery is not Recovery.PROBE and step.probe_give_up is not None:
            return f"{where}.probe: goes with recovery Probe alone, not with {step.recovery}"
        if step.recovery is Recovery.RESEND_WITH_KEY and (step.key_ttl or 0) <= step.timeout:
            return f"{where}.idempotencyKeyTTLSeconds: recovery ResendWithKey needs a key that lives longer than timeoutSeconds"
        seen.add(step.id)
    return None


def _refuse_looser(steps: Sequence[StepSpec], offset: int) -> None:
    for index, step in enumerate(steps, start=offset):
        usual = default_recovery(step.action, step.probe_give_up is not None)
        if _ORDER[step.recovery] < _ORDER[usual]:
            raise Refused(
                Code.BAD_REQUEST,
                f"a worker's plan may only be stricter: step {step.id!r} of type {step.action} asks for {step.recovery}, usual is {usual}",
                field=f"steps[{index}].recovery",
            )


def take_spec_plan(run: Run, at: At) -> Run:
    """Accept the plan of the spec, once. It may be looser than the defaults until policies exist."""
    if run.plan is not None or run.spec.steps is None:
        return run
    steps = run.spec.steps
    plan = Plan(steps=steps, digest=plan_digest(steps), accepted_at=at.now, source=PlanSource.SPEC, initial=len(steps))
    return replace(run, plan=plan)


def submit(run: Run, steps: Sequence[StepSpec], at: At) -> tuple[Run, PlanAnswer]:
    """Accept a worker's plan, or an append to the recorded one; the same again is answered alike.

    Raises `Refused`: BAD_REQUEST with the field, PLAN_CHANGED when the recorded plan is no prefix.
    """
    problem = plan_problems(steps, at.settings)
    if problem is not None:
        raise Refused(Code.BAD_REQUEST, problem, field=problem.split(":", 1)[0].removeprefix("plan."))
    old = run.plan.steps if run.plan is not None else ()
    if run.plan is not None and tuple(steps) == old[: len(steps)]:
        return run, PlanAnswer(run.plan, changed=False)
    if tuple(steps[: len(old)]) != old:
        raise Refused(
            Code.PLAN_CHANGED,
            "the recorded plan is no beginning of this one: a plan only grows at its end",
            field="steps",
        )
    _refuse_looser(steps[len(old) :], len(old))
    if run.plan is None:
        plan = Plan(tuple(steps), plan_digest(steps), at.now, PlanSource.WORKER, initial=len(steps))
    else:
        plan = replace(run.plan, steps=tuple(steps), digest=plan_digest(steps))
    return replace(run, plan=plan), PlanAnswer(plan, changed=True)
