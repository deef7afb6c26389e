"""What a worker's code can meet.

    StepfenceError                  an Exception: the program may handle it
    ├── NotInARun, NotFinished, CallRefused
    └── StepFailed, StepDenied, PayloadChanged, ResultNotStored, ResultNotReadable
    NotApplied                      raised by the user's code: this attempt surely did nothing
    Stop                            a BaseException: the worker ends
    └── Halted, Draining, Fenced, Cancelled, RunFailed, Unreachable, Unsettled

Agent frameworks hand an `Exception` of a tool to the model as text, which then plans around it. A stop must not be planned around,
so it is a `BaseException`.
"""

from __future__ import annotations

import itertools
import math
from datetime import timedelta
from typing import Any, ClassVar, Self

from stepfence.core.errors import StepfenceError

__all__ = [
    "CallRefused",
    "Cancelled",
    "Draining",
    "Fenced",
    "Halted",
    "NotApplied",
    "NotFinished",
    "NotInARun",
    "PayloadChanged",
    "ResultNotReadable",
    "ResultNotStored",
    "RunFailed",
    "StepDenied",
    "StepFailed",
    "StepfenceError",
    "Stop",
    "Unreachable",
    "Unsettled",
    "moment",
    "pause_of",
]

# Numbers moments of this process: what was said after what.
moment = itertools.count(1).__next__
LONGEST_PAUSE = 86_400.0


class NotInARun(StepfenceError):
    """The process is no worker of a run: a variable or file that the operator injects is missing. Nothing is passed through."""


class NotFinished(StepfenceError):
    """The block was left without `finish`, `fail` or `halt`: leaving it is no success."""


class CallRefused(StepfenceError):
    """The gateway refused a call because of what the program asked. `code` is stable, `field` names what is wrong."""

    def __init__(self, code: str, detail: str, *, field: str | None = None) -> None:
        where = f" ({field})" if field else ""
        super().__init__(f"{code}: {detail}{where}")
        self.code = code
        self.detail = detail
        self.field = field


class StepError(StepfenceError):
    """Base of what is recorded of one step."""

    def __init__(self, step: str, message: str) -> None:
        super().__init__(f"step {step!r}: {message}")
        self.step = step


class StepFailed(StepError):
    """The step failed for good: its attempts are used up or the failure is final. Raised again on every replay."""

    def __init__(self, step: str, reason: str, message: str, attempt: int) -> None:
        super().__init__(step, f"failed in attempt {attempt}: {reason}: {message}")
        self.reason = reason
        self.message = message
        self.attempt = attempt


class StepDenied(StepError):
    """A person denied the step. It will not be done."""

    def __init__(self, step: str, reason: str, message: str) -> None:
        super().__init__(step, f"denied: {message or reason}")
        self.reason = reason
        self.message = message


class PayloadChanged(StepError):
    """The step's id stands for another payload already: nothing is performed.

    Raised when one program uses one id for two payloads, when the agent appended the step to its plan, and for who asked for it by
    `on_payload_change="error"`. `recorded` and `brought` are digests, `field` is the first place that differs (a JSON path); each is None
    where it is not known. Never a value: it may be secret.
    """

    def __init__(
        self, step: str, detail: str, *, recorded: str | None = None, brought: str | None = None, field: str | None = None
    ) -> None:
        where = f"; the first difference is at {field}" if field else ""
        digests = f": {recorded or 'unknown'}, now {brought}" if brought else ""
        super().__init__(step, f"{detail}{digests}{where}")
        self.detail = detail
        self.recorded = recorded
        self.brought = brought
        self.field = field


class ResultNotStored(StepError):
    """The step is done, but its result was too large to keep: only size (bytes) and digest are known."""

    def __init__(self, step: str, size: int | None, digest: str | None) -> None:
        super().__init__(step, f"done, but its result of {size} bytes was too large to keep ({digest})")
        self.size = size
        self.digest = digest


class ResultNotReadable(StepError):
    """The step is done and will not be repeated, but its result cannot be read: it is no JSON, or not of the type that was asked for.

    Raised live and on every replay alike. `recorded` is what is recorded of the result, plain JSON: a program may go on with it.
    """

    def __init__(self, step: str, why: str, recorded: Any, about: str) -> None:
        super().__init__(step, f"Done, but {why}. Recorded is {about}")
        self.why = why
        self.recorded = recorded


class NotApplied(Exception):
    """Raise it in `perform` to say: this attempt surely did nothing, and will not.

    `final` ends the step whatever attempts are left. `retry_after` (seconds, a day at most) is the least pause before the next attempt.
    `reason` is a CamelCase word for people and metrics. A field that is of no use is passed over: what it says must be heard.

    It is not believed, and the step is in doubt, when a request of the attempt was lost, or still on its way as it was said.
    """

    # For a class that is derived from it and calls no `__init__`.
    message: str = ""
    final: bool = False
    reason: str = "NotApplied"
    said_at: int
    _retry_after: float | None = None
    # Set where Stepfence itself draws the conclusion: it speaks of one request, which got an answer of this `status` (None: it had none).
    of_one_request: bool = False
    status: int | None = None

    def __new__(cls, *given: object, **_more: object) -> Self:
        """Note the moment, whatever `__init__` a class of the program's own has."""
        word = super().__new__(cls, *given)
        word.said_at = moment()
        return word

    def __init__(
        self, message: str = "", *, final: bool = False, retry_after: float | timedelta | None = None, reason: str = "NotApplied"
    ) -> None:
        super().__init__(message)
        self.message = message
        self.final = final
        self.retry_after = retry_after
        self.reason = _word(reason) or type(self).reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy it to another process without the moment at which it was said: there it means nothing."""
        return type(self), self.args, {**self.__dict__, "said_at": 0}

    @property
    def retry_after(self) -> float | None:
        """The least pause in seconds, None when none was asked for."""
        return self._retry_after

    @retry_after.setter
    def retry_after(self, value: float | timedelta | None) -> None:
        self._retry_after = pause_of(value)


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def pause_of(value: Any) -> float | None:
    """Return a pause in seconds that can be waited for, between none and a day; None for what is none, as NaN.

    A provider may ask for any pause, and how long it is must not keep a report from being heard.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if value is None or isinstance(value, bool):
        return None
    try:
        seconds = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        seconds = math.inf if value > 0 else 0.0
    except (TypeError, ValueError):
        return None
    return None if math.isnan(seconds) else min(max(0.0, seconds), LONGEST_PAUSE)


class Stop(BaseException):
    """The worker ends. A stop latches: each later begin raises it again.

    `exit_code` is the process's; `release_reason` is told to the gateway, None when there is nothing to release.
    """

    exit_code: ClassVar[int] = 76
    release_reason: ClassVar[str | None] = "Halted"

    def __init__(self, detail: str, *, question: str | None = None, patch: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.question = question
        self.patch = patch

    def again(self) -> Self:
        """Return a fresh copy to raise elsewhere, so that tracebacks do not pile up on one object."""
        return type(self)(self.detail, question=self.question, patch=self.patch)


class Halted(Stop):
    """A person must decide first: `question` names what, `patch` is the command that answers."""


class Draining(Stop):
    """The worker was told to go; the run goes on elsewhere."""

    exit_code = 75
    release_reason = "Drained"


class Fenced(Stop):
    """Another worker holds the run, or this pod is no longer its worker. There is nothing to release."""

    exit_code = 75
    release_reason = None


class Cancelled(Stop):
    """The run is ending or over: cancelled, past its deadline, failed, or deleted."""


class RunFailed(Stop):
    """The program ended the run by `run.fail`."""

    exit_code = 77
    release_reason = "Failed"


class Unreachable(Stop):
    """The gateway did not answer for too long. Nothing advances without it, and there is no local fallback."""

    exit_code = 1
    release_reason = "Error"


class Unsettled(Stop):
    """A step that may be begun again ended in doubt again and again: the next worker tries after a pause."""

    exit_code = 1
    release_reason = "Error"
