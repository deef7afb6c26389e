"""The nouns of the design as frozen values. No behaviour beyond what a value can tell of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from stepfence.core.entry import Answer, Attempt, Body, Entry, Plan, StepSpec
from stepfence.core.words import NO_TOKEN, Outcome, RunId, Token, Verdict

__all__ = [
    "Answer",
    "Attempt",
    "Body",
    "Decision",
    "Ending",
    "Entry",
    "Hold",
    "Holder",
    "Plan",
    "Run",
    "RunSpec",
    "StepSpec",
    "Worker",
]


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer as a person wrote it into `spec.decisions`. `problem` says why it cannot be taken, whatever it answers."""

    verdict: Verdict
    result: str | None = None
    reason: str = ""
    force: bool = False
    by: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """The pod that made the current claim."""

    pod: str
    pod_uid: str
    request_id: str
    claimed_at: datetime
    renewed_at: datetime
    lease: int
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Worker:
    """The numbered Job that is the current (or last) worker. `failures` counts workers in a row that brought nothing forward."""

    number: int
    job: str
    template_hash: str
    started_at: datetime
    pod_uid: str | None = None
    progressed: bool = False
    exit_reason: str = ""
    message: str = ""
    failures: int = 0
    retry_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """An end that is decided while steps are still open (R12)."""

    outcome: Outcome
    reason: str
    message: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Hold:
    """An open question about the run itself: `run.<question>`, verdict Resume or Abandon."""

    question: str
    reason: str
    message: str
    since: datetime


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What people wrote. Everything but suspend, cancel, decisions and the template is immutable."""

    run_id: str | None = None
    input: str | None = None
    steps: tuple[StepSpec, ...] | None = None
    template_hash: str = ""
    # Image of the worker's container, as the template has it now: figures are told apart by it.
    image: str = ""
    backoff_limit: int = 6
    active_deadline: int | None = None
    history: int | None = None
    suspend: bool = False
    cancel: bool = False
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """One AgentRun: its spec and the whole of what is recorded of it."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: RunSpec
    observed_generation: int = -1
    version: int = 0
    run_id: RunId | None = None
    token: Token = NO_TOKEN
    started_at: datetime | None = None
    active_seconds: float = 0.0
    active_since: datetime | None = None
    outcome: Outcome | None = None
    reason: str = ""
    message: str = ""
    result: Body | None = None
    finished_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    ending: Ending | None = None
    hold: Hold | None = None
    hold_answers: tuple[Answer, ...] = ()
    worker: Worker | None = None
    holder: Holder | None = None
    plan: Plan | None = None
    ledger: Mapping[str, Entry] = field(default_factory=dict)
    # What the controller last saw of the world and cannot be derived from the rest: shown in WorkerReady and LedgerWritable.
    worker_problem: tuple[str, str] | None = None
    deleting: bool = False

    @property
    def identity(self) -> RunId:
        """The stable run id: `<namespace>/<spec.runID>`, else `<namespace>/<name>/<uid>`."""
        if self.run_id is not None:
            return self.run_id
        return RunId(f"{self.namespace}/{self.spec.run_id}" if self.spec.run_id else f"{self.namespace}/{self.name}/{self.uid}")

    @property
    def terminal(self) -> bool:
        """Whether the outcome is recorded."""
        return self.outcome is not None
