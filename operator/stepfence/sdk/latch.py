"""A stop latches: from its first sight on, each later begin raises it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pydantic import JsonValue

from stepfence.core.errors import Code
from stepfence.sdk.errors import Cancelled, Draining, Fenced, Halted, Stop
from stepfence.sdk.wire import ProblemBody

__all__ = ["Latch", "stop_from_problem", "stop_from_word"]

_STOPS: dict[str, type[Stop]] = {
    Code.FENCED: Fenced,
    Code.HALTED: Halted,
    Code.AWAITING_APPROVAL: Halted,
    Code.HELD: Halted,
    Code.DRAINING: Draining,
    Code.CANCELLED: Cancelled,
    Code.TERMINAL: Cancelled,
}
# Only for a worker that has claimed: its run is gone, or its pod is no longer the run's worker.
_STOPS_OF_A_HOLDER: dict[str, type[Stop]] = {
    Code.NOT_FOUND: Cancelled,
    Code.FORBIDDEN: Fenced,
    Code.UNAUTHENTICATED: Fenced,
}


class Latch:
    """The first stop stays; only `Fenced` replaces another, because it also forbids to send. `delivered`: user code has seen it raised."""

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self.event = asyncio.Event()
        self.delivered = False
        self._listeners: list[Callable[[], None]] = []

    def set(self, stop: Stop) -> Stop:
        """Latch a stop and wake who waits; return a copy of the one that counts, to be raised."""
        if self.stop is None or (isinstance(stop, Fenced) and not isinstance(self.stop, Fenced)):
            self.stop = stop
            self.event.set()
            for listener in tuple(self._listeners):
                listener()
        return self.stop.again()

    def check(self) -> None:
        """Raise the latched stop, if there is one."""
        if self.stop is not None:
            self.delivered = True
            raise self.stop.again()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` at each latching until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)


def stop_from_problem(problem: ProblemBody, *, claimed: bool) -> Stop | None:
    """Return the stop that a problem means, or None when it is an error of the program or one to repeat."""
    kind = _STOPS.get(problem.code) or (_STOPS_OF_A_HOLDER.get(problem.code) if claimed else None)
    if kind is None:
        return None
    return kind(problem.detail or problem.title or problem.code, question=problem.question, patch=problem.patch)


def stop_from_word(value: JsonValue) -> Stop | None:
    """Read the `stop` of a claim or renewal: absent, a code, or a problem-like object with `code` (or `type`) and `detail`."""
    if not value:
        return None
    if isinstance(value, dict):
        body = ProblemBody.model_validate({"type": value.get("code", ""), **value})
    else:
        body = ProblemBody(type=str(value), detail=f"the gateway says: {value}")
    kind: type[Stop] = _STOPS.get(body.code.lower(), Halted)
    return kind(body.detail or body.code, question=body.question, patch=body.patch)
