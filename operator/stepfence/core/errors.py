"""What can go wrong, grouped by who must act.

StepfenceError
├── Refused    the caller must change something (or wait): the rule said no, nothing was written
├── Conflict   nobody: somebody else wrote first, read again and decide again
└── Unknown    nobody yet: the reply to a write was lost, read again to see whether it took effect
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Code", "Conflict", "Refused", "StepfenceError", "Unknown"]


class Code(StrEnum):
    """Stable names of refusals; the last part of a problem's `type` (RFC 9457)."""

    FENCED = "fenced"
    HALTED = "halted"
    AWAITING_APPROVAL = "awaiting-approval"
    HELD = "held"
    DRAINING = "draining"
    CANCELLED = "cancelled"
    TERMINAL = "terminal"
    BUSY = "busy"
    BEGIN_EXPIRED = "begin-expired"
    HOLDER_ALIVE = "holder-alive"
    STORE_CONFLICT = "store-conflict"
    ATTEMPT_MISMATCH = "attempt-mismatch"
    NOT_IN_FLIGHT = "not-in-flight"
    PAYLOAD_CHANGED = "payload-changed"
    PLAN_CHANGED = "plan-changed"
    PLAN_MISSING = "plan-missing"
    UNKNOWN_STEP = "unknown-step"
    NO_ROOM = "no-room"
    NOT_SETTLED = "not-settled"
    TOO_EARLY = "too-early"
    ALREADY_ANSWERED = "already-answered"
    NO_SUCH_QUESTION = "no-such-question"
    WRONG_VERDICT = "wrong-verdict"
    BAD_REQUEST = "bad-request"
    TOO_LARGE = "too-large"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not-found"
    OVER_BUDGET = "over-budget"
    STORE_UNAVAILABLE = "store-unavailable"


class StepfenceError(Exception):
    """Base of every error that Stepfence raises on purpose."""


class Refused(StepfenceError):
    """The rule said no and nothing was written.

    `code` is stable; `detail` is for people; `field` names the input that is wrong; `retry_after` (seconds) is set where waiting helps.
    """

    def __init__(
        self,
        code: Code,
        detail: str,
        *,
        field: str | None = None,
        retry_after: float | None = None,
        question: str | None = None,
        attempt: int | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.field = field
        self.retry_after = retry_after
        self.question = question
        self.attempt = attempt


class Conflict(StepfenceError):
    """The stored version or token is not the one that was read: read again and decide again."""


class Unknown(StepfenceError):
    """The reply to a store write was lost: it may or may not have taken effect."""
