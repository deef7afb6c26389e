"""What the outside world saw of one run: every effect with its key, and the crash that is due at one of them."""

from __future__ import annotations

import contextvars
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from stepfence.core.words import Action
from stepfence.sdk.results import keep, round_trip
from stepfence.testing.points import CrashPoint, When

__all__ = ["CURRENT_STEP", "SAFE_METHODS", "Effect", "Outside", "Provider", "StepMark", "default_provider", "effect_name"]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
DEFAULT_HOST = "provider"

Provider = Callable[[httpx.Request], httpx.Response]


@dataclass(frozen=True, slots=True)
class StepMark:
    """The attempt of a step whose function runs."""

    id: str
    key: str
    attempt: int
    action: Action
    recovery: str = ""


CURRENT_STEP: contextvars.ContextVar[StepMark | None] = contextvars.ContextVar("stepfence_testing_step", default=None)


@dataclass(slots=True)
class Effect:
    """One thing that the provider was asked to do. `key`: the Idempotency-Key that came with it, empty when none did.

    `applied`: it took effect. `answer` is its answer as JSON, None when it is none.
    """

    name: str
    worker: int
    key: str = ""
    step: StepMark | None = None
    applied: bool = False
    answer: Any = None

    def belongs_to(self, step_key: str) -> bool:
        """Whether a person who looks for that step's key finds this."""
        return self.applied and step_key in (self.key, self.step.key if self.step else "")


@dataclass
class Outside:
    """The world outside of one run. All methods may be called from any thread."""

    provider: Provider
    point: CrashPoint | None = None
    effects: list[Effect] = field(default_factory=list)
    reads: int = 0
    marks: dict[str, StepMark] = field(default_factory=dict)
    # What each step's function returned, as it is recorded.
    results: dict[str, Any] = field(default_factory=dict)
    raised: dict[str, Exception] = field(default_factory=dict)
    # Why what it returned cannot be recorded.
    unrecorded: dict[str, TypeError] = field(default_factory=dict)
    # The name of the effect at which the run was hit, and in how many workers.
    hit: str | None = None
    hits: list[int] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def asked(self, name: str, worker: int, key: str = "") -> Effect:
        """Note that a worker is about to ask for an effect; it has not arrived yet."""
        effect = Effect(name, worker, key, CURRENT_STEP.get() or self.marks.get(key))
        with self.lock:
            self.effects.append(effect)
        return effect

    def returned(self, mark: StepMark, value: Any) -> None:
        """Note what a step's function returned; what an attempt before it raised stands in nobody's way any more."""
        self.raised.pop(mark.id, None)
        try:
            if not isinstance(value, Iterator):  # to look at one is to use it up
                value = round_trip(keep(value, f"result of step {mark.id!r}"))
        except TypeError as error:
            self.unrecorded[mark.id] = error
        else:
            self.results[mark.id] = value

    def due(self, effect: Effect, *moments: When) -> bool:
        """Whether the crash is due at this effect, at one of these moments."""
        with self.lock:
            if self.point is None or self.point.when not in moments or effect.worker in self.hits:
                return False
            if self.hit is None:
                due = self.effects.index(effect) + 1 == self.point.effect
            else:
                due = self.point.twice and len(self.hits) == 1 and effect.name == self.hit
            if due:
                self.hit = effect.name
                self.hits.append(effect.worker)
            return due

    def ask(self, request: httpx.Request) -> httpx.Response:
        """Let the provider answer. Raises `TypeError` when it answers something else than a response."""
        with self.lock:
            response = self.provider(request)
        if not isinstance(response, httpx.Response):
            raise TypeError(f"provider: it must return an httpx.Response, not {response!r}")
        response.request = request
        return response

    def found(self, step_key: str) -> Effect | None:
        """Look for what a step did, as a careful person does at the provider, by the step's key."""
        return next((effect for effect in reversed(self.effects) if effect.belongs_to(step_key)), None)


def effect_name(request: httpx.Request) -> str:
    """Return method, host (unless it is the default one) and path."""
    host = "" if request.url.host == DEFAULT_HOST else request.url.netloc.decode()
    return f"{request.method} {host}{request.url.path}"


def default_provider() -> Provider:
    """Return a provider that does what it is asked, as often as asked: it honours no key, so that the ledger alone prevents repeats."""
    numbers = itertools.count(1)

    def answer(request: httpx.Request) -> httpx.Response:
        body = {"path": request.url.path}
        return httpx.Response(200, json=body if request.method in SAFE_METHODS else {"id": f"id-{next(numbers)}", **body})

    return answer


def json_of(response: httpx.Response) -> Any:
    """Return the answer's JSON, None when it is none (or a stream that is not read yet)."""
    try:
        return response.json()
    except (json.JSONDecodeError, UnicodeDecodeError, httpx.ResponseNotRead):
        return None
