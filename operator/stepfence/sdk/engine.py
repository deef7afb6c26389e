"""Carries one step through: begin, perform, report, and again as the ledger answers. Nothing here decides what may happen twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

import structlog
from pydantic import JsonValue

from stepfence.core.canonical import digest
from stepfence.core.errors import Code
from stepfence.core.moves import NOT_STARTED
from stepfence.core.words import Action
from stepfence.sdk import wire
from stepfence.sdk.asked import Asked
from stepfence.sdk.calls import Calls, new_request_id, now
from stepfence.sdk.errors import (
    CallRefused,
    PayloadChanged,
    ResultNotStored,
    StepDenied,
    StepFailed,
    Unreachable,
    Unsettled,
)
from stepfence.sdk.latch import Latch
from stepfence.sdk.payloads import RECORDED_OTHERWISE, first_difference
from stepfence.sdk.perform import Ended, Performance, Raised, Returned
from stepfence.sdk.probing import Prober
from stepfence.sdk.results import LARGEST_BODY, NULL_DIGEST, round_trip
from stepfence.sdk.settings import Options
from stepfence.sdk.step import Step
from stepfence.sdk.stepcall import StepCall
from stepfence.sdk.transport import Unavailable
from stepfence.sdk.verdict import Complete, Fail, Lose, judge, read_may_fail

__all__ = ["Engine"]

log = structlog.get_logger(__name__)

_FALLBACK_TIMEOUT = 60.0
_SHORTEST_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class Result:
    """The step is done; plain JSON."""

    value: JsonValue


@dataclass(frozen=True, slots=True)
class Again:
    """Begin again after a pause (seconds)."""

    pause: float = 0.0


Turn = Result | Again


class Engine:
    """Steps of one claim. `die` ends the process when a function that cannot be stopped is past its deadline."""

    def __init__(
        self, calls: Calls, latch: Latch, options: Options, *, margin: float, die: Callable[[str, float], Awaitable[NoReturn]]
    ) -> None:
        self._calls = calls
        self._latch = latch
        self._options = options
        self._margin = margin
        self._die = die
        self.plan: wire.Plan | None = None
        self.active: dict[asyncio.Task[Ended], StepCall] = {}
        self.asked = Asked(latch)

    def launch(self, call: StepCall) -> asyncio.Task[Ended]:
        """Start the call as a task of its own, which no cancellation of the caller reaches."""
        task = asyncio.create_task(self._whole(call), name=f"stepfence:{call.id}")
        self.active[task] = call
        task.add_done_callback(self._ended)
        return task

    def leave(self) -> None:
        """Let no call begin anything more; what is in flight settles."""
        self.asked.left = True
        for call in self.active.values():
            call.abandon()

    def _ended(self, task: asyncio.Task[Ended]) -> None:
        del self.active[task]

    async def _whole(self, call: StepCall) -> Ended:
        try:
            return Returned(await self._execute(call))
        except BaseException as error:  # noqa: BLE001  (raised again in the caller's own task: SystemExit here would break the loop)
            return Raised(error)

    async def _execute(self, call: StepCall) -> JsonValue:
        pause = 0.0
        while True:
            await call.pause(pause, self._latch)
            call.fly(True)
            try:
                turn = await self._turn(call)
            finally:
                call.fly(False)
            if isinstance(turn, Result):
                return turn.value
            pause = turn.pause

    async def _turn(self, call: StepCall) -> Turn:
        answer, started = await self._begin(call)
        call.heard = True
        await self._refuse_changed(call, answer)
        match answer:
            case wire.Go():
                return await self._go(call, answer, started)
            case wire.Done():
                self._warn_if_changed(call, answer.payload_changed)
                return Result(await self._recorded(call.id, answer))
            case wire.Wait():
                return Again(max(answer.retry_after_seconds, _SHORTEST_PAUSE))
            case wire.Probe():
                return await self._probe(call, answer)
            case wire.Failed():
                raise StepFailed(call.id, answer.reason, answer.message, answer.attempt) from call.error
            case wire.Denied():
                raise StepDenied(call.id, answer.reason, answer.message)

    async def _begin(self, call: StepCall) -> tuple[wire.BeginAnswer, float]:
        """Ask until there is an answer, under one request id as long as an earlier try may have been heard (R3, R8).

        Returns the answer and the moment before the first request under its id, from which the deadline counts.
        """
        patience = now() + self._options.patience
        delays = self._calls.delays()
        body, started, heard = self._begin_body(call), now(), False
        while True:
            left = started + self._timeout(call) - now()
            # Past the deadline there is no go any more, but until the margin has passed an attempt that was begun for this id can still be
            # told as not started, before it becomes a doubt.
            if not heard or left <= -self._margin:
                call.check(self._latch)
                body, started, heard = self._begin_body(call), now(), False
                left = self._timeout(call)
            try:
                answer = await self._calls.begin_once(call.id, body, max(1.0, left))
                if not isinstance(answer, wire.Expired):
                    return answer, started
                await self._not_started(call, answer.attempt)
                heard = False
                continue
            except Unavailable as error:
                heard = heard or error.sent
                pause = max(next(delays), error.retry_after or 0.0)
                if now() + pause >= patience:
                    raise self._latch.set(Unreachable(f"begin of step {call.id!r}: {error}")) from error
                log.warning("stepfence.begin.repeated", step=call.id, seconds=round(pause, 2), cause=str(error))
            except CallRefused as refused:
                if refused.code == Code.PAYLOAD_CHANGED:
                    raise PayloadChanged(call.id, refused.detail, brought=call.digest) from refused
                raise
            await asyncio.sleep(pause)

    async def _refuse_changed(self, call: StepCall, answer: wire.BeginAnswer) -> None:
        """Raise `PayloadChanged` for who wants that rather than what is recorded. Nothing is performed, and no attempt is used up."""
        recorded = (answer.payload_digest or None) if isinstance(answer, wire.Go | wire.Probe) else None
        changed = recorded != call.digest if recorded else isinstance(answer, wire.Go | wire.Done) and answer.payload_changed
        if not call.strict or not changed:
            return
        field = first_difference(answer.payload, call.payload) if isinstance(answer, wire.Go | wire.Probe) else None
        if isinstance(answer, wire.Go):
            await self._not_started(call, answer.attempt, "the payload is not the recorded one")
        raise PayloadChanged(call.id, RECORDED_OTHERWISE, recorded=recorded, brought=call.digest, field=field)

    async def _not_started(self, call: StepCall, attempt: int, why: str = "the answer to begin came after the deadline") -> None:
        """Say that an attempt was not performed, as when its go came too late: a person may meanwhile have truthfully said so (R8)."""
        fail = Fail(NOT_STARTED, why)
        await self._calls.report(call.id, "fail", fail.body(attempt))

    def _begin_body(self, call: StepCall) -> dict[str, JsonValue]:
        return {
            "requestID": new_request_id(),
            "token": self._calls.token,
            "payload": call.payload,
            "payloadDigest": call.digest,
        }

    def _timeout(self, call: StepCall) -> float:
        planned = self.plan.step(call.id) if self.plan else None
        return planned.timeout_seconds if planned else _FALLBACK_TIMEOUT

    async def _go(self, call: StepCall, go: wire.Go, started: float) -> Turn:
        self._warn_if_changed(call, go.payload_changed)
        limit = go.timeout_seconds if call.limit is None else min(call.limit, go.timeout_seconds)
        deadline = min(started + limit, now() + go.time_left_seconds)
        if now() >= deadline:
            await self._not_started(call, go.attempt)
            return Again()
        clock = asyncio.get_running_loop().time
        step = Step(call.id, go.key, go.attempt, deadline=deadline, clock=clock, latch=self._latch, classifiers=call.classifiers)
        performance = call.start(call.perform, go.payload, step)
        ended = await performance.wait(deadline)
        if ended is None:
            return await self._overdue(call, step, performance)
        step.performed()
        # A task or a thread that it left behind may still be sending: until that has ended nobody can say what it did.
        if not await step.idle(deadline) and not isinstance(ended, Returned):
            return await self._overdue(call, step, performance)
        return await self._settle(call, step, ended)

    async def _overdue(self, call: StepCall, step: Step, performance: Performance) -> Turn:
        """Stop the function, tell the doubt, and still hear a late answer (R13). What cannot be stopped ends the process."""
        performance.cancel()
        if performance.can_be_stopped:
            ended = await self._ended_by(performance, step, step.deadline + self._margin / 4)
            if ended is not None:
                return await self._settle(call, step, ended, overdue=True)
        body: dict[str, JsonValue] = {"attempt": step.attempt, "reason": "DeadlineExceeded", "message": "still running"}
        lost = asyncio.create_task(self._calls.report(call.id, "lose", body))
        ended = await self._ended_by(performance, step, step.deadline + self._margin / 2)
        if ended is None:
            await self._die(f"step {call.id!r} runs past its deadline and cannot be stopped", step.deadline + self._margin * 0.8)
        await asyncio.wait({lost})
        verdict = judge(ended, step, marked=call.marked)
        if isinstance(verdict, Complete):
            return await self._complete(call, step.attempt, verdict.text)
        lost.result()
        return self._after_doubt(call)

    @staticmethod
    async def _ended_by(performance: Performance, step: Step, until: float) -> Ended | None:
        """Return how the function ended; None while it still runs at `until`, or a task or thread of it that sends."""
        ended = await performance.wait(until)
        if ended is None:
            return None
        step.performed()
        return ended if await step.idle(until) or isinstance(ended, Returned) else None

    async def _settle(self, call: StepCall, step: Step, ended: Ended, *, overdue: bool = False) -> Turn:
        """Report how it ended. What is no `Exception` (a stop, an exit) goes on to the caller after that."""
        verdict = judge(ended, step, marked=call.marked, overdue=overdue, harmless=call.action is Action.READ)
        if isinstance(verdict, Complete):
            return await self._complete(call, step.attempt, verdict.text)
        if call.doubts >= self._options.max_reruns or (isinstance(verdict, Lose) and verdict.again_alike):
            verdict = read_may_fail(verdict, call.action)
        return await self._not_done(call, step.attempt, verdict)

    async def _not_done(self, call: StepCall, attempt: int, verdict: Fail | Lose) -> Turn:
        call.error = verdict.error
        verb = "fail" if isinstance(verdict, Fail) else "lose"
        log.info("stepfence.step.not_done", step=call.id, attempt=attempt, told=verb, reason=verdict.reason)
        await self._calls.report(call.id, verb, verdict.body(attempt))
        if isinstance(verdict.error, BaseException) and not isinstance(verdict.error, Exception | asyncio.CancelledError):
            raise verdict.error
        return Again() if isinstance(verdict, Fail) else self._after_doubt(call)

    def _after_doubt(self, call: StepCall) -> Turn:
        """Begin again: the ledger knows whether that may be. Ever slower, and not for ever."""
        call.doubts += 1
        if call.doubts > self._options.max_reruns:
            raise self._latch.set(Unsettled(f"step {call.id!r} ended in doubt {call.doubts} times")) from call.error
        return Again(0.0 if call.doubts == 1 else min(2.0 ** (call.doubts - 2), 30.0))

    async def _complete(self, call: StepCall, attempt: int, text: str) -> Turn:
        body: dict[str, JsonValue] = {"attempt": attempt, "result": round_trip(text)}
        if len(text) > LARGEST_BODY:
            body = _without_result(attempt, text)
        try:
            done = await self._calls.report(call.id, "complete", body)
        except CallRefused as refused:
            if refused.code not in (Code.TOO_LARGE, Code.BAD_REQUEST):
                raise
            # Whatever the gateway has against the result: that it happened must be heard.
            done = await self._calls.report(call.id, "complete", _without_result(attempt, text))
        if done.result_digest not in (None, digest(text)):
            # A person, or another process of this pod, settled it first: one durable result per step (I5).
            log.warning("stepfence.step.other_result", step=call.id, digest=done.result_digest)
            return Result(await self._recorded(call.id, done))
        return Result(round_trip(text))

    async def _probe(self, call: StepCall, doubt: wire.Probe) -> Turn:
        async def pause(seconds: float) -> None:
            call.fly(False)
            await call.pause(seconds, self._latch)
            call.fly(True)

        prober = Prober(self._calls, self._latch, call.start, pause)
        report = await prober.probe(call.id, doubt, call.probe)
        if report.outcome == "Done":
            return Result(await self._recorded(call.id, report))
        call.findings += 1
        back_off = min(2.0 ** (call.findings - 1), 60.0) if report.outcome == "Unknown" else 0.0
        return Again(max(report.retry_after_seconds, back_off))

    async def _recorded(self, step_id: str, done: wire.Done | wire.Reported) -> JsonValue:
        if not done.result_stored:
            raise ResultNotStored(step_id, done.result_bytes, done.result_digest)
        if done.result is None and done.result_digest not in (None, NULL_DIGEST):
            return await self._calls.stored_result(step_id)
        return done.result

    def _warn_if_changed(self, call: StepCall, changed: bool) -> None:
        if changed:
            log.warning("stepfence.payload.changed", step=call.id, digest=call.digest)


def _without_result(attempt: int, text: str) -> dict[str, JsonValue]:
    return {"attempt": attempt, "result": None, "resultDigest": digest(text), "resultBytes": len(text.encode())}
