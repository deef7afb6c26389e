"""The nouns of one step: its plan, its bodies, its attempts, its answers, its ledger entry. Frozen values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from stepfence.core.words import NO_TOKEN, Action, PlanSource, Recovery, State, StepId, Token, Verdict

__all__ = ["Answer", "Attempt", "Body", "Entry", "Plan", "StepSpec"]

_KEPT_ANSWERS = 32


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One planned action with its effective settings; times in seconds."""

    id: StepId
    action: Action = Action.CREATE
    recovery: Recovery = Recovery.HALT
    timeout: int = 60
    settle: int = 10
    attempts: int = 1
    backoff: int = 1
    key_ttl: int | None = None
    approval: bool = False
    approval_expires: int | None = None
    probe_give_up: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The persisted plan (I6): it grows at its end only."""

    steps: tuple[StepSpec, ...]
    digest: str
    accepted_at: datetime
    source: PlanSource
    # How many steps stood in the plan when it was first accepted; later ones were appended by the agent as it went.
    initial: int = 0

    def appended(self, step_id: str) -> bool:
        """Whether the step was appended after the plan was first accepted."""
        return any(step.id == step_id for step in self.steps[self.initial :])

    def step(self, step_id: str) -> StepSpec | None:
        """Return the step of that id, if it is planned."""
        return next((step for step in self.steps if step.id == step_id), None)


@dataclass(frozen=True, slots=True)
class Body:
    """Canonical JSON text of a payload or result: inline, in a record, or (too large to keep) only its digest and size."""

    digest: str
    size: int
    text: str | None = None
    record: str | None = None

    @property
    def stored(self) -> bool:
        """Whether the body itself can be read back."""
        return self.text is not None or self.record is not None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One beginning of a step: kept until it is resolved (R9), the last one until the next begins (R13)."""

    number: int
    token: Token
    request_id: str
    pod_uid: str
    started_at: datetime
    deadline: datetime
    terminated_at: datetime | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A person's answer as recorded (I10). `refused` says why it had no effect."""

    question: str
    verdict: Verdict
    by: str
    at: datetime
    reason: str = ""
    force: bool = False
    verified: bool = False
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """The ledger entry of one begun step."""

    state: State
    key: str
    payload: Body | None = None
    attempt: int = 0
    token: Token = NO_TOKEN
    failures: int = 0
    first_started_at: datetime | None = None
    finished_at: datetime | None = None
    retry_at: datetime | None = None
    final: bool = False
    reason: str = ""
    message: str = ""
    result: Body | None = None
    question: str | None = None
    asked_at: datetime | None = None
    approved_at: datetime | None = None
    gave_up: bool = False
    abandoned: bool = False
    open: tuple[Attempt, ...] = ()
    answers: tuple[Answer, ...] = ()

    @property
    def unresolved(self) -> tuple[Attempt, ...]:
        """Attempts that may still turn out to have happened."""
        return tuple(attempt for attempt in self.open if not attempt.failed)

    def with_answer(self, answer: Answer) -> Entry:
        """Return the entry with one more answer; the oldest ones give way, for an object has a limit."""
        return replace(self, answers=(*self.answers, answer)[-_KEPT_ANSWERS:])

    def recorded(self, number: int) -> Attempt | None:
        """Return the recorded attempt of that number, if it is still kept."""
        return next((attempt for attempt in self.open if attempt.number == number), None)
