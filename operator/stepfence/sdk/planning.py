"""The plan as a worker submits it: once, before its first step, growing at its end only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from stepfence.core.words import Action, Recovery

__all__ = ["PlanStep", "plan_document"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """One planned step. What is None takes the default of the AgentRun API; times in seconds.

    A worker's plan may be stricter than the defaults, never looser; `spec.plan` may.
    """

    id: str
    action: Action = Action.CREATE
    recovery: Recovery | None = None
    timeout_seconds: int | None = None
    settle_seconds: int | None = None
    attempts: int | None = None
    backoff_seconds: int | None = None
    idempotency_key_ttl_seconds: int | None = None
    approval: bool = False
    approval_expires_after_seconds: int | None = None
    probe_give_up_after_seconds: int | None = None

    def document(self) -> dict[str, JsonValue]:
        """Return the step as the API spells it."""
        named: dict[str, JsonValue] = {
            "id": self.id,
            "action": self.action.value,
            "recovery": self.recovery.value if self.recovery else None,
            "timeoutSeconds": self.timeout_seconds,
            "settleSeconds": self.settle_seconds,
            "attempts": self.attempts,
            "backoffSeconds": self.backoff_seconds,
            "idempotencyKeyTTLSeconds": self.idempotency_key_ttl_seconds,
        }
        if self.approval or self.approval_expires_after_seconds is not None:
            expiry = self.approval_expires_after_seconds
            named["approval"] = {} if expiry is None else {"expiresAfterSeconds": expiry}
        if self.probe_give_up_after_seconds is not None:
            named["probe"] = {"giveUpAfterSeconds": self.probe_give_up_after_seconds}
        return {key: value for key, value in named.items() if value is not None}


def plan_document(steps: Sequence[PlanStep | Mapping[str, JsonValue]]) -> list[JsonValue]:
    """Return the steps as JSON; mappings are passed on as they are."""
    return [step.document() if isinstance(step, PlanStep) else dict(step) for step in steps]
