"""The run as its worker sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, overload

import structlog
from pydantic import JsonValue

from stepfence.core.canonical import digest
from stepfence.core.words import Action
from stepfence.sdk import wire
from stepfence.sdk.asked import Launched
from stepfence.sdk.classify import DEFAULT_CLASSIFIERS, Classifier
from stepfence.sdk.errors import CallRefused, Halted, PayloadChanged, RunFailed, Stop
from stepfence.sdk.payloads import RECORDED_OTHERWISE
from stepfence.sdk.perform import Perform, Starter, inside_step, is_generator, local_starter
from stepfence.sdk.planning import PlanStep, plan_document
from stepfence.sdk.probing import ProbeFunction
from stepfence.sdk.results import check_kind, encode, read_result, round_trip
from stepfence.sdk.session import Session
from stepfence.sdk.settings import OnPayloadChange, check_on_payload_change
from stepfence.sdk.stepcall import StepCall, settled

__all__ = ["Run", "StepOptions"]

log = structlog.get_logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """What is rarely needed. `limit` (seconds) makes the time-out shorter; `classifiers` and `on_payload_change` replace the run's."""

    limit: float | None = None
    classifiers: Sequence[Classifier] | None = None
    on_payload_change: OnPayloadChange | None = None

    def __post_init__(self) -> None:
        check_on_payload_change(self.on_payload_change)


_DEFAULTS = StepOptions()


class Run:
    """One claimed run. Made by `connect`."""

    def __init__(self, session: Session, classifiers: Sequence[Classifier] | None = None) -> None:
        self._session = session
        self._classifiers = tuple(DEFAULT_CLASSIFIERS if classifiers is None else classifiers)
        self.starter: Starter = local_starter(session.pool)

    @property
    def run_id(self) -> str:
        """The stable identity of the run."""
        return self._session.claim.run_id

    @property
    def input(self) -> Any:
        """`spec.input`, plain JSON."""
        return self._session.claim.input

    @property
    def remaining(self) -> wire.Remaining:
        """Room that was left in the run's record at the claim: `bytes`, `steps`."""
        return self._session.claim.remaining

    @property
    def stopping(self) -> Stop | None:
        """The stop that has latched, if any: a long computation between steps can look at it and leave early."""
        return self._session.latch.stop

    @property
    def planned(self) -> wire.Plan | None:
        """The recorded plan, None before one is submitted."""
        return self._session.engine.plan

    async def plan(self, steps: Sequence[PlanStep | Mapping[str, JsonValue]]) -> wire.Plan:
        """Submit the plan before the first step; the same again changes nothing, a longer one appends.

        Raises `CallRefused`: `plan-changed`, `bad-request` (a worker's plan may only be stricter than the defaults).
        """
        recorded = await self._session.calls.plan(plan_document(steps))
        self._session.engine.plan = recorded
        return recorded

    @overload
    async def step(
        self,
        step_id: str,
        action: Action,
        payload: Any,
        perform: Perform,
        *,
        probe: ProbeFunction | None = ...,
        result: type[T],
        options: StepOptions = ...,
    ) -> T: ...
    @overload
    async def step(
        self,
        step_id: str,
        action: Action,
        payload: Any,
        perform: Perform,
        *,
        probe: ProbeFunction | None = ...,
        result: Any = ...,
        options: StepOptions = ...,
    ) -> Any: ...
    async def step(
        self,
        step_id: str,
        action: Action,
        payload: Any,
        perform: Perform,
        *,
        probe: ProbeFunction | None = None,
        result: Any = None,
        options: StepOptions = _DEFAULTS,
    ) -> Any:
        """Do one planned step, or return its recorded result.

        `perform(payload, step)` gets the recorded payload (JSON) and is a coroutine function, or a plain one that runs in a thread.
        `probe(payload, step)` asks the provider whether an earlier attempt happened. `result` is the type to return: the JSON goes the same
        way live and replayed. Who asks for a step that is in progress gets what comes of that. Raises `StepFailed`, `StepDenied`,
        `PayloadChanged`, `ResultNotStored`, `ResultNotReadable`, `CallRefused`, `TypeError` (the payload is no JSON), or a `Stop`.
        """
        check_kind(result, step_id)
        call = self.prepare(step_id, action, payload, perform, probe=probe, options=options, start=self.starter)
        return read_result(step_id, await self.perform(call), result)

    async def perform(self, call: StepCall) -> JsonValue:
        """Carry out a prepared call; plain JSON. Raises `PayloadChanged` when this program asked for the step with another payload."""
        try:
            return await self._session.engine.asked.once(call, self._carry_out)  # type: ignore[no-any-return]
        except Stop:
            self._session.latch.delivered = True
            raise

    async def _carry_out(self, call: StepCall, launched: Launched) -> JsonValue:
        async with self._session.slots:
            return await settled(launched(self._session.engine.launch(call)), call)  # type: ignore[no-any-return]

    def prepare(
        self,
        step_id: str,
        action: Action,
        payload: Any,
        perform: Perform,
        *,
        probe: ProbeFunction | None,
        options: StepOptions,
        start: Starter,
    ) -> StepCall:
        """Check what was asked before anything is sent; raises as `step` says."""
        if inside_step():
            raise RuntimeError(f"step {step_id!r} was begun inside another step: a step is one action with one outcome")
        if is_generator(perform):
            raise TypeError(
                f"step {step_id!r}: a generator function does nothing when it is called: write a function that returns its result"
            )
        action = Action(action)
        planned = self.planned.step(step_id) if self.planned else None
        if planned is not None and planned.action != action.value:
            raise CallRefused("plan-changed", f"step {step_id!r} is planned as {planned.action}, not {action.value}", field="action")
        text = encode(payload, f"payload of step {step_id!r}")
        strict = (options.on_payload_change or self._session.options.on_payload_change) == "error"
        if strict:
            self._check_recorded(step_id, digest(text))
        return StepCall(
            id=step_id,
            action=action,
            payload=round_trip(text),
            digest=digest(text),
            strict=strict,
            perform=perform,
            probe=probe,
            start=start,
            classifiers=self._classifiers if options.classifiers is None else tuple(options.classifiers),
            limit=options.limit,
        )

    def _check_recorded(self, step_id: str, brought: str) -> None:
        """Raise `PayloadChanged` for a step that was recorded before the claim with another payload."""
        known = self._session.claim.ledger.get(step_id)
        if known is not None and known.payload_digest not in (None, brought):
            raise PayloadChanged(step_id, RECORDED_OTHERWISE, recorded=known.payload_digest, brought=brought)

    async def finish(self, result: Any = None) -> None:
        """Record success, with a result (JSON). Raises `CallRefused` (`not-settled`) while a step is open, or a `Stop`."""
        await self._session.calls.end("finish", {"result": round_trip(encode(result, "result of the run"))})
        self._session.ended = "Finished"

    async def fail(self, reason: str, message: str = "") -> NoReturn:
        """Stop every further begin; the run is Failed when nothing is open. Raises `RunFailed`: the worker ends with exit code 77."""
        await self._session.calls.end("fail", {"reason": reason, "message": message})
        raise self._session.latch.set(RunFailed(f"{reason}: {message}"))

    async def halt(self, reason: str, message: str = "") -> NoReturn:
        """Ask a person whether the run may go on. Raises `Halted` with the question; a new worker starts after `Resume`."""
        answer = wire.read(wire.Halt, await self._session.calls.end("halt", {"reason": reason, "message": message}))
        detail = f"{reason}: {message}"
        raise self._session.latch.set(Halted(detail, question=answer.question or None, patch=answer.patch))
