"""Ask the provider whether an attempt happened, from when the answer counts (R1, R2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog
from pydantic import JsonValue

from stepfence.sdk import wire
from stepfence.sdk.calls import Calls, now
from stepfence.sdk.latch import Latch
from stepfence.sdk.perform import Raised, Starter
from stepfence.sdk.results import keep_small, round_trip
from stepfence.sdk.step import Step

__all__ = ["CannotTell", "DidNotHappen", "Finding", "Happened", "ProbeFunction", "Prober"]

log = structlog.get_logger(__name__)

_DEFAULT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Happened:
    """The provider knows the action: `result` is what `perform` would have returned."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """The provider surely does not know the action with this key. An empty answer of a search that lags behind is no such thing."""


@dataclass(frozen=True, slots=True)
class CannotTell:
    """The provider could not say. `give_up`: asking again is pointless, ask a person."""

    message: str = ""
    give_up: bool = False


Finding = Happened | DidNotHappen | CannotTell
ProbeFunction = Callable[[JsonValue, Step], Finding | Awaitable[Finding]]
Pause = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Prober:
    """Carries out one probe. `pause` waits interruptibly; `seconds` bounds the user's function."""

    calls: Calls
    latch: Latch
    start: Starter
    pause: Pause
    seconds: float = _DEFAULT_SECONDS

    async def probe(self, step_id: str, doubt: wire.Probe, function: ProbeFunction | None) -> wire.Reported:
        """Wait for leave, ask, report; return what became of the step (`Done`, `Failed` or `Unknown`)."""
        await self.pause(doubt.retry_after_seconds)
        as_of = await self._leave(step_id, doubt.attempt)
        finding: Finding = CannotTell("the worker has no probe for this step", give_up=True)
        if function is not None:
            finding = await self._ask(step_id, doubt, function)
        log.info("stepfence.probe", step=step_id, attempt=doubt.attempt, verdict=type(finding).__name__)
        return await self.calls.report(step_id, "probe", self._body(step_id, doubt.attempt, as_of, finding))

    async def _leave(self, step_id: str, attempt: int) -> str | None:
        while True:
            leave = await self.calls.probe_leave(step_id, attempt)
            if leave.outcome == "Go":
                return leave.as_of
            await self.pause(max(leave.retry_after_seconds, 0.1))

    async def _ask(self, step_id: str, doubt: wire.Probe, function: ProbeFunction) -> Finding:
        clock = asyncio.get_running_loop().time
        step = Step(step_id, doubt.key, doubt.attempt, deadline=now() + self.seconds, clock=clock, latch=self.latch)
        performance = self.start(function, doubt.payload, step)
        ended = await performance.wait(step.deadline)
        if ended is None:
            performance.cancel()
            return CannotTell("the probe did not answer in time")
        if isinstance(ended, Raised):
            return CannotTell(f"{type(ended.error).__name__}")
        if not isinstance(ended.value, Happened | DidNotHappen | CannotTell):
            raise TypeError(f"probe of step {step_id!r} must return Happened, DidNotHappen or CannotTell, not {ended.value!r}")
        return ended.value

    @staticmethod
    def _body(step_id: str, attempt: int, as_of: str | None, finding: Finding) -> dict[str, JsonValue]:
        body: dict[str, JsonValue] = {"attempt": attempt, "asOf": as_of, "verdict": type(finding).__name__}
        if isinstance(finding, Happened):
            # That it happened must be heard, whatever the probe could find out of the result.
            body["result"] = round_trip(keep_small(finding.result, f"result of the probe of step {step_id!r}"))
        if isinstance(finding, CannotTell) and finding.give_up:
            body["giveUp"] = True
        return body
