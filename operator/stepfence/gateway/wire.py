"""What workers ask, as JSON. Fields that we do not know are passed over: workers may be newer.

Requests are read strictly (a number in quotes is refused, naming the field), because a value that was guessed here is stored for good.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, StrictBool, StrictInt, model_validator
from pydantic.alias_generators import to_camel

from stepfence.core.fencing import Release
from stepfence.core.words import Action, Recovery

__all__ = [
    "BeginBody",
    "Body",
    "ClaimBody",
    "CompleteBody",
    "FailBody",
    "FinishBody",
    "LoseBody",
    "PlanBody",
    "ProbeBody",
    "ProbeVerdict",
    "ReasonBody",
    "ReleaseBody",
    "StepBody",
    "Wire",
]

REASON_CHARACTERS = 128
MESSAGE_CHARACTERS = 1024
_YEAR = 31_536_000
_DAY = 86_400
_LARGEST = 2**53 - 1


class Wire(BaseModel):
    """camelCase outside, snake_case inside."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


def _cut(limit: int) -> BeforeValidator:
    # A report must not be lost because its text is long, or is none: half a surrogate pair, as in names of files that are no UTF-8.
    return BeforeValidator(lambda value: value.encode(errors="replace").decode()[:limit] if isinstance(value, str) else value)


Number = Annotated[StrictInt, Field(ge=0, le=_LARGEST)]
Attempt = Annotated[StrictInt, Field(ge=1, le=_LARGEST)]
Reason = Annotated[str, _cut(REASON_CHARACTERS), Field(description=f"CamelCase, cut to {REASON_CHARACTERS} characters.")]
Message = Annotated[str, _cut(MESSAGE_CHARACTERS), Field(description=f"For people, cut to {MESSAGE_CHARACTERS} characters.")]
RequestId = Annotated[
    str,
    Field(alias="requestID", pattern=r"^[A-Za-z0-9_-]{1,64}$", description="Random for each call, the same for its repeats."),
]


class ClaimBody(Wire):
    """A claim: the only call without a token."""

    request_id: RequestId
    lease: StrictBool = Field(default=False, description="Reserved.")


class Body(Wire):
    """What every other call has."""

    request_id: RequestId
    token: Number = Field(description="The fencing token of the claim.")


class ApprovalBody(Wire):
    """The step waits for a person's approval."""

    expires_after_seconds: Annotated[StrictInt, Field(ge=1, le=_YEAR)] | None = None


class ProbeSettings(Wire):
    """A probe settles the step; a person is asked once it gave up."""

    give_up_after_seconds: Annotated[StrictInt, Field(ge=1, le=_YEAR)] = 300


class StepBody(Wire):
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
