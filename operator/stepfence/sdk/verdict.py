"""How the end of a `perform` is told to the ledger: complete, fail (surely nothing happened), or lose (nobody can tell)."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from stepfence.core.moves import NOT_STARTED
from stepfence.core.words import Action
from stepfence.sdk.errors import NotApplied, Stop
from stepfence.sdk.perform import Ended, Returned
from stepfence.sdk.results import keep
from stepfence.sdk.step import Step

__all__ = ["Complete", "Fail", "Lose", "Verdict", "judge", "read_may_fail"]

_MESSAGE_CHARACTERS = 512
_REASON = re.compile(r"[^A-Za-z0-9]")
# Query strings carry keys and names; the ledger is read by many.
_QUERY = re.compile(r"\?[^\s'\"]+")


@dataclass(frozen=True, slots=True)
class Complete:
    """It happened; `text` is the canonical JSON of its result."""

    text: str


@dataclass(frozen=True, slots=True)
class Fail:
    """It surely did not happen."""

    reason: str
    message: str
    final: bool = False
    retry_after: float | None = None
    error: BaseException | None = None

    def body(self, attempt: int) -> dict[str, JsonValue]:
        """Return the report."""
        body: dict[str, JsonValue] = {"attempt": attempt, "reason": _text(self.reason), "message": self.message}
        if self.final:
            body["final"] = True
        if self.retry_after is not None:
            body["retryAfterSeconds"] = self.retry_after
        return body


@dataclass(frozen=True, slots=True)
class Lose:
    """Nobody can tell. `again_alike`: what the function did says that doing it again would end in the same way."""

    reason: str
    message: str
    error: BaseException | None = None
    again_alike: bool = False

    def body(self, attempt: int) -> dict[str, JsonValue]:
        """Return the report."""
        return {"attempt": attempt, "reason": self.reason, "message": self.message}


Verdict = Complete | Fail | Lose


def judge(ended: Ended, step: Step, *, marked: bool, overdue: bool = False, harmless: bool = False) -> Verdict:
    """Say what the end of one attempt means; from here on the attempt can send nothing more.

    `marked`: the function marks where sending begins, so that what it raises before the mark means that nothing was sent. `overdue`: it was
    stopped at its deadline. `harmless`: it only reads. docs/protocol.md lists each way to `Fail`, and why it is sure.
    """
    sends = step.told(done=isinstance(ended, Returned))
    if isinstance(ended, Returned):
        return _returned(ended.value, step)
    error = _single(ended.error)
    if isinstance(error, NotApplied):
        objection = "" if harmless else sends.objection(error)
        if objection:
            return Lose(_reason(error.reason), _clean(f"{_clean(error)} (in doubt: {objection})"), ended.error)
        # `NotStarted` uses up no attempt: that is for us to say.
        reason = error.reason if error.reason != NOT_STARTED else NotApplied.reason
        return Fail(reason, _clean(error), error.final, error.retry_after, ended.error)
    stopped = overdue and isinstance(error, asyncio.CancelledError)
    reason = "DeadlineExceeded" if stopped else _reason(type(error).__name__)
    message = f"stopped at its deadline: {step.id}" if stopped else _clean(error)
    if sends.refused:
        refusal = sends.refusal_of(error)
        if refusal is not None:
            return Fail(refusal.reason, _clean(refusal), refusal.final, refusal.retry_after, ended.error)
        return Fail(reason, message, error=ended.error)
    if marked and not sends.blocks:
        return Fail("NotSent" if isinstance(error, Stop) else reason, message, error=ended.error)
    return Lose(reason, message, ended.error)


def _single(error: BaseException) -> BaseException:
    """Return what a group of one exception holds: a task group wraps what its only failing task raised."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def read_may_fail(verdict: Fail | Lose, action: Action) -> Fail | Lose:
    """Turn a doubt about a `Read` into a sure failure: a read has no effect that could have happened."""
    if isinstance(verdict, Lose) and action is Action.READ:
        return Fail(verdict.reason, verdict.message, final=verdict.again_alike, error=verdict.error)
    return verdict


def _returned(value: Any, step: Step) -> Verdict:
    try:
        return Complete(keep(value, f"result of step {step.id!r}"))
    except Exception as error:  # noqa: BLE001  (also what an object's own code raises: it must not keep the attempt from being told)
        # An object that is no data: a person can look up what happened, if anything did, and answer with its result.
        return Lose("ResultNotSerializable", _clean(error), error, again_alike=True)


def _reason(said: str) -> str:
    return _REASON.sub("", said) or "Error"


def _clean(error: BaseException | str) -> str:
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  (the program's own code, in which anything may go wrong: the report must not be lost for it)
        said = type(error).__name__
    return _text(_QUERY.sub("?…", said))[:_MESSAGE_CHARACTERS]


def _text(said: str) -> str:
    """Make text of what may hold bytes that are no UTF-8, as names of files do: a report must not be lost for it."""
    return said.encode(errors="replace").decode()
