"""What a run, its worker and each of its steps wait for, in words for people. Pure: from the run, the hour and which workers live."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from enum import IntEnum

from stepfence.core.lifecycle import halting_steps
from stepfence.core.model import Entry, Run, StepSpec
from stepfence.core.recovery import counts, did_not_happen_counts_from, gives_up_at, may_begin_again_at, needs_person
from stepfence.core.summary import Phase, phase_of
from stepfence.core.words import At, Outcome, Recovery, State

__all__ = ["Rank", "RunView", "StepView", "view_of"]


class Rank(IntEnum):
    """How much a step matters to who looks on: what has the highest rank gives way first."""

    OPEN = 0  # in flight, in doubt, or a person is asked
    BEGUN = 1
    PLANNED = 2
    SETTLED = 3
    DONE = 4


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of the plan. `waits`: for whom or what; empty for nothing."""

    id: str
    action: str
    state: str
    attempts: str
    waits: str
    rank: Rank


@dataclass(frozen=True, slots=True)
class RunView:
    """One run. `worker`: its number and whether it lives; `waits`: what the run as a whole waits for, or why it ended."""

    name: str
    phase: Phase
    progress: str
    token: int
    worker: str
    waits: str
    steps: tuple[StepView, ...]

    @property
    def asks(self) -> bool:
        """Whether only a person can go on."""
        return self.phase in (Phase.NEEDS_RECONCILIATION, Phase.AWAITING_APPROVAL, Phase.HELD)

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)


def view_of(run: Run, at: At, living: Collection[int] = (), zone: tzinfo | None = None) -> RunView:
    """Return what people see of a run. `living`: its workers that live; `zone`: of the times shown, None for the machine's own."""
    look = _Look(run, at, frozenset(living), zone)
    steps = tuple(look.steps())
    done = sum(step.rank is Rank.DONE for step in steps)
    progress = f"{done}/{len(steps)}" if run.plan is not None else "no plan yet"
    return RunView(f"{run.namespace}/{run.name}", phase_of(run, at), progress, int(run.token), look.worker(), look.run_waits(), steps)


@dataclass(frozen=True, slots=True)
class _Look:
    run: Run
    at: At
    living: frozenset[int]
    zone: tzinfo | None

    def steps(self) -> Iterator[StepView]:
        behind = False
        for step in self.run.plan.steps if self.run.plan is not None else ():
            entry = self.run.ledger.get(step.id)
            rank = _rank(step, entry)
            waits = "" if rank >= Rank.SETTLED else self.step_waits(step, entry, behind=behind)
            state = State.PLANNED if entry is None else entry.state
            yield StepView(step.id, step.action.value, state.value, _attempts(step, entry), waits, rank)
            behind = behind or rank < Rank.SETTLED

    def worker(self) -> str:
        worker, holder = self.run.worker, self.run.holder
        if worker is None:
            return "no worker yet"
        named = f"worker {worker.number}"
        if holder is not None:
            return f"{named} lives" + (", told to go" if holder.draining else "") if self.lives else f"{named} is gone"
        if worker.ended_at is None and not worker.exit_reason and not self.run.terminal:
            return f"{named} lives, has not claimed the run" if self.lives else f"{named} starts"
        ended = f": {worker.exit_reason}" if worker.exit_reason else ""
        return f"{named} is on its way out{ended}" if self.lives else f"{named} ended{ended}"

    @property
    def lives(self) -> bool:
        return self.run.worker is not None and self.run.worker.number in self.living

    def run_waits(self) -> str:
        run = self.run
        if run.terminal:
            return f"{run.reason}: {run.message}" if run.message else "" if run.outcome is Outcome.SUCCEEDED else run.reason
        if run.ending is not None:
            return f"{run.ending.reason}: it becomes {run.ending.outcome} when no step is open"
        if run.hold is not None:
            return f"hold, a person: Resume or Abandon ({run.hold.reason}: {run.hold.message})"
        if run.spec.suspend:
            return "suspend, a person: until spec.suspend is no longer set"
        if run.worker_problem is not None:
            return f"{run.worker_problem[0]}: {run.worker_problem[1]}"
        return f"the plan, of {self.next_begin()}" if run.plan is None else ""

    def step_waits(self, step: StepSpec, entry: Entry | None, *, behind: bool) -> str:
        if self.run.terminal:
            return ""
        if entry is None or entry.state is State.PLANNED:
            return "an earlier step" if behind else self.begin_waits()
        if entry.state is State.IN_FLIGHT:
            return self.in_flight(entry)
        if entry.state is State.UNKNOWN:
            return self.doubt(step, entry)
        if entry.state is State.AWAITING_APPROVAL and needs_person(self.run, entry, step, self.at):
            until = _later(entry.asked_at, step.approval_expires)
            return "a person: Approve or Deny" + (f", at the latest {self.clock(until)}" if until is not None else "")
        return self.begin_waits(entry.retry_at if entry.state is State.FAILED else None)

    def in_flight(self, entry: Entry) -> str:
        named = f"worker {self.run.worker.number}" if self.run.worker is not None else "its worker"
        last = entry.recorded(entry.attempt)
        until = None if last is None else last.deadline + timedelta(seconds=self.at.settings.margin)
        if until is None or until <= self.at.now:
            return f"the end of {named}: the step's time is over"
        return f"{named}, at the latest {self.clock(until)}"

    def doubt(self, step: StepSpec, entry: Entry) -> str:
        run, at = self.run, self.at
        if needs_person(run, entry, step, at):
            if counts(entry, step, at.now, at.settings):
                return "a person: Happened, DidNotHappen or Abandon"
            moment = did_not_happen_counts_from(entry, step, at.settings)
            return "a person: Happened or Abandon" + (f"; DidNotHappen from {self.clock(moment)}" if moment is not None else "")
        stopped = self.stopped()
        if stopped:
            return stopped
        if step.recovery is Recovery.PROBE:
            until = gives_up_at(entry, step, at.settings)
            return f"a probe by {self.next_begin()}" + (f"; a person from {self.clock(until)}" if until is not None else "")
        moment = may_begin_again_at(entry, step, at)
        if moment is not None and moment > at.now and moment != entry.retry_at:
            return f"the last moment of its old attempt, {self.clock(moment)}"
        return self.begin_waits(entry.retry_at)

    def begin_waits(self, retry_at: datetime | None = None) -> str:
        """What stands before the next beginning: what stops the run, then the step's own back-off, then its worker."""
        stopped = self.stopped()
        if stopped:
            return stopped
        if retry_at is not None and retry_at > self.at.now:
            return f"its back-off until {self.clock(retry_at)}"
        return self.next_begin()

    def stopped(self) -> str:
        run = self.run
        if run.ending is not None or run.spec.cancel:
            return "nothing: the run ends"
        if run.spec.suspend:
            return "suspend: a person lifts it"
        if run.hold is not None:
            return "hold: a person answers"
        asked = ", ".join(step.id for step, _ in halting_steps(run, self.at))
        return f"a person, about {asked}" if asked else ""

    def next_begin(self) -> str:
        """Who begins the next thing, or what keeps the next worker from starting."""
        worker, holder = self.run.worker, self.run.holder
        if worker is None:
            return "the first worker"
        if holder is not None:
            return f"the end of worker {worker.number}" if holder.draining else f"worker {worker.number}"
        if worker.ended_at is None and not worker.exit_reason:
            return f"the claim of worker {worker.number}"
        if worker.retry_at is not None and worker.retry_at > self.at.now:
            return f"worker {worker.number + 1}, its back-off until {self.clock(worker.retry_at)}"
        return f"the end of worker {worker.number}" if self.lives else f"worker {worker.number + 1}"

    def clock(self, moment: datetime) -> str:
        """The time of day, with the date unless it is today's, and how long until then."""
        there, now = moment.astimezone(self.zone), self.at.now.astimezone(self.zone)
        left = max(0, round((moment - self.at.now).total_seconds()))
        shown = there.strftime("%H:%M:%S" if there.date() == now.date() else "%Y-%m-%d %H:%M:%S")
        return f"{shown} (in {left} s)" if left < 120 else f"{shown} (in {left // 60} min)" if left < 7200 else shown


def _rank(step: StepSpec, entry: Entry | None) -> Rank:
    if entry is None or entry.state is State.PLANNED:
        return Rank.PLANNED
    if entry.state is State.DONE:
        return Rank.DONE
    used_up = entry.state is State.FAILED and (entry.final or entry.failures >= step.attempts)
    if used_up or entry.state is State.DENIED or entry.abandoned:
        return Rank.SETTLED
    return Rank.BEGUN if entry.state in (State.APPROVED, State.FAILED) else Rank.OPEN


def _attempts(step: StepSpec, entry: Entry | None) -> str:
    """The number of the last attempt, and how many of those that may surely fail have failed."""
    if entry is None or not entry.attempt:
        return ""
    return f"{entry.attempt}" if step.attempts == 1 else f"{entry.attempt} ({entry.failures}/{step.attempts} failed)"


def _later(since: datetime | None, seconds: int | None) -> datetime | None:
    return None if since is None or seconds is None else since + timedelta(seconds=seconds)
