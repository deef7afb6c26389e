"""What workers ask, as JSON. Fields that we do not know are passed over: workers may be newer.

What is asked before anything was done is read strictly (a number in quotes is refused, naming the field), because a value that was guessed
here is stored for good. What is reported is read as far as it can be read (`mending`): a truth that is refused for its form is lost. Only
token and attempt must be sure, for they say what the report is about.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    StrictInt,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from stepfence.core.fencing import Release
from stepfence.core.kept import not_kept
from stepfence.core.words import Action, Recovery, Verdict
from stepfence.gateway import mending

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
    "ReportBody",
    "StepBody",
    "Wire",
]

_YEAR = 31_536_000
_DAY = 86_400
_LARGEST = 2**53 - 1


class Wire(BaseModel):
    """camelCase outside, snake_case inside."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


def _cut(limit: int) -> BeforeValidator:
    return BeforeValidator(lambda value: mending.cut(value, limit) if isinstance(value, str) else value)


Number = Annotated[StrictInt, Field(ge=0, le=_LARGEST)]
_REASON = Field(description=f"CamelCase, cut to {mending.REASON_CHARACTERS} characters.")
_MESSAGE = Field(description=f"For people, cut to {mending.MESSAGE_CHARACTERS} characters.")
Reason = Annotated[str, _cut(mending.REASON_CHARACTERS), _REASON]
Message = Annotated[str, _cut(mending.MESSAGE_CHARACTERS), _MESSAGE]
_DIGEST = Field(json_schema_extra={"pattern": "^sha256:[0-9a-f]{64}$"})
_REQUEST_ID = r"^[A-Za-z0-9_-]{1,64}$"
_ABOUT_FENCE = "The fencing token of the claim."
_PROOF = Field(max_length=mending.PROOF_CHARACTERS)
_ABOUT_PROOF = "As the claim answered it. Without it a token newer than the stored one is `fenced`; with it the run is held."
_ABOUT_ID = "Random for each call, the same for its repeats."
RequestId = Annotated[str, Field(alias="requestID", pattern=_REQUEST_ID, description=_ABOUT_ID)]


def _whole(field: str) -> BeforeValidator:
    return BeforeValidator(functools.partial(mending.as_whole, field=field))


def _flag(field: str) -> BeforeValidator:
    return BeforeValidator(functools.partial(mending.as_flag, field=field))


def _verdict(value: Any) -> Any:
    if value is None or value in list(ProbeVerdict):
        return value
    mending.mended("verdict")
    return ProbeVerdict.CANNOT_TELL


def _release(value: Any) -> Any:
    if value in list(Release):
        return value
    mending.mended("reason")
    return Release.ERROR


def _result(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    try:
        return read(value)
    except ValidationError:  # it was JSON, so it nests deeper than pydantic looks: what is deeper is answered to nobody
        mending.mended("result")
        return not_kept(value, "the result nests too deep")


# Of reports. What the document says of them is what a worker should send; what is read is more.
ToldToken = Annotated[Number, _whole("token"), Field(description=_ABOUT_FENCE)]
ToldProof = Annotated[Annotated[str, _PROOF] | None, BeforeValidator(mending.as_proof), Field(description=_ABOUT_PROOF)]
ToldAttempt = Annotated[Annotated[StrictInt, Field(ge=1, le=_LARGEST)], _whole("attempt")]
ToldReason = Annotated[str, BeforeValidator(mending.as_reason), _REASON]
ToldMessage = Annotated[str, BeforeValidator(mending.as_message), _MESSAGE]
ToldResult = Annotated[JsonValue, WrapValidator(_result)]
ToldId = Annotated[
    str,
    BeforeValidator(mending.as_request_id),
    Field(alias="requestID", description=_ABOUT_ID, json_schema_extra={"pattern": _REQUEST_ID}),
]
ToldSize = Annotated[Annotated[int, Field(ge=0, le=_LARGEST)] | None, BeforeValidator(mending.as_size)]
ToldDigest = Annotated[Annotated[str, _DIGEST] | None, BeforeValidator(mending.as_digest)]
ToldPause = Annotated[Annotated[float, Field(ge=0, le=mending.LONGEST_PAUSE)] | None, BeforeValidator(mending.as_pause)]


class ClaimBody(Wire):
    """A claim: the only call without a token."""

    request_id: RequestId
    lease: StrictBool = Field(default=False, description="Reserved.")


class Body(Wire):
    """What every other call has."""

    request_id: RequestId
    token: Number = Field(description=_ABOUT_FENCE)
    token_proof: Annotated[str, _PROOF] | None = Field(default=None, description=_ABOUT_PROOF)


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


class ReportBody(Body):
    """What became of something. No rule of form keeps it from being heard."""

    # What counts for a field that should be there and is not.
    left_out: ClassVar[Mapping[str, JsonValue]] = {"requestID": None}

    request_id: ToldId
    token: ToldToken
    token_proof: ToldProof = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, said: Any) -> Any:
        return {**cls.left_out, **said} if isinstance(said, dict) else said


class CompleteBody(ReportBody):
    """The attempt succeeded. A result too large for a request is null here and known by its digest and size."""

    left_out = {**ReportBody.left_out, "result": None}

    attempt: ToldAttempt
    result: ToldResult
    result_digest: ToldDigest = None
    result_bytes: ToldSize = None

    @property
    def omitted(self) -> tuple[str, int] | None:
        """Digest and size of a result that was too large to send; one that was sent counts."""
        if self.result is not None or not self.result_digest:
            return None
        return self.result_digest, self.result_bytes or 0

    @property
    def kept(self) -> JsonValue:
        """The result; or the word that there was one, when nothing of use is said of it."""
        if self.result is None and not self.omitted and (self.result_digest is not None or self.result_bytes is not None):
            return not_kept(None, "the worker sent no result, and no digest of it that can be kept")
        return self.result


class LoseBody(ReportBody):
    """Nobody can tell what became of the attempt."""

    left_out = {**ReportBody.left_out, "reason": None}

    attempt: ToldAttempt
    reason: ToldReason
    message: ToldMessage = ""


class FailBody(LoseBody):
    """The attempt surely did nothing."""

    final: Annotated[bool, _flag("final")] = False
    retry_after_seconds: ToldPause = None


class ProbeVerdict(StrEnum):
    """What a probe found."""

    HAPPENED = "Happened"
    DID_NOT_HAPPEN = "DidNotHappen"
    CANNOT_TELL = "CannotTell"


class ProbeBody(ReportBody):
    """Without a verdict it asks leave to probe; with one it names the `asOf` that the leave answered."""

    attempt: ToldAttempt
    as_of: Annotated[datetime | None, BeforeValidator(mending.as_time)] = None
    verdict: Annotated[ProbeVerdict | None, BeforeValidator(_verdict)] = None
    result: ToldResult = None
    give_up: Annotated[bool, _flag("giveUp")] = False

    @property
    def found(self) -> Verdict | None:
        """The verdict; None when it could not tell. A "no" counts only with the moment at which it was asked (R2)."""
        if self.verdict is ProbeVerdict.HAPPENED:
            return Verdict.HAPPENED
        return Verdict.DID_NOT_HAPPEN if self.verdict is ProbeVerdict.DID_NOT_HAPPEN and self.as_of is not None else None


class ReleaseBody(ReportBody):
    """The worker lets the run go."""

    left_out = {**ReportBody.left_out, "reason": None}

    reason: Annotated[Release, BeforeValidator(_release)]


class FinishBody(Body):
    """The run is done."""

    result: JsonValue = None


class ReasonBody(Body):
    """Why the run fails or halts."""

    reason: Reason
    message: Message = ""
