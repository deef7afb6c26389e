"""What an API server would refuse of a plan, refused here: there is no schema in the way of a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from stepfence.core.plan import effective, plan_problems
from stepfence.core.words import Settings
from stepfence.gateway.problems import field_of
from stepfence.gateway.wire import StepBody
from stepfence.schema.decode import step_request
from stepfence.sdk.planning import PlanStep, plan_document
from stepfence.sdk.results import encode

__all__ = ["checked_plan"]


def checked_plan(plan: Sequence[PlanStep | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps as JSON. Raises `ValueError` naming a field that is wrong or not known, `TypeError` for no list of steps."""
    __tracebackhide__ = True  # what is wrong stands in the test that called us
    given: Any = plan  # of tests, which nobody has checked
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or not all(isinstance(step, PlanStep | Mapping) for step in given):
        raise TypeError("plan: a list of steps is needed, each a mapping as in spec.plan.steps or a PlanStep")
    steps: list[dict[str, Any]] = []
    for index, step in enumerate(plan_document(plan)):
        try:
            StepBody.model_validate_json(encode(step, f"plan[{index}]"), extra="forbid", by_name=False, by_alias=True)
        except ValidationError as invalid:
            first = invalid.errors()[0]
            what = "no such field" if first["type"] == "extra_forbidden" else first["msg"]
            raise ValueError(f"{field_of(('plan', 'plan', index, *first['loc']))}: {what}") from None
        steps.append(dict(step))  # type: ignore[arg-type]
    problem = plan_problems([effective(step_request(step)) for step in steps], Settings())
    if problem is not None:
        raise ValueError(problem.replace("plan.steps", "plan", 1))
    return steps
