"""Pods and the threads of control in them, as data: a pause anywhere is simply not being moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from stepfence.core.model import Run, StepSpec
from stepfence.core.words import Verdict


class Does(StrEnum):
    """What a thread is about to do next."""

    CLAIM = "claim"
    BEGIN = "begin"
    SEND = "send"
    AWAIT = "await"
    REPORT = "report"
    PROBE = "probe"
    PROBED = "report the probe"
    FINISH = "finish"
    STOPPED = "stopped"
    HUNG = "hung"


class Status(StrEnum):
    """What the API server shows of a pod."""

    RUNNING = "running"
    TERMINAL = "terminal"
    GONE = "gone"


@dataclass
class Attempted:
    """The attempt that a thread performs. `deadline` is what the worker believes: when Go was answered, plus the time left."""

    step: StepSpec
    number: int
    key: str
    deadline: datetime
    answer: str | None = None
    word: str = ""
    verdict: Verdict | None = None
    asked_at: datetime | None = None
    give_up: bool = False


@dataclass
class Thread:
    """One thread of control of a worker, performing its steps in order."""

    pod: Pod
    name: str
    todo: tuple[str, ...]
    does: Does = Does.CLAIM
    index: int = 0
    request_id: str = ""
    doing: Attempted | None = None
    # The version that a slow replica has read for the call that is under way.
    snapshot: tuple[int, Run] | None = None

    @property
    def step_id(self) -> str | None:
        """The step that it is at, None after the last."""
        return self.todo[self.index] if self.index < len(self.todo) else None

    def __str__(self) -> str:
        return f"{self.pod.name}/{self.name}"


@dataclass
class Pod:
    """One pod, last heard of at `heard_at`.

    `alive` is the truth about its process, `status` what the API server shows, `confirmed_at` when the end was seen."""

    name: str
    heard_at: datetime
    threads: list[Thread] = field(default_factory=list)
    status: Status = Status.RUNNING
    alive: bool = True
    reported: bool = False
    confirmed_at: datetime | None = None
    deleting: bool = False
    # When its grace has passed.
    deletion_at: datetime | None = None
    job: str = ""
    token: int = 0

    @property
    def uid(self) -> str:
        return f"{self.name}-uid"

    def die(self) -> None:
        """The process ends; a running pod becomes terminal."""
        self.alive = False
        if self.status is Status.RUNNING:
            self.status = Status.TERMINAL


@dataclass
class Patch:
    """A person's answer as meant: which opening of which step it was given for."""

    key: str
    step: str
    verdict: Verdict
    force: bool
    opening: int


@dataclass
class LateCopy:
    """A copy of a request that may still arrive; nobody waits for its reply."""

    label: str
    edit: Any
