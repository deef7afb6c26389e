"""The words of the design: ids, enums, settings. No behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType

__all__ = [
    "HALTING_ACTIONS",
    "NO_TOKEN",
    "Action",
    "At",
    "Outcome",
    "PlanSource",
    "Recovery",
    "RunId",
    "Settings",
    "State",
    "StepId",
    "Token",
    "Verdict",
]

RunId = NewType("RunId", str)
StepId = NewType("StepId", str)
Token = NewType("Token", int)
NO_TOKEN = Token(0)


class Action(StrEnum):
    """What may safely happen twice."""

    READ = "Read"
    UPSERT = "Upsert"
    CREATE = "Create"
    PAYMENT = "Payment"
    DELETE = "Delete"


# These must not be left in doubt by a terminal run (R12).
HALTING_ACTIONS = frozenset({Action.CREATE, Action.PAYMENT, Action.DELETE})


class Recovery(StrEnum):
    """Who settles a step whose outcome is unknown."""

    RERUN = "Rerun"
    PROBE = "Probe"
    HALT = "Halt"
    RESEND_WITH_KEY = "ResendWithKey"


class State(StrEnum):
    """States of a ledger entry; a step without an entry is `Planned`."""

    PLANNED = "Planned"
    AWAITING_APPROVAL = "AwaitingApproval"
    APPROVED = "Approved"
    IN_FLIGHT = "InFlight"
    DONE = "Done"
    FAILED = "Failed"
    UNKNOWN = "Unknown"
    DENIED = "Denied"


class Verdict(StrEnum):
    """What a person (or, for the middle two, a probe) can say."""

    APPROVE = "Approve"
    DENY = "Deny"
    HAPPENED = "Happened"
    DID_NOT_HAPPEN = "DidNotHappen"
    ABANDON = "Abandon"
    RESUME = "Resume"


class Outcome(StrEnum):
    """What is final about a run."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


class PlanSource(StrEnum):
    """Who brought the plan."""

    SPEC = "Spec"
    WORKER = "Worker"


@dataclass(frozen=True, slots=True)
class Settings:
    """Operator settings; numbers are seconds or bytes."""

    margin: int = 10
    lease: int = 60
    unresponsive: int = 300
    create_refused_after: int = 10
    # A pod that cannot start (no image, refused) is given up, as a failed worker, after this long.
    start_failed_after: int = 30
    backoff_base: int = 5
    backoff_cap: int = 300
    object_bytes: int = 128 * 1024
    inline_bytes: int = 1024
    record_bytes: int = 256 * 1024
    input_bytes: int = 64 * 1024
    max_steps: int = 256
    # What one run may refer to in records: a body for each step and the run's own result, 64 KiB a step.
    run_records: int = 256 + 1
    run_record_bytes: int = 256 * 64 * 1024
    # A record that no run refers to is swept when it is older than this, in seconds: far longer than a write is on its way.
    orphan_grace: int = 900
    history: int = 3
    # What a question's command begins with; the rest is the same with and without a cluster.
    command: str = "kubectl"


@dataclass(frozen=True, slots=True)
class At:
    """The inputs that a pure function cannot make: the time, 128 random bits for this one write, the settings."""

    now: datetime
    nonce: str
    settings: Settings = field(default_factory=Settings)
