"""Answers of the worker API (`docs/design/0001-parts-and-wire.md`, section 2). Unknown fields are let through: gateways may be newer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

__all__ = [
    "BeginAnswer",
    "Claim",
    "Denied",
    "Done",
    "Expired",
    "Failed",
    "Go",
    "Halt",
    "Leave",
    "MalformedAnswer",
    "Plan",
    "PlanAnswer",
    "PlannedStep",
    "Probe",
    "ProblemBody",
    "Remaining",
    "Renewed",
    "Reported",
    "StoredResult",
    "View",
    "Wait",
    "read",
    "read_begin",
]


class MalformedAnswer(Exception):
    """A 200 answer that is not what the API promises: another program answered, or versions do not fit."""


class Wire(BaseModel):
    """camelCase outside, snake_case inside."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


T = TypeVar("T", bound=Wire)


class PlannedStep(Wire):
    """A step of the recorded plan with its effective settings."""

    id: str
    action: str
    recovery: str = ""
    timeout_seconds: float = 60.0
    attempts: int = 1


class Plan(Wire):
    """The recorded plan."""

    digest: str = ""
    steps: tuple[PlannedStep, ...] = ()

    def step(self, step_id: str) -> PlannedStep | None:
        """Return the step of that id, if it is planned."""
        return next((step for step in self.steps if step.id == step_id), None)


class View(Wire):
    """What is recorded of one step."""

    state: str = ""
    attempt: int = 0
    payload_digest: str | None = None
    result: JsonValue = None
    result_stored: bool = True
    result_digest: str | None = None
    result_bytes: int | None = None
    reason: str = ""
    message: str = ""
    final: bool = False


class Remaining(Wire):
    """Room that is left in the run's record: bytes, and steps that may still be planned."""

    bytes: int | None = None
    steps: int | None = None


class Claim(Wire):
    """The answer to a claim. Seconds throughout."""

    token: int
    token_proof: str | None = None
    run_id: str = Field(alias="runID")
    namespace: str = ""
    name: str = ""
    uid: str = ""
    phase: str = ""
    input: JsonValue = None
    plan: Plan | None = None
    ledger: dict[str, View] = Field(default_factory=dict)
    lease_seconds: float = 60.0
    margin_seconds: float = 10.0
    remaining: Remaining = Remaining()
    stop: JsonValue = None


class PlanAnswer(Wire):
    """The plan as it is recorded now."""

    plan: Plan


class Go(Wire):
    """Perform the answered payload now."""

    outcome: Literal["Go"]
    attempt: int
    key: str
    payload: JsonValue = None
    payload_digest: str = ""
    payload_changed: bool = False
    time_left_seconds: float
    timeout_seconds: float


class Done(Wire):
    """The step is done: here is its result."""

    outcome: Literal["Done"]
    result: JsonValue = None
    result_digest: str | None = None
    result_bytes: int | None = None
    result_stored: bool = True
    payload_changed: bool = False
    attempt: int = 0


class Failed(Wire):
    """The step failed for good."""

    outcome: Literal["Failed"]
    reason: str = ""
    message: str = ""
    attempt: int = 0


class Denied(Wire):
    """A person denied the step."""

    outcome: Literal["Denied"]
    reason: str = ""
    message: str = ""


class Wait(Wire):
    """Ask again after a pause."""

    outcome: Literal["Wait"]
    retry_after_seconds: float = 1.0
    reason: str = ""


class Expired(Wire):
    """The attempt began and its go never came in time: say that it was not started, then ask anew."""

    outcome: Literal["Expired"]
    attempt: int


class Probe(Wire):
    """Nobody knows whether the attempt happened: ask the provider, from `retry_after_seconds` on."""

    outcome: Literal["Probe"]
    attempt: int
    key: str
    payload: JsonValue = None
    payload_digest: str = ""
    retry_after_seconds: float = 0.0


BeginAnswer = Go | Done | Failed | Denied | Wait | Probe
_BEGIN: TypeAdapter[BeginAnswer] = TypeAdapter(Annotated[BeginAnswer, Field(discriminator="outcome")])


class Leave(Wire):
    """Whether a probe may start now; `as_of` is handed back with its verdict."""

    outcome: Literal["Go", "Wait"]
    as_of: str | None = None
    retry_after_seconds: float = 0.0


class Reported(Wire):
    """What became of the step through a report."""

    outcome: str
    retry_after_seconds: float = 0.0
    result: JsonValue = None
    result_digest: str | None = None
    result_bytes: int | None = None
    result_stored: bool = True


class Renewed(Wire):
    """The lease goes on; `stop` says that the worker must not."""

    lease_seconds: float = 60.0
    stop: JsonValue = None


class Halt(Wire):
    """The question that was opened, and the command that answers it."""

    question: str = ""
    patch: str | None = None


class StoredResult(Wire):
    """A result out of a record."""

    result: JsonValue = None


class ProblemBody(Wire):
    """RFC 9457, with what Stepfence adds."""

    type: str = ""
    title: str = ""
    status: int = 0
    detail: str = ""
    token: int | None = None
    phase: str | None = None
    field: str | None = None
    retry_after_seconds: float | None = None
    attempt: int | None = None
    question: str | None = None
    patch: str | None = None

    @property
    def code(self) -> str:
        """The last part of `type`."""
        return self.type.rsplit("/", 1)[-1]


def read(kind: type[T], body: Any) -> T:
    """Parse an answer; raise `MalformedAnswer`."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise MalformedAnswer(f"{kind.__name__}: {error.errors(include_input=False, include_url=False)}") from error


def read_begin(body: Any) -> BeginAnswer:
    """Parse the answer to a begin; raise `MalformedAnswer`."""
    try:
        return _BEGIN.validate_python(body)
    except ValidationError as error:
        raise MalformedAnswer(f"begin: {error.errors(include_input=False, include_url=False)}") from error
