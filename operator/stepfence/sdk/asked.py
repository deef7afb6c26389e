"""What this program has asked under each step id: one payload an id, and one call at a time, whose outcome all who ask get."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from stepfence.sdk.errors import CallRefused, PayloadChanged, Stop
from stepfence.sdk.latch import Latch
from stepfence.sdk.payloads import ASKED_OTHERWISE, first_difference
from stepfence.sdk.perform import Ended, Raised, Returned
from stepfence.sdk.stepcall import Abandoned, StepCall

__all__ = ["Asked", "Launched"]

Launched = Callable[[asyncio.Task[Ended]], asyncio.Task[Ended]]
CarryOut = Callable[[StepCall, Launched], Awaitable[Any]]
Outcome = asyncio.Future[Ended | None]


@dataclass(slots=True)
class _First:
    """The payload that was asked first under an id. `outcome`: that of the call in progress, None when it ended without one."""

    digest: str
    payload: JsonValue
    heard: bool = False
    outcome: Outcome | None = None


class Asked:
    """The calls of one connection, by step id. `left`: the block was left, nothing begins any more."""

    def __init__(self, latch: Latch) -> None:
        self._latch = latch
        self._firsts: dict[str, _First] = {}
        self.left = False

    async def once(self, call: StepCall, carry_out: CarryOut) -> Any:
        """Carry the call out, or wait for one of the same id that is in progress and return (or raise) what came of it.

        When that one is cancelled with nothing in flight, the next who waits carries out its own. Raises `PayloadChanged` before anything
        is sent when the id was asked for with another payload.
        """
        while True:
            self._latch.check()
            first = self._first_of(call)
            outcome = first.outcome
            if outcome is None:
                return await self._lead(first, call, carry_out)
            # Not awaited itself: who is cancelled while waiting must not cancel it for the others.
            await asyncio.wait({outcome})
            ended = outcome.result()
            if ended is None or (isinstance(ended, Raised) and isinstance(ended.error, Abandoned)):
                if self.left:
                    raise asyncio.CancelledError("the run was left while this step waited")
                continue
            return _shared(ended)

    def _first_of(self, call: StepCall) -> _First:
        first = self._firsts.setdefault(call.id, _First(call.digest, call.payload))
        if first.digest != call.digest:
            field = first_difference(first.payload, call.payload)
            raise PayloadChanged(call.id, ASKED_OTHERWISE, recorded=first.digest, brought=call.digest, field=field)
        return first

    async def _lead(self, first: _First, call: StepCall, carry_out: CarryOut) -> Any:
        first.outcome = asyncio.get_running_loop().create_future()
        launched = False

        def tell(task: asyncio.Task[Ended]) -> asyncio.Task[Ended]:
            nonlocal launched
            launched = True
            task.add_done_callback(lambda done: self._ended(first, call, _outcome(done)))
            return task

        try:
            return await carry_out(call, tell)
        finally:
            if not launched:
                self._ended(first, call, None)

    def _ended(self, first: _First, call: StepCall, ended: Ended | None) -> None:
        assert first.outcome is not None, "told once"  # noqa: S101  (a fault of ours)
        first.heard = first.heard or call.heard
        first.outcome.set_result(ended)
        first.outcome = None
        if not first.heard and _nothing_recorded(ended):
            # Refused, or never asked: the program may ask for something else under this id.
            del self._firsts[call.id]


def _outcome(task: asyncio.Task[Ended]) -> Ended:
    return Raised(asyncio.CancelledError("the step's task was cancelled")) if task.cancelled() else task.result()


def _nothing_recorded(ended: Ended | None) -> bool:
    return ended is None or (isinstance(ended, Raised) and isinstance(ended.error, CallRefused | PayloadChanged | Abandoned))


def _shared(ended: Ended) -> Any:
    """Give what the call in progress came to: a result of its own to each, for the program may change it."""
    if isinstance(ended, Returned):
        return copy.deepcopy(ended.value)
    raise ended.error.again() if isinstance(ended.error, Stop) else ended.error
