"""The JSON of the worker API. Fields that we do not know are passed over: workers may be newer.

Requests are read strictly (a number in quotes is refused, naming the field), because a value that was guessed here is stored for good.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, StrictBool, StrictInt, model_validator
from pydantic.alias_generators import to_camel

from stepfence.core.fencing import Release
from stepfence.core.words import Action, Recovery

__all__ = [
    "BeginAnswer",
    "BeginBody",
    "Body",
    "ClaimAnswer",
    "ClaimBody",
    "CompleteBody",
    "DeniedAnswer",
    "DoneAnswer",
    "DrainAnswer",
    "EndAnswer",
    "FailBody",
    "FailedAnswer",
    "FinishAnswer",
    "FinishBody",
    "GoAnswer",
    "HaltAnswer",
    "LeaveAnswer",
    "LeaveWait",
    "LoseBody",
    "PlanAnswer",
    "PlanBody",
    "PlanView",
    "PlannedStep",
    "ProbeAnswer",
    "ProbeBody",
    "ProbeVerdict",
    "ReasonBody",
    "ReleaseAnswer",
    "ReleaseBody",
    "RemainingView",
    "RenewAnswer",
    "Reported",
    "ResultAnswer",
    "StepBody",
    "StopView",
    "View",
    "WaitAnswer",
]

REASON_CHARACTERS = 128
MESSAGE_CHARACTERS = 1024
_YEAR = 31_536_000
_DAY = 86_400
_LARGEST = 2**53 - 1


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


def _cut(limit: int) -> BeforeValidator:
    # A report must not be lost because its text is long.
    return BeforeValidator(lambda value: value[:limit] if isinstance(value, str) else value)


Number = Annotated[StrictInt, Field(ge=0, le=_LARGEST)]
Attempt = Annotated[StrictInt, Field(ge=1, le=_LARGEST)]
Reason = Annotated[str, _cut(REASON_CHARACTERS), Field(description=f"CamelCase, cut to {REASON_CHARACTERS} characters.")]
Message = Annotated[str, _cut(MESSAGE_CHARACTERS), Field(description=f"For people, cut to {MESSAGE_CHARACTERS} characters.")]
RequestId = Annotated[
    str,
    Field(alias="requestID", pattern=r"^[A-Za-z0-9_-]{1,64}$", description="Random for each call, the same for its repeats."),
]


# --- requests -------------------------------------------------------------------------------------------------------------------------


class ClaimBody(_Wire):
    """A claim: the only call without a token."""

    request_id: RequestId
    lease: StrictBool = Field(default=False, description="Reserved.")


class Body(_Wire):
    """What every other call has."""

    request_id: RequestId
    token: Number = Field(description="The fencing token of the claim.")


class ApprovalBody(_Wire):
    """The step waits for a person's approval."""

    expires_after_seconds: Annotated[StrictInt, Field(ge=1, le=_YEAR)] | None = None


class ProbeSettings(_Wire):
    """A probe settles the step; a person is asked once it gave up."""

    give_up_after_seconds: Annotated[StrictInt, Field(ge=1, le=_YEAR)] = 300


class StepBody(_Wire):
    """One step of a plan; what is left out takes its default."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    action: Action = Action.CREATE
    recovery: Recovery | None = None
    timeout_seconds: Annotated[StrictInt, Field(ge=1, le=_DAY)] | None = None
    settle_seconds: Annotated[StrictInt, Field(ge=0, le=_DAY)] | None = None
    attempts: Annotated[StrictInt, Field(ge=1, le=100)] | None = None
    backoff_seconds: Annotated[StrictInt, Field(ge=0, le=_DAY)] | None = None
    idempotency_key_ttl_seconds: Annotated[StrictInt, Field(ge=1, le=_YEAR)] | None = Field(default=None, alias="idempotencyKeyTTLSeconds")
    approval: ApprovalBody | None = None
    probe: ProbeSettings | None = None


class PlanBody(Body):
    """The whole plan, or a longer one that begins with the recorded one."""

    steps: Annotated[list[StepBody], Field(min_length=1, max_length=256)]


class BeginBody(Body):
    """The intent: what is about to be sent."""

    payload: JsonValue
    payload_digest: str | None = Field(default=None, description="`sha256:` over the canonical JSON; checked when it is there.")


class CompleteBody(Body):
    """The attempt succeeded. A result too large for a request is null here and known by its digest and size."""

    attempt: Attempt
    result: JsonValue
    result_digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    result_bytes: Number | None = None

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if (self.result_digest is None) != (self.result_bytes is None) or (self.result_digest is not None and self.result is not None):
            raise ValueError("resultDigest and resultBytes go together, and with a result that is null")
        return self


class LoseBody(Body):
    """Nobody can tell what became of the attempt."""

    attempt: Attempt
    reason: Reason
    message: Message = ""


class FailBody(LoseBody):
    """The attempt surely did nothing."""

    final: StrictBool = False
    retry_after_seconds: Annotated[float, Field(ge=0, le=_DAY, strict=True)] | None = None


class ProbeVerdict(StrEnum):
    """What a probe found."""

    HAPPENED = "Happened"
    DID_NOT_HAPPEN = "DidNotHappen"
    CANNOT_TELL = "CannotTell"


class ProbeBody(Body):
    """Without a verdict it asks leave to probe; with one it names the `asOf` that the leave answered."""

    attempt: Attempt
    as_of: AwareDatetime | None = None
    verdict: ProbeVerdict | None = None
    result: JsonValue = None
    give_up: StrictBool = False

    @model_validator(mode="after")
    def _asked_before(self) -> Self:
        if (self.verdict is None) != (self.as_of is None):
            raise ValueError("verdict and asOf go together: ask leave first, without both")
        return self


class ReleaseBody(Body):
    """The worker lets the run go."""

    reason: Release


class FinishBody(Body):
    """The run is done."""

    result: JsonValue = None


class ReasonBody(Body):
    """Why the run fails or halts."""

    reason: Reason
    message: Message = ""


# --- answers --------------------------------------------------------------------------------------------------------------------------


class View(_Wire):
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


class PlannedStep(_Wire):
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


class PlanView(_Wire):
    """The recorded plan."""

    digest: str
    accepted_at: datetime
    source: str
    initial_steps: int
    steps: list[PlannedStep]


class RemainingView(_Wire):
    """Room that is left."""

    bytes: int
    steps: int


class StopView(_Wire):
    """Why the worker must stop: the code of a problem, and its text."""

    code: str
    detail: str


class ClaimAnswer(_Wire):
    """Everything that a worker needs to replay."""

    token: int
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


class PlanAnswer(_Wire):
    """The plan as it is recorded now."""

    plan: PlanView
    token: int


class GoAnswer(_Wire):
    """Perform the answered payload now: the intent is stored."""

    outcome: Literal["Go"] = "Go"
    attempt: int
    key: str
    payload: JsonValue
    payload_digest: str
    payload_changed: bool
    time_left_seconds: float
    timeout_seconds: int


class DoneAnswer(_Wire):
    """Done before: the recorded result."""

    outcome: Literal["Done"] = "Done"
    result: JsonValue
    result_digest: str | None
    result_bytes: int | None
    result_stored: bool
    payload_changed: bool
    attempt: int


class FailedAnswer(_Wire):
    """Failed for good."""

    outcome: Literal["Failed"] = "Failed"
    reason: str
    message: str
    attempt: int


class DeniedAnswer(_Wire):
    """A person said no."""

    outcome: Literal["Denied"] = "Denied"
    reason: str
    message: str


class WaitAnswer(_Wire):
    """Ask again later: back-off, or the old attempt may still land."""

    outcome: Literal["Wait"] = "Wait"
    retry_after_seconds: float
    reason: str


class ProbeAnswer(_Wire):
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


class LeaveAnswer(_Wire):
    """Probe now; hand `asOf` back with the verdict."""

    outcome: Literal["Go"] = "Go"
    as_of: str
    retry_after_seconds: float = 0.0


class LeaveWait(_Wire):
    """A probe started now could not be believed yet."""

    outcome: Literal["Wait"] = "Wait"
    retry_after_seconds: float


class RenewAnswer(_Wire):
    """The lease goes on."""

    lease_seconds: int
    stop: StopView | None


class DrainAnswer(_Wire):
    """The worker begins nothing new."""

    draining: Literal[True] = True


class ReleaseAnswer(_Wire):
    """The run is free."""

    released: Literal[True] = True


class FinishAnswer(_Wire):
    """The run succeeded."""

    outcome: str


class EndAnswer(_Wire):
    """The run failed, or (`ending`) will once no step is open."""

    outcome: str | None = None
    ending: str | None = None


class HaltAnswer(_Wire):
    """The question that was opened, and the command that answers it."""

    question: str
    patch: str


class ResultAnswer(_Wire):
    """A stored result."""

    result: JsonValue
    result_digest: str
    result_bytes: int
