"""One call of `run.step` while it lasts: what was asked, who waits for it, and whether a step is in flight because of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from pydantic import JsonValue

from stepfence.core.words import Action
from stepfence.sdk.classify import Classifier
from stepfence.sdk.latch import Latch
from stepfence.sdk.perform import Ended, Perform, Raised, Returned, Starter
from stepfence.sdk.probing import ProbeFunction
from stepfence.sdk.step import marks_sending

__all__ = ["Abandoned", "StepCall", "settled"]


class Abandoned(Exception):
    """The caller was cancelled while nothing was in flight."""


@dataclass(slots=True, kw_only=True)
class StepCall:
    """`limit` (seconds) shortens the step's time-out. `error` is the last exception of the user's function.

    `strict`: a recorded payload that differs is an error. `heard`: the ledger has answered, so that the payload may be recorded.
    """

    id: str
    action: Action
    payload: JsonValue
    digest: str
    perform: Perform
    probe: ProbeFunction | None
    start: Starter
    classifiers: Sequence[Classifier]
    limit: float | None = None
    strict: bool = False
    heard: bool = False
    marked: bool = False
    cancelled: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    error: BaseException | None = None
    doubts: int = 0
    findings: int = 0
    on_flight: Callable[[bool], None] | None = None

    def __post_init__(self) -> None:
        self.marked = marks_sending(self.perform)

    def fly(self, in_flight: bool) -> None:
        """Say whether a cancellation must wait from now on: a step may be InFlight because of this call."""
        if self.on_flight is not None:
            self.on_flight(in_flight)

    def abandon(self) -> None:
        """The caller was cancelled: end at the next moment at which nothing is in flight."""
        self.cancelled = True
        self.wake.set()

    async def pause(self, seconds: float, latch: Latch) -> None:
        """Wait with nothing in flight; end early by the stop or by `Abandoned`."""
        self.check(latch)
        if seconds > 0:
            unlisten = latch.listen(self.wake.set)
            try:
                async with asyncio.timeout(seconds):
                    await self.wake.wait()
            except TimeoutError:
                pass
            finally:
                unlisten()
        self.check(latch)

    def check(self, latch: Latch) -> None:
        """Raise what ends this call, if anything does."""
        if self.cancelled:
            raise Abandoned
        latch.check()


async def settled(task: asyncio.Task[Ended], call: StepCall) -> Any:
    """Wait for the call whatever cancels the caller, as long as a step is in flight; then re-raise the cancellation (the settle rule)."""
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope() as scope:

        def shield(in_flight: bool) -> None:
            # A framework that cancels by anyio scopes cancels again and again; a task group or a time-out of asyncio does so once.
            scope.shield = in_flight

        call.on_flight = shield
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                cancelled = error
                call.abandon()
    ended = task.result()
    if isinstance(ended, Raised) and not isinstance(ended.error, Abandoned | Exception):
        raise ended.error
    if cancelled is not None:
        raise cancelled
    if isinstance(ended, Returned):
        return ended.value
    if isinstance(ended.error, Abandoned):
        raise asyncio.CancelledError("the run was left while this step waited")
    raise ended.error
