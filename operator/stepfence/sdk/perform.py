"""Runs the user's function and says how it ended, without ever letting its exception loose in a task of ours."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import JsonValue

from stepfence.sdk.calls import now
from stepfence.sdk.step import Step

__all__ = [
    "Ended",
    "Perform",
    "Performance",
    "Raised",
    "Returned",
    "Starter",
    "inside_step",
    "is_async",
    "is_generator",
    "local_starter",
    "outcome_of",
]

Perform = Callable[[JsonValue, Step], Any]

_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("stepfence_inside_step", default=False)


@dataclass(frozen=True, slots=True)
class Returned:
    """The function returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The function raised."""

    error: BaseException


Ended = Returned | Raised


class Performance:
    """A function that runs. `cancel` is None when it cannot be stopped (a thread)."""

    def __init__(self, future: asyncio.Future[Ended], cancel: Callable[[], object] | None) -> None:
        self._future = future
        self._cancel = cancel

    @property
    def can_be_stopped(self) -> bool:
        """Whether `cancel` does anything."""
        return self._cancel is not None

    def cancel(self) -> None:
        """Ask it to stop."""
        if self._cancel is not None:
            self._cancel()

    async def wait(self, until: float) -> Ended | None:
        """Return how it ended, or None when it still runs at `until` (the loop's clock)."""
        await asyncio.wait({self._future}, timeout=max(0.0, until - now()))
        return self._future.result() if self._future.done() else None


class Starter(Protocol):
    """Starts the user's function somewhere: in the loop, in a thread, in the calling thread."""

    def __call__(self, perform: Perform, payload: JsonValue, step: Step) -> Performance: ...


def inside_step() -> bool:
    """Whether this code runs inside a step's `perform`."""
    return _inside.get()


def is_async(perform: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    return _is(inspect.iscoroutinefunction, perform)


def is_generator(perform: Callable[..., Any]) -> bool:
    """Whether calling it does nothing yet: what it does would be done later, outside of the step."""
    return _is(inspect.isgeneratorfunction, perform) or _is(inspect.isasyncgenfunction, perform)


def _is(kind: Callable[[Any], bool], perform: Callable[..., Any]) -> bool:
    while isinstance(perform, functools.partial):
        perform = perform.func
    return kind(perform) or kind(type(perform).__call__)


def outcome_of(call: Callable[[], Any]) -> Ended:
    """Call it, in a context that knows that it is inside a step, and tell how it ended."""
    context = contextvars.copy_context()
    context.run(_inside.set, True)
    try:
        return Returned(context.run(call))
    except BaseException as error:  # noqa: BLE001  (judged by the caller: what is uncaught here would break the loop)
        return Raised(error)


def local_starter(pool: Executor) -> Starter:
    """Start coroutine functions as tasks, others in a thread of `pool`."""

    def start(perform: Perform, payload: JsonValue, step: Step) -> Performance:
        context = contextvars.copy_context()
        context.run(_inside.set, True)
        if is_async(perform):
            task = asyncio.get_running_loop().create_task(_awaited(functools.partial(perform, payload, step)), context=context)
            return Performance(task, task.cancel)
        return Performance(asyncio.create_task(_threaded(pool, perform, payload, step)), None)

    return start


async def _awaited(call: Callable[[], Awaitable[Any]]) -> Ended:
    try:
        return Returned(await call())
    except BaseException as error:  # noqa: BLE001  (as above)
        return Raised(error)


async def _threaded(pool: Executor, perform: Perform, payload: JsonValue, step: Step) -> Ended:
    call = functools.partial(outcome_of, functools.partial(perform, payload, step))
    context = contextvars.copy_context()
    ended = await asyncio.get_running_loop().run_in_executor(pool, context.run, call)
    if isinstance(ended, Returned) and inspect.isawaitable(ended.value):
        value = ended.value
        return await _awaited(lambda: value)
    return ended
