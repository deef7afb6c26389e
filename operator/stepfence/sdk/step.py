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
        attempt is over or the block was used before: then nothing is sent.
        """
        return Sending(self._sends)

    def performed(self) -> None:
        """Note that `perform` has ended; how it ended is not told yet."""
        self._sends.performed = self._sends.performed or moment()

    def told(self) -> Attempt:
        """Let nothing more be sent, and return what is known of what was: the attempt is about to be told."""
        self._sends.close()
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

    A function that sends without a mark is the dangerous case, so what cannot be seen counts as unmarked. So does a decorated function:
    its wrapper runs code of its own.
    """
    code = _code_of(perform)
    if code is None:
        return False
    try:
        parameters = list(inspect.signature(perform, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len(parameters) > 1 and parameters[1].kind in positional and _marks(code, parameters[1].name)


def _code_of(perform: Callable[..., Any]) -> types.CodeType | None:
    while isinstance(perform, functools.partial | types.MethodType):
        perform = perform.func if isinstance(perform, functools.partial) else perform.__func__
    function = perform if isinstance(perform, types.FunctionType) else type(perform).__call__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, types.CodeType) else None


@functools.lru_cache(maxsize=512)
def _marks(code: types.CodeType, step: str) -> bool:
    """Whether the code loads the attribute `sending` of the variable `step`, itself or in a function inside of it."""
    before: Any = None
    for instruction in dis.get_instructions(code):
        loaded = before[-1] if isinstance(before, tuple) and before else before
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval == "sending" and loaded == step:
            return True
        before = instruction.argval if instruction.opname.startswith("LOAD_") else None
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return any(step in each.co_freevars and _marks(each, step) for each in inner)
