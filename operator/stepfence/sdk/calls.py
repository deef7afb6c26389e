"""The worker API as typed calls, each repeated as its meaning allows.

A repeated call keeps its request id, so that the gateway answers what it recorded. Reports of what happened are repeated until the
process is killed; what promises nothing yet has a deadline.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import structlog
from pydantic import JsonValue

from stepfence.core.errors import Code
from stepfence.sdk import wire
from stepfence.sdk.errors import CallRefused, Cancelled, Fenced, Stop, Unreachable
from stepfence.sdk.latch import Latch, stop_from_problem
from stepfence.sdk.settings import Options
from stepfence.sdk.transport import Problem, Unavailable

__all__ = ["Calls", "Sender", "new_request_id", "now"]

log = structlog.get_logger(__name__)

_TOKEN_ROTATION_SECONDS = 30.0
_NEWS_SECONDS = 15.0
_LAST_WORDS = frozenset({"/release", "/drain"})


class Sender(Protocol):
    """What makes one call."""

    async def send(self, method: str, path: str, body: Mapping[str, JsonValue] | None = None, *, limit: float = ...) -> Any: ...


def new_request_id() -> str:
    """Return a random id for one call and its repeats (R3)."""
    return secrets.token_urlsafe(16)


def now() -> float:
    """The running loop's monotonic clock, in seconds."""
    return asyncio.get_running_loop().time()


class Calls:
    """One worker's conversation with the gateway. `token` is set by `claim`, or by `adopt` when another process of the pod claimed."""

    def __init__(self, sender: Sender, latch: Latch, options: Options) -> None:
        self._sender = sender
        self._latch = latch
        self._options = options
        self.token: int | None = None
        self._proof: dict[str, JsonValue] = {}
        self.last_write = now()

    async def claim(self) -> wire.Claim:
        """Take the run; wait while an older pod still lives. Raises a `Stop` or `CallRefused`."""
        start = now()
        body: dict[str, JsonValue] = {"requestID": new_request_id(), "lease": False}
        delays = self.delays()
        while True:
            try:
                self._latch.check()
                reply = await self._insist("/claim", body, until=start + self._options.claim_patience)
            except Problem as problem:
                pause = max(next(delays), problem.body.retry_after_seconds or 0.0)
                if now() + pause >= start + self._patience_with(problem.body.code):
                    raise self._unclaimed(problem) from problem
                log.info("stepfence.claim.waiting", seconds=round(pause, 2), cause=str(problem))
                await asyncio.sleep(pause)
            else:
                answer = wire.read(wire.Claim, reply)
                self.adopt(answer.token, answer.token_proof)
                return answer

    def adopt(self, token: int, proof: str | None) -> None:
        """Speak under that token from now on. `proof`: what the claim answered beside it; older gateways answer none."""
        self.token = token
        self._proof = {} if proof is None else {"tokenProof": proof}

    def _patience_with(self, code: str) -> float:
        if code in (Code.HOLDER_ALIVE, Code.BUSY):
            return self._options.claim_patience
        # A gateway may know of this pod, or of its run's new worker number, a moment late.
        return _NEWS_SECONDS if code in (Code.FORBIDDEN, Code.NOT_FOUND) else 0.0

    def _unclaimed(self, problem: Problem) -> BaseException:
        code = problem.body.code
        if code in (Code.HOLDER_ALIVE, Code.BUSY):
            return Unreachable(f"the run was not given to this pod: {problem}")
        if code == Code.FORBIDDEN:
            return Fenced(f"the run was not given to this pod: {problem.body.detail}")
        if code == Code.NOT_FOUND:
            return Cancelled(f"the run is not there: {problem.body.detail}")
        return self._refusal(problem)

    async def begin_once(self, step: str, body: Mapping[str, JsonValue], limit: float) -> wire.BeginAnswer | wire.Expired:
        """Ask once; raise `Unavailable`, a `Stop`, `CallRefused`. `Busy` is answered as a wait."""
        try:
            reply = await self._send("POST", f"/steps/{step}/begin", {**self._proof, **body}, limit=limit)
        except Problem as problem:
            if problem.body.code == Code.BUSY:
                pause = problem.body.retry_after_seconds or 1.0
                return wire.Wait(outcome="Wait", retry_after_seconds=pause, reason="Busy")
            if problem.body.code == Code.BEGIN_EXPIRED and problem.body.attempt is not None:
                return wire.Expired(outcome="Expired", attempt=problem.body.attempt)
            raise self._refusal(problem) from problem
        return wire.read_begin(reply)

    async def report(self, step: str, verb: str, body: Mapping[str, JsonValue]) -> wire.Reported:
        """Tell what became of an attempt, until it is heard. Raises a `Stop` when the ledger has moved on without this worker."""
        try:
            reply = await self._insist(f"/steps/{step}/{verb}", self._body(body), until=None)
        except Problem as problem:
            refusal = self._refusal(problem)
            if isinstance(refusal, Stop) or problem.body.code in (Code.TOO_LARGE, Code.BAD_REQUEST, Code.TOO_EARLY):
                raise refusal from problem
            # The attempt is not the recorded one any more: whatever this worker believes of the run is out of date.
            raise self._latch.set(Fenced(f"the ledger has moved on: {problem}")) from problem
        return wire.read(wire.Reported, reply)

    async def probe_leave(self, step: str, attempt: int) -> wire.Leave:
        """Ask whether a probe may start now (R1, R2)."""
        return wire.read(wire.Leave, await self._promise(f"/steps/{step}/probe", {"attempt": attempt}))

    async def stored_result(self, step: str) -> JsonValue:
        """Fetch a result that stands in a record."""
        until = now() + self._options.patience
        try:
            reply = await self._insist(f"/steps/{step}/result", None, until=until, method="GET")
        except Problem as problem:
            raise self._refusal(problem) from problem
        return wire.read(wire.StoredResult, reply).result

    async def plan(self, steps: list[JsonValue]) -> wire.Plan:
        """Submit the plan, or its longer version."""
        return wire.read(wire.PlanAnswer, await self._promise("/plan", {"steps": steps})).plan

    async def renew(self) -> wire.Renewed:
        """Renew the lease, once. Raises `Unavailable` or a `Stop`."""
        try:
            return wire.read(wire.Renewed, await self._send("POST", "/renew", self._body({})))
        except Problem as problem:
            raise self._refusal(problem) from problem

    async def end(self, verb: str, body: Mapping[str, JsonValue]) -> Any:
        """`finish`, `fail` or `halt` the run, until it is heard."""
        try:
            return await self._insist(f"/{verb}", self._body(body), until=None)
        except Problem as problem:
            raise self._refusal(problem) from problem

    async def drain(self, seconds: float) -> None:
        """Tell the gateway that this worker begins nothing more."""
        await self._briefly("/drain", {}, seconds)

    async def release(self, reason: str, seconds: float) -> bool:
        """Let the run go, for at most `seconds`; return whether that was heard. Never raises: the worker is leaving."""
        try:
            await self._briefly("/release", {"reason": reason}, seconds)
        except (Stop, CallRefused) as refused:
            log.info("stepfence.release.unheard", reason=reason, answer=str(refused))
            return False
        return True

    async def _promise(self, path: str, body: Mapping[str, JsonValue]) -> Any:
        until = now() + self._options.patience
        try:
            return await self._insist(path, self._body(body), until=until)
        except Problem as problem:
            raise self._refusal(problem) from problem
        except Unreachable as unreachable:
            raise self._latch.set(unreachable) from unreachable

    async def _briefly(self, path: str, body: Mapping[str, JsonValue], seconds: float) -> Any:
        try:
            return await self._insist(path, self._body(body), until=now() + seconds)
        except Problem as problem:
            raise self._refusal(problem, latch=False) from problem

    async def _insist(self, path: str, body: Mapping[str, JsonValue] | None, *, until: float | None, method: str = "POST") -> Any:
        """Repeat one call until it is answered or `until` has come (`Unreachable`, latched by who must). Raises `Problem`."""
        delays = self.delays()
        rotation_until = now() + _TOKEN_ROTATION_SECONDS
        while True:
            limit = 3600.0 if until is None else max(1.0, until - now())
            try:
                return await self._send(method, path, body, limit=limit)
            except Unavailable as error:
                cause: Exception = error
                pause = max(next(delays), error.retry_after or 0.0)
            except Problem as problem:
                # A rotated token may be read a moment too early or too late. And what happened is told until a gateway has heard it, not
                # a proxy in the way that says no.
                rotated = problem.body.code == Code.UNAUTHENTICATED and now() < rotation_until
                if not rotated and not (problem.foreign and until is None):
                    raise
                cause, pause = problem, max(next(delays), 0.5)
            if until is not None:
                # It promises nothing yet, so a stop ends it; a release is what follows a stop.
                if path not in _LAST_WORDS:
                    self._latch.check()
                if now() + pause >= until:
                    raise Unreachable(f"{path}: {cause}") from cause
            log.warning("stepfence.call.repeated", path=path, seconds=round(pause, 2), cause=str(cause))
            await asyncio.sleep(pause)

    async def _send(self, method: str, path: str, body: Mapping[str, JsonValue] | None, *, limit: float = 30.0) -> Any:
        reply = await self._sender.send(method, path, body, limit=limit)
        self.last_write = now()
        return reply

    def _body(self, body: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        return {"requestID": new_request_id(), "token": self.token, **self._proof, **body}

    def _refusal(self, problem: Problem, *, latch: bool = True) -> BaseException:
        stop = stop_from_problem(problem.body, claimed=self.token is not None)
        if stop is not None:
            return self._latch.set(stop) if latch else stop
        return CallRefused(problem.body.code, problem.body.detail, field=problem.body.field)

    def delays(self) -> Iterator[float]:
        """Exponential back-off with jitter, capped, in seconds."""
        delay = self._options.backoff_base
        while True:
            yield delay * random.uniform(0.5, 1.0)  # noqa: S311  (jitter, no secret)
            delay = min(delay * 2, self._options.backoff_cap)
