"""What workers are answered, as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from stepfence.gateway.wire import Wire

__all__ = [
    "BeginAnswer",
    "ClaimAnswer",
    "DeniedAnswer",
    "DoneAnswer",
    "DrainAnswer",
    "EndAnswer",
    "FailedAnswer",
    "FinishAnswer",
    "GoAnswer",
    "HaltAnswer",
    "LeaveAnswer",
    "LeaveWait",
    "PlanAnswer",
    "PlanView",
    "PlannedStep",
    "ProbeAnswer",
    "ReleaseAnswer",
    "RemainingView",
    "RenewAnswer",
    "Reported",
    "ResultAnswer",
    "StopView",
    "View",
    "WaitAnswer",
]


class View(Wire):
    """What is recorded of one step."""

    state: str
    attempt: int
    key: str
    payload_digest: str | None
    result: JsonValue
    result_stored: bool
    result_digest: str | None
    result_bytes: int | None
    reason: str
    message: str
    final: bool
    failures: int


class PlannedStep(Wire):
    """A recorded step with its effective settings."""

    id: str
    action: str
    recovery: str
    timeout_seconds: int
    settle_seconds: int
    attempts: int
    backoff_seconds: int
    idempotency_key_ttl_seconds: int | None = Field(default=None, alias="idempotencyKeyTTLSeconds")
    approval: dict[str, Any] | None = None
    probe: dict[str, Any] | None = None


class PlanView(Wire):
    """The recorded plan."""

    digest: str
    accepted_at: datetime
    source: str
    initial_steps: int
    steps: list[PlannedStep]


class RemainingView(Wire):
    """Room that is left."""

    bytes: int
    steps: int


class StopView(Wire):
    """Why the worker must stop: the code of a problem, and its text."""

    code: str
    detail: str


class ClaimAnswer(Wire):
    """Everything that a worker needs to replay."""

    token: int
    token_proof: str | None = Field(default=None, description="Hand it back with every call: it shows that the token was given.")
    run_id: str = Field(alias="runID")
    namespace: str
    name: str
    uid: str
    phase: str
    input: JsonValue
    plan: PlanView | None
    ledger: dict[str, View]
    lease_seconds: int
    margin_seconds: int
    remaining: RemainingView
    stop: StopView | None


class PlanAnswer(Wire):
    """The plan as it is recorded now."""

    plan: PlanView
    token: int


class GoAnswer(Wire):
    """Perform the answered payload now: the intent is stored."""

    outcome: Literal["Go"] = "Go"
    attempt: int
    key: str
    payload: JsonValue
    payload_digest: str
    payload_changed: bool
    time_left_seconds: float
    timeout_seconds: int


class DoneAnswer(Wire):
    """Done before: the recorded result."""

    outcome: Literal["Done"] = "Done"
    result: JsonValue
    result_digest: str | None
    result_bytes: int | None
    result_stored: bool
    payload_changed: bool
    attempt: int


class FailedAnswer(Wire):
    """Failed for good."""

    outcome: Literal["Failed"] = "Failed"
    reason: str
    message: str
    attempt: int


class DeniedAnswer(Wire):
    """A person said no."""

    outcome: Literal["Denied"] = "Denied"
    reason: str
    message: str


class WaitAnswer(Wire):
    """Ask again later: back-off, or the old attempt may still land."""

    outcome: Literal["Wait"] = "Wait"
    retry_after_seconds: float
    reason: str


class ProbeAnswer(Wire):
    """The outcome of this attempt is unknown: probe for it."""

    outcome: Literal["Probe"] = "Probe"
    attempt: int
    key: str
    payload: JsonValue
    payload_digest: str
    retry_after_seconds: float


BeginAnswer = Annotated[
    GoAnswer | DoneAnswer | FailedAnswer | DeniedAnswer | WaitAnswer | ProbeAnswer,
    Field(discriminator="outcome"),
]


class Reported(View):
    """What became of the step; `outcome` is its state."""

    outcome: str


class LeaveAnswer(Wire):
    """Probe now; hand `asOf` back with the verdict."""

    outcome: Literal["Go"] = "Go"
    as_of: str
    retry_after_seconds: float = 0.0


class LeaveWait(Wire):
    """A probe started now could not be believed yet."""

    outcome: Literal["Wait"] = "Wait"
    retry_after_seconds: float


class RenewAnswer(Wire):
    """The lease goes on."""

    lease_seconds: int
    stop: StopView | None


class DrainAnswer(Wire):
    """The worker begins nothing new."""

    draining: Literal[True] = True


class ReleaseAnswer(Wire):
    """The run is free."""

    released: Literal[True] = True


class FinishAnswer(Wire):
    """The run succeeded."""

    outcome: str


class EndAnswer(Wire):
    """The run failed, or (`ending`) will once no step is open."""

    outcome: str | None = None
    ending: str | None = None


class HaltAnswer(Wire):
    """The question that was opened, and the command that answers it."""

    question: str
    patch: str


class ResultAnswer(Wire):
    """A stored result."""

    result: JsonValue
    result_digest: str
    result_bytes: int
