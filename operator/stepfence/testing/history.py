"""What happened in one run of an agent under test: data, for the findings and the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stepfence.core.words import Action, Recovery
from stepfence.sdk import StepFailed
from stepfence.testing.effects import Effect
from stepfence.testing.points import CrashPoint

__all__ = ["Ending", "History", "WorkerEnd", "allows_repeats"]


class Ending(StrEnum):
    """How one worker ended."""

    KILLED = "killed"
    RETURNED = "returned"
    STOPPED = "stopped"
    RAISED = "raised"
    NOT_FINISHED = "returned without run.finish"
    HUNG = "never ended"
    UNDEAD = "did not end when it was cancelled"


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """`error`: what the agent raised. `swallowed`: the name of a stop that was raised to it and after which it returned."""

    ending: Ending
    error: BaseException | None = None
    swallowed: str = ""


@dataclass(slots=True)
class History:
    """One run. `point` is None in the baseline. `hit` names the effect at which it was hit; `hits` says in which workers."""

    point: CrashPoint | None = None
    effects: list[Effect] = field(default_factory=list)
    workers: list[WorkerEnd] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    holds: int = 0
    hit: str | None = None
    hits: int = 0
    # The agent never used its run, and returned.
    plain: bool = False
    outcome: str = ""
    reason: str = ""
    message: str = ""
    results: Mapping[str, Any] = field(default_factory=dict)
    # What a step's function raised last.
    raised: dict[str, Exception] = field(default_factory=dict)
    # Why what a step's function returned cannot be recorded.
    unrecorded: dict[str, TypeError] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        """Whether the run came to its end."""
        return self.plain or self.outcome == "Succeeded"

    @property
    def error(self) -> tuple[str, BaseException] | None:
        """What stood in the way, and who raised it: a step's function before an agent that was told of it by an exception of ours."""
        errors = [end.error for end in self.workers if end.ending is Ending.RAISED and end.error is not None]
        if self.raised and (not errors or isinstance(errors[-1], StepFailed)):
            step, error = next(reversed(self.raised.items()))
            return f"step {step!r}", error
        return ("the agent", errors[-1]) if errors else None

    @property
    def counts(self) -> Counter[str]:
        """How often each effect happened; repeats that the step's action type allows count once."""
        counted: Counter[str] = Counter()
        repeatable: set[tuple[str, str, str]] = set()
        for effect in self.applied:
            if not allows_repeats(effect):
                counted[effect.name] += 1
                continue
            once = (effect.name, effect.step.key if effect.step else "", effect.key)
            counted[effect.name] += once not in repeatable
            repeatable.add(once)
        return counted

    @property
    def applied(self) -> list[Effect]:
        """What took effect, in order."""
        return [effect for effect in self.effects if effect.applied]


def allows_repeats(effect: Effect) -> bool:
    """Whether the step that made it may do it again under the same key: an Upsert, or a resend to a provider that honours keys."""
    if effect.step is None:
        return False
    return effect.step.action is Action.UPSERT or (effect.step.recovery == Recovery.RESEND_WITH_KEY and effect.key == effect.step.key)
