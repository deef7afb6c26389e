"""What `perform` is handed: the step's key and time, and the mark where sending begins."""

from __future__ import annotations

import asyncio
import contextlib
import dis
import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from stepfence.sdk.classify import Classifier
from stepfence.sdk.errors import moment
from stepfence.sdk.latch import Latch
from stepfence.sdk.sending import Attempt, Sending

__all__ = ["Step", "marks_sending"]


class Step:
    """One attempt of one step.

    `key` is the idempotency key, the same for all attempts; `attempt` counts from 1; `deadline` is on the loop's monotonic clock.
    """

    def __init__(
        self,
        step_id: str,
        key: str,
        attempt: int,
        *,
        deadline: float,
        clock: Callable[[], float],
        latch: Latch,
        classifiers: Sequence[Classifier] = (),
    ) -> None:
        self.id = step_id
        self.key = key
        self.attempt = attempt
        self.deadline = deadline
        self._clock = clock
        self._sends = Attempt(f"attempt {attempt} of step {step_id!r}", lambda: self.time_left, latch, classifiers)

    @property
    def time_left(self) -> float:
        """Seconds until the deadline, never below 0. Give it to the client as its time-out."""
        return max(0.0, self.deadline - self._clock())

    def sending(self) -> Sending:
        """Mark one request: `async with step.sending():` (or `with`). One request a block, nothing sent outside of one.

        Entering raises `TimeoutError` past the deadline, `Fenced` when another worker is known to hold the run, and `RuntimeError` when the
        attempt is over, the block was used before, or this is another process (a fork): then nothing is sent.
        """
        return Sending(self._sends)

    def performed(self) -> None:
        """Note that `perform` has ended; how it ended is not told yet."""
        self._sends.performed = self._sends.performed or moment()

    def told(self, *, done: bool) -> Attempt:
        """Let nothing more be sent, and return what is known of what was: the attempt is about to be told. `done`: as done."""
        self._sends.close(done=done)
        return self._sends

    async def idle(self, until: float) -> bool:
        """Wait until no request is on its way; False when one still is at `until` (the loop's clock)."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(changed.set)

        self._sends.wake = wake
        try:
            async with asyncio.timeout_at(until):
                while self._sends.open:
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            return not self._sends.open
        return True


def marks_sending(perform: Callable[..., Any]) -> bool:
    """Whether the function's own code calls `sending` of its second argument: what it raises before that means that nothing was sent.

    A function that sends without a mark is the dangerous case, so what cannot be seen counts as unmarked. So does a decorated function, and
    whatever else stands before the function: it runs code of its own.
    """
    given = 0
    while True:
        # Exactly these types: a proxy has the class of what it stands for, and what is derived from them may run code of its own.
        if type(perform) is functools.partial:
            if any(each is _PLACEHOLDER for each in perform.args):
                return False
            given, perform = given + len(perform.args), perform.func
        elif type(perform) is types.MethodType:
            given, perform = given + 1, perform.__func__
        else:
            break
    if type(perform) is not types.FunctionType:
        given, perform = given + 1, inspect.getattr_static(type(perform), "__call__")
    if type(perform) is not types.FunctionType or given + 1 >= perform.__code__.co_argcount:
        return False
    step = perform.__code__.co_varnames[given + 1]
    return _marks(perform.__code__, step) and not _binds(perform.__code__, step)


# Of Python 3.14: an argument of a partial that is given later.
_PLACEHOLDER = getattr(functools, "Placeholder", object())
_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_BINDS = ("STORE_FAST", "STORE_DEREF", "DELETE_FAST", "DELETE_DEREF")


@functools.lru_cache(maxsize=512)
def _marks(code: types.CodeType, step: str) -> bool:
    """Whether the code loads the attribute `sending` of the variable `step`, itself or in a function inside of it."""
    loaded = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval == "sending" and loaded == step:
            return True
        if instruction.opname != "EXTENDED_ARG":
            # Python 3.13 has instructions for two variables.
            *_, last = _names(instruction)
            loaded = last if instruction.opname.startswith((*_LOADS, "STORE_FAST_LOAD_FAST")) else None
    return any(_marks(each, step) for each in _inner(code, step))


@functools.lru_cache(maxsize=512)
def _binds(code: types.CodeType, step: str) -> bool:
    """Whether the code makes another object of the variable `step`, itself or in a function inside of it: then its `sending` is no mark."""
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith(_BINDS):
            bound = _names(instruction)
            if step in (bound[:1] if instruction.opname == "STORE_FAST_LOAD_FAST" else bound):
                return True
    return any(_binds(each, step) for each in _inner(code, step))


def _names(instruction: dis.Instruction) -> tuple[Any, ...]:
    return instruction.argval if isinstance(instruction.argval, tuple) and instruction.argval else (instruction.argval,)


def _inner(code: types.CodeType, step: str) -> list[types.CodeType]:
    """Return the functions inside of the code that use its variable `step`."""
    return [each for each in code.co_consts if isinstance(each, types.CodeType) and step in each.co_freevars]
