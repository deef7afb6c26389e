"""What worker calls answer, as values; the gateway gives them their JSON shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepfence.core.canonical import Json
from stepfence.core.model import Entry, Plan

__all__ = ["BeginView", "ClaimView", "Remaining", "ResultView", "Standing", "StepView", "Stop"]


@dataclass(frozen=True, slots=True)
class StepView:
    """One ledger entry with its result read back."""

    entry: Entry
    result: Json = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a worker must stop: a refusal's code and text."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands, for a refusal to tell: the current token, the phase, and for each open question the command that answers it."""

    token: int
    phase: str
    patches: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Remaining:
    """Room left in the run's object: bytes, and steps that may still be appended."""

    bytes: int
    steps: int


@dataclass(frozen=True, slots=True)
class ClaimView:
    """The answer to a claim: everything a worker needs to replay."""

    token: int
    token_proof: str | None
    run_id: str
    namespace: str
    name: str
    uid: str
    phase: str
    input: Json
    plan: Plan | None
    ledger: dict[str, StepView]
    lease_seconds: int
    margin_seconds: int
    remaining: Remaining
    stop: Stop | None


@dataclass(frozen=True, slots=True)
class BeginView:
    """The answer to a begin. `payload` is the recorded one, which is what must be performed; None where nothing is."""

    outcome: str
    step: StepView
    key: str
    attempt: int
    payload: Json
    payload_digest: str
    payload_changed: bool
    timeout_seconds: int
    time_left_seconds: float
    retry_after_seconds: float
    reason: str
    image: str


@dataclass(frozen=True, slots=True)
class ResultView:
    """A stored result."""

    result: Json
    digest: str
    size: int
