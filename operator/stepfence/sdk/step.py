"""What `perform` is handed: the step's key and time, and the mark where sending begins."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from stepfence.sdk.classify import Classifier, classify
from stepfence.sdk.errors import Fenced, NotApplied
from stepfence.sdk.latch import Latch

__all__ = ["Sending", "Step", "marks_sending"]


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
        self._latch = latch
        self._classifiers = classifiers
        self.sending_began = False
        # A request went out whose effect nobody can rule out.
        self.uncertain = False
        self._refusals: list[tuple[BaseException, NotApplied]] = []

    @property
    def time_left(self) -> float:
        """Seconds until the deadline, never below 0. Give it to the client as its time-out."""
        return max(0.0, self.deadline - self._clock())

    def sending(self) -> Sending:
        """Mark one request: `async with step.sending():` (or `with`). One request a block, nothing sent outside of one.

        Raises `TimeoutError` past the deadline and `Fenced` when another worker is known to hold the run: then nothing is sent.
        """
        return Sending(self)

    def refusal_of(self, error: BaseException) -> NotApplied | None:
        """Return what a classifier said of this error, or of one that it was raised from, inside a sending block."""
        seen: BaseException | None = error
        while seen is not None:
            for known, verdict in self._refusals:
                if known is seen:
                    return verdict
            seen = seen.__cause__ or seen.__context__
        return None

    def _enter(self) -> None:
        if isinstance(self._latch.stop, Fenced):
            raise self._latch.stop.again()
        if self.time_left <= 0:
            raise TimeoutError(f"step {self.id!r} is past its deadline: nothing more is sent")
        self.sending_began = True

    def _exit(self, error: BaseException | None) -> None:
        verdict = None if error is None else classify(error, self._classifiers)
        if error is None or verdict is None:
            self.uncertain = True
        else:
            self._refusals.append((error, verdict))


class Sending:
    """The block in which a request goes out; both `with` and `async with`."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def __enter__(self) -> None:
        self._step._enter()  # noqa: SLF001  (two halves of one thing)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._step._exit(error)  # noqa: SLF001

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)


def marks_sending(perform: Callable[..., Any]) -> bool:
    """Whether the function's own code names `sending`: then what it raises before the mark means that nothing was sent.

    A function that sends without a mark is the dangerous case, so what cannot be seen counts as unmarked.
    """
    while isinstance(perform, functools.partial):
        perform = perform.func
    function = inspect.unwrap(perform)
    if not isinstance(function, types.FunctionType | types.MethodType):
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    return code is not None and _names_sending(code)


def _names_sending(code: types.CodeType) -> bool:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return "sending" in code.co_names or any(_names_sending(each) for each in inner)
