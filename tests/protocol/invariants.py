"""What is checked at every write and at every effect, from the world's own knowledge and never from the rules under test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from stepfence.core.errors import Refused
from stepfence.core.model import Answer, Entry, Run, StepSpec
from stepfence.core.summary import Question, QuestionKind
from stepfence.core.words import Action, Outcome, Recovery, State, Verdict
from tests.protocol import violations as v
from tests.protocol.actors import Patch
from tests.protocol.provider import Effect, Provider
from tests.protocol.violations import Violation

_OPEN = (State.UNKNOWN, State.AWAITING_APPROVAL)
_MAY_HAVE_HAPPENED = (State.IN_FLIGHT, State.UNKNOWN, State.DONE)
_HALTING = (Action.CREATE, Action.PAYMENT, Action.DELETE)


@dataclass
class Book:
    """The world's own account of what was begun, asked, said and allowed."""

    steps: dict[str, StepSpec]
    provider: Provider
    row: bool
    patches: list[Patch] = field(default_factory=list)
    openings: dict[str, int] = field(default_factory=dict)
    opened_at: dict[str, datetime] = field(default_factory=dict)
    forced: set[str] = field(default_factory=set)
    approved_at: dict[str, datetime] = field(default_factory=dict)
    unresolved: dict[str, set[int]] = field(default_factory=dict)
    callers: dict[tuple[str, int], str] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    def write(self, old: Run, new: Run, now: datetime) -> None:
        """Check one write, and note what it began, asked and answered."""
        self._run(old, new)
        for name, entry in new.ledger.items():
            before = old.ledger.get(name)
            if before is not entry and before != entry:
                self._entry(old, self.steps[name], before, entry, now)
        for name in old.ledger:
            if name not in new.ledger:
                raise Violation(v.NOT_FINAL, f"the entry of {name} was removed")

    def _run(self, old: Run, new: Run) -> None:
        if new.token < old.token or new.version <= old.version:
            raise Violation(v.NOT_MONOTONE, f"token {old.token} -> {new.token}, version {old.version} -> {new.version}")
        if old.terminal and (old.outcome, old.reason, old.finished_at) != (new.outcome, new.reason, new.finished_at):
            raise Violation(v.NOT_FINAL, f"the outcome changed from {old.outcome} to {new.outcome}")
        if not new.terminal or old.terminal:
            return
        for name, entry in new.ledger.items():
            doubt = entry.state is State.UNKNOWN and self.steps[name].action in _HALTING and not entry.abandoned
            if entry.state is State.IN_FLIGHT or doubt or (new.outcome is Outcome.SUCCEEDED and entry.state in _OPEN):
                raise Violation(v.ENDED_OPEN, f"{new.outcome} while {name} is {entry.state}")

    def _entry(self, old: Run, step: StepSpec, before: Entry | None, entry: Entry, now: datetime) -> None:
        state = before.state if before else State.PLANNED
        if state is State.DONE:
            raise Violation(v.NOT_FINAL, f"{step.id} is Done and was written again")
        for answer in entry.answers[len(before.answers) if before else 0 :]:
            self._answer(step, before, answer, now)
        if entry.state in _OPEN and (state is not entry.state or (before and before.question != entry.question)):
            self.openings[step.id] = self.openings.get(step.id, 0) + 1
            self.opened_at[step.id] = entry.asked_at if entry.asked_at and state is not entry.state else self.opened_at[step.id]
        if entry.attempt > (before.attempt if before else 0):
            self._begun(old, step, before, entry, now)
        if entry.state is State.DONE:
            self._done(step, entry)
        if entry.state is State.FAILED and state is not State.FAILED:
            self._failed(step, before, entry)

    def _answer(self, step: StepSpec, before: Entry | None, answer: Answer, now: datetime) -> None:
        if answer.refused:
            return
        opening = self.openings.get(step.id, 0)
        meant = [
            p
            for p in self.patches
            if p.step == step.id and p.opening == opening and p.verdict is answer.verdict and p.force == answer.force
        ]
        if before is None or before.state not in _OPEN or not meant:
            raise Violation(v.WRONG_ANSWER, f"{answer.verdict} (force={answer.force}) was not given for opening {opening} of {step.id}")
        if answer.verdict is Verdict.APPROVE:
            if step.approval_expires is not None and now >= self.opened_at[step.id] + timedelta(seconds=step.approval_expires):
                raise Violation(v.STALE_APPROVAL, f"an expired request for {step.id} was approved")
            self.approved_at[step.id] = now
        if answer.verdict is Verdict.DID_NOT_HAPPEN and answer.force:
            self.forced.add(step.id)

    def _begun(self, old: Run, step: StepSpec, before: Entry | None, entry: Entry, now: datetime) -> None:
        self.unresolved.setdefault(step.id, set()).add(entry.attempt)
        inactive = old.terminal or old.ending or old.hold or old.spec.cancel or old.spec.suspend
        if inactive or old.holder is None or old.holder.draining:
            raise Violation(v.NOT_ACTIVE, f"{step.id}#{entry.attempt} began")
        for name, other in old.ledger.items():
            waits = other.state is State.AWAITING_APPROVAL
            doubt = other.state is State.UNKNOWN and self.steps[name].recovery is Recovery.HALT
            if waits or doubt:
                raise Violation(v.NOT_ACTIVE, f"{step.id}#{entry.attempt} began while {name} is {other.state}")
        if step.approval or step.action is Action.DELETE:
            given = self.approved_at.get(step.id)
            over = step.approval_expires is not None and given is not None and now >= given + timedelta(seconds=step.approval_expires)
            if given is None or over:
                raise Violation(v.STALE_APPROVAL, f"{step.id}#{entry.attempt} began, approved at {given}")

    def _done(self, step: StepSpec, entry: Entry) -> None:
        text = entry.result.text if entry.result else None
        if text not in self.provider.answers.get(step.id, set()):
            raise Violation(v.FALSE_RESULT, f"{step.id}: {text}")

    def _failed(self, step: StepSpec, before: Entry | None, entry: Entry) -> None:
        self.unresolved.get(step.id, set()).clear()
        self.hidden(step, entry)

    def hidden(self, step: StepSpec, entry: Entry | None) -> None:
        """A step that is recorded as not done must not have happened."""
        state = entry.state if entry else State.PLANNED
        if state in _MAY_HAVE_HAPPENED or step.action is Action.READ or step.id in self.forced:
            return
        if self.provider.of(step.id):
            raise Violation(v.FALSE_FAILED, f"{step.id} is {state}")

    def asked(self, run: Run, questions: Iterable[Question]) -> None:
        """Nobody is asked about what may simply be done again."""
        for question in questions:
            step, entry = self.steps.get(question.step), run.ledger.get(question.step)
            if step is None or entry is None or question.kind is not QuestionKind.RECONCILE:
                continue
            free = step.recovery is Recovery.RERUN and not step.approval and entry.failures == 0 and not run.ending
            if free and len(entry.open) < 16:
                raise Violation(v.NEEDLESS, question.key)

    def go(self, step: str, attempt: int, caller: str) -> None:
        """One attempt belongs to one caller (R3)."""
        if self.callers.setdefault((step, attempt), caller) != caller:
            raise Violation(v.SHARED_ATTEMPT, f"{step}#{attempt}: {self.callers[step, attempt]} and {caller}")

    def failed(self, step: str, attempt: int) -> None:
        """A worker's sure failure was accepted."""
        self.unresolved.get(step, set()).discard(attempt)

    def landed(self, effect: Effect, entry: Entry | None) -> None:
        """Check one effect: not a second one without leave, not over a later Upsert, not after it was recorded as not done."""
        step = effect.flight.step
        again = step.action is Action.READ or step.recovery is Recovery.RERUN
        if len(self.provider.of(step.id)) > 1 and not again and step.id not in self.forced:
            raise Violation(v.DOUBLE_EFFECT, f"{effect.flight} on top of {self.provider.of(step.id)[0].flight}")
        self.hidden(step, entry)
        order = list(self.steps)
        later = [e for e in self.provider.effects if order.index(e.flight.step.id) > order.index(step.id)]
        upserts = step.action is Action.UPSERT and any(e.flight.step.action is Action.UPSERT for e in later)
        if self.row and upserts and step.id not in self.forced:
            raise Violation(v.LOST_ORDER, f"{effect.flight} landed after {later[-1].flight}")

    def refused_complete(self, entry: Entry | None, step: StepSpec, attempt: int, refused: Refused) -> None:
        """A true result may only be refused while a newer attempt goes on, or be asked to come again (R13)."""
        detail = str(refused)
        if entry is None:
            raise Violation(v.LOST_TRUTH, f"{step.id}#{attempt}: no entry")
        newest = attempt == entry.attempt
        if newest and entry.state is not State.DONE:
            raise Violation(v.LOST_TRUTH, f"{step.id}#{attempt} is {entry.state}: {detail}")
        older = entry.state is State.UNKNOWN and attempt in self.unresolved.get(step.id, set()) and step.action is not Action.READ
        if entry.state is State.DONE or (older and refused.retry_after is None):
            raise Violation(v.LOST_TRUTH, f"{step.id}#{attempt} is {entry.state}: {detail}")
