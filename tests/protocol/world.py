"""The whole world of one run as data: the stored run, time, provider, pods, people. A history is a list of moves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from stepfence.core.errors import Refused
from stepfence.core.fencing import HolderFact
from stepfence.core.ledger import RefusedAfter
from stepfence.core.lifecycle import end_if_settled, keep_time
from stepfence.core.model import Run
from stepfence.core.summary import Question, questions_of
from stepfence.core.words import At
from stepfence.testing.builders import new_run
from stepfence.testing.clock import EPOCH
from tests.protocol.actors import LateCopy, Pod, Status, Thread
from tests.protocol.calls import Edit
from tests.protocol.invariants import Book
from tests.protocol.provider import Flight, Provider
from tests.protocol.scenario import Scenario

Move = tuple[str, Callable[[], None]]


class Unheard(Exception):
    """The process that served the move died, or its reply was lost: nobody was told anything."""


@dataclass
class Rules:
    """Rules that stand outside the core, so that a test can take them out."""

    compare_and_swap: bool = True
    admission: bool = True
    delete_overdue_pods: bool = True
    # Whether a worker that has sent never says that it surely did not.
    sure: bool = True


@dataclass
class World:
    """Everything that exists. `moves()` of the actors say what may happen next; each move is atomic."""

    scenario: Scenario
    rules: Rules = field(default_factory=Rules)
    now: datetime = EPOCH
    run: Run = field(init=False)
    version: int = 0
    provider: Provider = field(init=False)
    book: Book = field(init=False)
    pods: list[Pod] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    copies: list[LateCopy] = field(default_factory=list)
    questions: dict[str, Question] = field(default_factory=dict)
    seen: dict[str, tuple[str, int]] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    counter: int = 0

    def __post_init__(self) -> None:
        steps = self.scenario.steps
        self.run = new_run(*steps, active_deadline=self.scenario.active_deadline)
        self.provider = Provider(self.scenario.honours)
        self.book = Book({step.id: step for step in steps}, self.provider, row=self.scenario.program != "together")

    def on(self, trouble: str) -> bool:
        """Whether that kind of trouble may strike in this scenario."""
        return trouble in self.scenario.trouble

    def fresh(self, what: str) -> str:
        """Return an id that nobody has used."""
        self.counter += 1
        return f"{what}{self.counter}"

    def at(self) -> At:
        """Return the inputs of one decision."""
        return At(self.now, hashlib.sha256(self.fresh("nonce").encode()).hexdigest()[:32], self.scenario.settings)

    # --- the store ----------------------------------------------------------------------------------------------------

    def read(self) -> tuple[int, Run]:
        """Read as a replica does that writes later."""
        return self.version, self.run

    def execute(self, edit: Edit, snapshot: tuple[int, Run] | None = None, *, refresh: bool = False) -> Any:
        """Apply an edit as the one writer does: on a conflict read again and decide again. Raises `Refused`."""
        _, run = snapshot if snapshot is not None and self._usable(snapshot[0]) else self.read()
        at, refused = self.at(), None
        answer: Any = None
        try:
            new, answer = edit(run, at)
        except RefusedAfter as after:
            new, refused = after.run, after
        if new is not run and new != run:
            self.save(new, at)
        elif refresh:
            self.refresh(at)
        if refused is not None:
            raise refused
        return answer

    def _usable(self, version: int) -> bool:
        return version == self.version or not self.rules.compare_and_swap

    def save(self, new: Run, at: At) -> None:
        """Store a run, with what people read of it."""
        old = self.run
        new = end_if_settled(keep_time(new, at), at)
        new = replace(new, version=old.version + 1, spec=old.spec)
        self.book.write(old, new, self.now)
        self.run, self.version = new, self.version + 1
        self.refresh(at)

    def refresh(self, at: At) -> None:
        """Store the questions as they stand now; people see what is stored."""
        self.questions = {question.key: question for question in questions_of(self.run, at)}
        self.book.asked(self.run, self.questions.values())
        for key, question in self.questions.items():
            self.seen.setdefault(key, (question.step, self.book.openings.get(question.step, 0)))

    def patch_spec(self, **changes: Any) -> None:
        """A person changes the spec: another version of the same object."""
        self.run = replace(self.run, spec=replace(self.run.spec, **changes))
        self.version += 1

    # --- time and the provider ----------------------------------------------------------------------------------------

    def bound(self, flight: Flight) -> datetime:
        """Assumption A: nothing of an attempt lands at or after this."""
        bound = flight.deadline + timedelta(seconds=self.scenario.settings.margin)
        pod = next((pod for pod in self.pods if pod.uid == flight.pod_uid), None)
        if pod is not None and pod.confirmed_at is not None:
            bound = min(bound, pod.confirmed_at + timedelta(seconds=flight.step.settle))
        return bound

    def tick(self, seconds: int) -> None:
        """Let time pass; what may not land any more never does, and what has landed is visible in the end."""
        self.now += timedelta(seconds=seconds)
        self.keep_assumption()

    def keep_assumption(self) -> None:
        """Drop flights that are over, show effects that must be visible by now."""
        self.flights = [flight for flight in self.flights if self.now < self.bound(flight)]
        for effect in self.provider.effects:
            effect.visible = effect.visible or self.now >= self.bound(effect.flight)

    def land(self, flight: Flight) -> str:
        """A request reaches the provider; the worker that still waits for its answer gets it."""
        if flight in self.flights:
            self.flights.remove(flight)
        answer, effect = self.provider.land(flight, self.now)
        if effect is not None:
            self.book.landed(effect, self.run.ledger.get(flight.step.id))
        return answer

    # --- pods ---------------------------------------------------------------------------------------------------------

    def holder_fact(self, run: Run) -> HolderFact:
        """What the API server shows of the pod that holds the run."""
        pod = next((pod for pod in self.pods if run.holder is not None and pod.uid == run.holder.pod_uid), None)
        return HolderFact.ALIVE if pod is not None and pod.status is Status.RUNNING else HolderFact.OVER

    def start_pod(self, job: str = "") -> Pod:
        """Start a worker with the threads of the scenario's program; a Job may make a second pod."""
        pod = Pod(f"pod-{len(self.pods) + 1}", self.now, job=job or (self.run.worker.job if self.run.worker is not None else ""))
        names = tuple(step.id for step in self.scenario.steps)
        programs: dict[str, list[tuple[str, ...]]] = {"row": [names], "twice": [names, names], "together": [(name,) for name in names]}
        todos = programs[self.scenario.program]
        pod.threads = [Thread(pod, chr(ord("t") + index), todo) for index, todo in enumerate(todos)]
        self.pods.append(pod)
        return pod

    def running(self) -> list[Pod]:
        """Return the pods that the API server shows as running."""
        return [pod for pod in self.pods if pod.status is Status.RUNNING]

    def make(self, label: str, move: Callable[[], None]) -> None:
        """Make one move and keep its label, so that a violation tells its history."""
        self.trace.append(f"{(self.now - EPOCH).total_seconds():.0f}s {label}")
        try:
            move()
        except Unheard as unheard:
            self.trace.append(f"      {unheard}")

    def attempt_refused(self, refused: Refused) -> None:
        """Note a refusal in the history."""
        self.trace.append(f"      refused: {refused.code}")
