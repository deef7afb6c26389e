"""One worker's life: its ways out (HTTP, wrapped functions, the gateway), all of which are cut in the moment in which it dies."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NoReturn, TypeVar

import httpx

from stepfence.core.words import Action
from stepfence.sdk.outgoing import observed, observed_async
from stepfence.sdk.perform import Perform, Performance, Starter, is_async
from stepfence.sdk.step import Step
from stepfence.testing.effects import CURRENT_STEP, SAFE_METHODS, Effect, Outside, StepMark, effect_name, json_of
from stepfence.testing.points import When
from stepfence.testing.virtual import VirtualLoop

__all__ = ["Effects", "GatewayLine", "Killed", "Life", "ProviderLine"]

F = TypeVar("F", bound=Callable[..., Any])

_DEAD_CALLS = 100
# What a worker says of itself: nothing that it did.
_NO_WORK = frozenset({"claim", "renew", "release", "drain"})


class Killed(BaseException):
    """Raised in a thread of a worker that is dead; in coroutines nothing ever comes back."""


class _Fate(Enum):
    GO = "go"
    DIE = "die"
    LOSE = "lose"


class Life:
    """Whether one worker lives. `used`: it asked the gateway for anything but its claim. `exited`: the SDK ended its process."""

    def __init__(self, number: int, outside: Outside, loop: VirtualLoop) -> None:
        self.number, self.outside, self.loop = number, outside, loop
        self.alive, self.used, self.exited = True, False, False
        self.crashed = asyncio.Event()
        # The one that a plain function runs in.
        self.thread: threading.Thread | None = None
        # The answer of the effect at the crash point has come; the next sign of life is one too many.
        self._doomed = False
        self._dead_calls = 0

    @property
    def dead(self) -> bool:
        """Whether it died, perhaps meanwhile."""
        return not self.alive

    def die(self) -> None:
        """Be dead from now on."""
        self.alive = False
        self.loop.call_soon_threadsafe(self.crashed.set)

    def exit_process(self, _code: int) -> NoReturn:
        """Stand in for `os._exit`, by which the SDK ends a function that cannot be stopped."""
        self.exited = True
        self.die()
        raise Killed

    def ends(self) -> bool:
        """Whether this call comes from a dead worker, or is the one at which it dies."""
        if self.alive and self._doomed:
            self.die()
        return not self.alive

    async def silence(self) -> NoReturn:
        """Never come back: a killed process hears nothing."""
        await self.loop.create_future()
        raise Killed

    def kill_thread(self) -> NoReturn:
        """Unwind a thread of a dead worker; one that goes on all the same is parked for good (agents' threads are daemons)."""
        self._dead_calls += 1
        if self._dead_calls > _DEAD_CALLS:
            threading.Event().wait()
        raise Killed

    def fate_before(self, effect: Effect) -> _Fate:
        """Say what happens to a request that is about to leave."""
        if self.outside.due(effect, When.BEFORE):
            self.die()
            return _Fate.DIE
        return _Fate.GO

    def fate_after(self, effect: Effect) -> _Fate:
        """Say what happens to an answer that is about to come."""
        point = self.outside.point
        if not self.alive:
            return _Fate.DIE
        if point is None or not self.outside.due(effect, When.AFTER, When.ANSWERED, When.LOST):
            return _Fate.GO
        if point.when is When.AFTER:
            self.die()
            return _Fate.DIE
        if point.when is When.ANSWERED:
            self._doomed = True
            return _Fate.GO
        return _Fate.LOSE

    def marking(self, start: Starter, action: Action, recovery: str) -> Starter:
        """Let what a step's function does be known as that step's."""

        def marked(perform: Perform, payload: Any, step: Step) -> Performance:
            mark = StepMark(step.id, step.key, step.attempt, action, recovery)
            self.outside.marks[step.key] = mark
            return start(self._under(mark, perform), payload, step)

        return marked

    def _under(self, mark: StepMark, perform: Perform) -> Perform:
        outside = self.outside

        @contextlib.contextmanager
        def noting() -> Iterator[None]:
            CURRENT_STEP.set(mark)
            try:
                yield
            except Exception as error:
                outside.raised[mark.id] = error
                raise

        async def awaited(awaitable: Any) -> Any:
            with noting():
                value = await awaitable
            outside.returned(mark, value)
            return value

        async def coroutine(payload: Any, step: Step) -> Any:
            return await awaited(perform(payload, step))

        def called(payload: Any, step: Step) -> Any:
            with noting():
                value = perform(payload, step)
                if inspect.isawaitable(value):
                    return awaited(value)
            outside.returned(mark, value)
            return value

        return coroutine if is_async(perform) else called


class GatewayLine(httpx.AsyncBaseTransport):
    """The worker's line to the gateway."""

    def __init__(self, life: Life, gateway: httpx.AsyncBaseTransport) -> None:
        self._life, self._gateway = life, gateway

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx. A dead worker's call never arrives, and it hears no answer."""
        what = request.url.path.rpartition("/")[2]
        if not self._life.alive or (what != "renew" and self._life.ends()):
            await self._life.silence()
        self._life.used = self._life.used or what not in _NO_WORK
        answer = await self._gateway.handle_async_request(request)
        if self._life.dead:
            await self._life.silence()
        return answer


class ProviderLine(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """The agent's line to the provider, for clients of either kind."""

    def __init__(self, life: Life) -> None:
        self._life = life

    @observed_async
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx."""
        await request.aread()
        exchanged = self._exchange(request)
        if exchanged is _Fate.DIE:
            await self._life.silence()
        return self._heard(request, exchanged)

    @observed
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx."""
        request.read()
        exchanged = self._exchange(request)
        if exchanged is _Fate.DIE:
            self._life.kill_thread()
        return self._heard(request, exchanged)

    def _exchange(self, request: httpx.Request) -> httpx.Response | _Fate:
        life, outside = self._life, self._life.outside
        if not life.alive:
            return _Fate.DIE
        if request.method in SAFE_METHODS:
            outside.reads += 1
            return outside.ask(request)
        if life.ends():
            return _Fate.DIE
        effect = outside.asked(effect_name(request), life.number, request.headers.get("Idempotency-Key", ""))
        if life.fate_before(effect) is _Fate.DIE:
            return _Fate.DIE
        response = outside.ask(request)
        effect.applied, effect.answer = response.status_code < 400, json_of(response)
        fate = life.fate_after(effect)
        return response if fate is _Fate.GO else fate

    @staticmethod
    def _heard(request: httpx.Request, exchanged: httpx.Response | _Fate) -> httpx.Response:
        if isinstance(exchanged, _Fate):
            raise httpx.ReadTimeout("the provider's answer never came", request=request)
        return exchanged


class Effects:
    """The third argument of an agent under test: for effects that do not go through its `http` argument.

    `transport` is for HTTP clients that the agent makes itself, of httpx, synchronous or not.
    """

    def __init__(self, life: Life) -> None:
        self._life = life
        self.transport = ProviderLine(life)

    def wrap(self, name: str, function: F) -> F:
        """Return the function, each call of it counted as an effect of that name, and a crash point.

        A coroutine function stays one. A call that raises has had no effect. When its answer is lost, the call raises `TimeoutError`.
        """
        return _wrap_async(self._life, name, function) if is_async(function) else _wrap_sync(self._life, name, function)


def _wrap_async(life: Life, name: str, function: F) -> F:
    @functools.wraps(function)
    async def wrapped(*args: Any, **more: Any) -> Any:
        if life.ends():
            await life.silence()
        effect = life.outside.asked(name, life.number)
        if life.fate_before(effect) is _Fate.DIE:
            await life.silence()
        value = await function(*args, **more)
        effect.applied, effect.answer = True, value
        fate = life.fate_after(effect)
        if fate is _Fate.DIE:
            await life.silence()
        return _returned(name, value, fate)

    return wrapped  # type: ignore[return-value]


def _wrap_sync(life: Life, name: str, function: F) -> F:
    @functools.wraps(function)
    def wrapped(*args: Any, **more: Any) -> Any:
        if life.ends():
            life.kill_thread()
        effect = life.outside.asked(name, life.number)
        if life.fate_before(effect) is _Fate.DIE:
            life.kill_thread()
        value = function(*args, **more)
        effect.applied, effect.answer = True, value
        fate = life.fate_after(effect)
        if fate is _Fate.DIE:
            life.kill_thread()
        return _returned(name, value, fate)

    return wrapped  # type: ignore[return-value]


def _returned(name: str, value: Any, fate: _Fate) -> Any:
    if fate is _Fate.LOSE:
        raise TimeoutError(f"the answer to {name} never came")
    return value
