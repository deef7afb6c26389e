"""What is wrong with an agent, from the histories of its runs: repeats, what is missing, and one hint for each what to change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stepfence.core.words import Action
from stepfence.testing.effects import Effect
from stepfence.testing.history import Ending, History, allows_repeats

__all__ = ["Finding", "Kind", "findings_of"]


class Kind(StrEnum):
    """Which promise is broken."""

    REPEATED = "repeated"
    EXTRA = "extra"
    MISSING = "missing"
    NOT_SUCCEEDED = "not succeeded"
    READ_WITH_EFFECT = "a Read with an effect"
    SWALLOWED = "swallowed a stop"
    UNRECORDED = "a result that cannot be recorded"
    NOT_REACHED = "not reached"
    UNSEEN = "no effect seen"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong in one run. `text` says what, `hint` what to change; `times` how often `effect` happened."""

    kind: Kind
    text: str
    hint: str
    effect: str = ""
    times: int = 0


def findings_of(history: History, baseline: History) -> list[Finding]:
    """Return what is wrong with a run, measured by the one without a crash; the baseline itself may be given as both."""
    found = [*_too_often(history, baseline), *_missing(history, baseline)]
    if not history.succeeded:
        found.append(_not_succeeded(history))
    found += [
        Finding(Kind.READ_WITH_EFFECT, f"{effect.name} was made in step {effect.step.id!r}, which is a Read", _READ)
        for effect in _first_of_each(history.applied)
        if effect.step is not None and effect.step.action is Action.READ
    ]
    found += [Finding(Kind.UNRECORDED, f"a person had to say what was done: {error}", _UNRECORDED) for error in history.unrecorded.values()]
    stops = {end.swallowed for end in history.workers if end.swallowed}
    found += [Finding(Kind.SWALLOWED, f"the agent caught {stop} and returned", _SWALLOWED) for stop in sorted(stops)]
    if history.point is not None and not history.hits:
        found.append(Finding(Kind.NOT_REACHED, f"the run had no effect {history.point.effect} to be killed at", _NOT_REACHED))
    return found


_READ = "A Read may be done again at any time: give the step the action Upsert, Create, Payment or Delete."
_UNRECORDED = "Let the step's function return plain data, as `answer.json()` and never the answer itself: it is kept for the next worker."
_SWALLOWED = "A Stop must end the worker: do not catch BaseException around run.step, or raise it again."
_NOT_REACHED = "The agent does not do the same in each run, or the number is too high: name a point that the run without a crash has."


def _too_often(history: History, baseline: History) -> list[Finding]:
    counts, wanted = history.counts, baseline.counts
    found = []
    for name in sorted(counts):
        if counts[name] <= wanted[name]:
            continue
        effects = [effect for effect in history.applied if effect.name == name]
        kind = Kind.REPEATED if wanted[name] else Kind.EXTRA
        text = f"{name} happened {_times(counts[name])}, without a crash {_times(wanted[name])}"
        found.append(Finding(kind, text, _why_again(name, effects), name, counts[name]))
    return found


def _why_again(name: str, effects: list[Effect]) -> str:
    if any(effect.step is None for effect in effects):
        return f"{name} was made outside of run.step: make it in a step's function, so that it is recorded before it happens."
    steps = sorted({effect.step.id for effect in effects if effect.step is not None})
    named = ", ".join(repr(step) for step in steps)
    if any(effect.step is not None and effect.step.action is Action.READ for effect in effects):
        return f"{name} was made in step {named}, which is a Read and may be done again: give it its true action."
    if len(steps) > 1:
        return f"{name} was made in steps {named}: a step's id must be the same in each worker, never random or from a clock."
    if any(allows_repeats(effect) for effect in effects):
        return f"{name} was repeated with another Idempotency-Key: send step.key."
    attempts = [(effect.worker, effect.step.attempt) for effect in effects if effect.step is not None]
    if len(set(attempts)) < len(attempts):
        return f"step {named} sent {name} again by itself: one request an attempt. Let the exception out; the ledger decides on repeats."
    return (
        f"an attempt of step {named} was told as failed although {name} had been sent: send inside `async with step.sending():`, and raise "
        "NotApplied only when surely nothing happened."
    )


def _missing(history: History, baseline: History) -> list[Finding]:
    counts, found = history.counts, []
    for name, wanted in sorted(baseline.counts.items()):
        if counts[name] < wanted:
            text = f"{name} happened {_times(counts[name])}, without a crash {_times(wanted)}"
            found.append(Finding(Kind.MISSING, text, _why_missing(name, baseline, history), name))
    return found


def _why_missing(name: str, baseline: History, history: History) -> str:
    if not history.succeeded:
        return "The run did not come to its end."
    for effect in baseline.applied:
        if effect.name != name or effect.step is None:
            continue
        step = effect.step
        others = {other.name for other in baseline.applied if other.step is not None and other.step.id == step.id and other is not effect}
        if others:
            return f"Step {step.id!r} has several effects ({', '.join(sorted({name, *others}))}): give each a step of its own."
    return "The run ended without it: what decides whether it is done must come out the same in each worker."


def _not_succeeded(history: History) -> Finding:
    last = history.workers[-1] if history.workers else None
    if last is not None and last.ending is Ending.NOT_FINISHED:
        return Finding(
            Kind.NOT_SUCCEEDED, "the agent used steps and returned without run.finish", "End it with `await run.finish(result)`."
        )
    if last is not None and last.ending is Ending.HUNG:
        return Finding(Kind.NOT_SUCCEEDED, "the agent never came back", "It waits for what never comes: give each wait a deadline.")
    if last is not None and last.ending is Ending.UNDEAD:
        return Finding(
            Kind.NOT_SUCCEEDED, "the agent went on after it was cancelled", "Do not catch CancelledError or BaseException and go on."
        )
    if history.outcome:
        message = f" ({history.message})" if history.message and history.error is None else ""
        text = f"the run ended {history.outcome}: {history.reason}{message}"
    else:
        text = f"the run was not over after {len(history.workers)} workers: {history.reason}"
    return Finding(Kind.NOT_SUCCEEDED, text + _raised(history), "Each worker must come to the end by itself, from the recorded results.")


def _raised(history: History) -> str:
    if history.error is None:
        return ""
    who, error = history.error
    return f"; {who} raised {type(error).__name__}: {error}"


def _first_of_each(effects: list[Effect]) -> list[Effect]:
    return list({effect.name: effect for effect in reversed(effects)}.values())


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")
