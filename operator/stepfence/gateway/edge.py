"""What every request meets first: an id, a place, a deadline, a line in the log and a figure."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from dataclasses import dataclass

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepfence.core.errors import Code, Refused
from stepfence.gateway import problems
from stepfence.gateway.metrics import Metrics

__all__ = ["Edge", "Limits"]

log = structlog.get_logger(__name__)

REQUEST_ID_HEADER = "Stepfence-Request-Id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BOUND = ("request_id", "pod", "run", "step", "token")
# Probes of the kubelet must be answered when all places are taken.
_ALWAYS = frozenset({"/livez", "/readyz"})


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is served at once, and for how long at most: shorter than a worker waits for its answer."""

    requests: int = 128
    seconds: float = 25.0


class Edge:
    """ASGI middleware around the whole application, its handler of unexpected errors included."""

    def __init__(self, app: ASGIApp, metrics: Metrics, limits: Limits) -> None:
        self._app, self._metrics, self._limits = app, metrics, limits
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, _request_id(scope))
        began = time.perf_counter()
        with structlog.contextvars.bound_contextvars(**{**dict.fromkeys(_BOUND), "request_id": answer.request_id}):
            try:
                await self._admit(scope, receive, answer)
            finally:
                self._tell(scope, answer.status, time.perf_counter() - began)

    async def _admit(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        if scope["path"] in _ALWAYS:
            await self._app(scope, receive, answer.send)
            return
        if self._running >= self._limits.requests:
            refused = Refused(Code.OVER_BUDGET, "this gateway serves as many calls as it can: repeat this call", retry_after=1.0)
            await self._refuse(refused, scope, receive, answer)
            return
        self._running += 1
        self._metrics.in_flight.set(self._running)
        try:
            await self._serve(scope, receive, answer)
        finally:
            self._running -= 1
            self._metrics.in_flight.set(self._running)

    async def _serve(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        deadline = asyncio.timeout(self._limits.seconds)
        try:
            async with deadline:
                await self._app(scope, receive, answer.send)
        except TimeoutError:
            if not deadline.expired() or answer.status:
                raise
            late = Refused(Code.STORE_UNAVAILABLE, f"no answer within {self._limits.seconds:g} s: repeat this call", retry_after=1.0)
            await self._refuse(late, scope, receive, answer)

    async def _refuse(self, refused: Refused, scope: Scope, receive: Receive, answer: _Answer) -> None:
        await problems.response(problems.problem(refused, scope["path"]))(scope, receive, answer.send)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.requests.labels(scope["method"], route, str(status or 500)).observe(seconds)
        write = log.debug if status and status < 400 else log.info if status < 500 else log.warning
        write("gateway.request", method=scope["method"], route=route, status=status, seconds=round(seconds, 4))


class _Answer:
    """Sends an answer with the request's id, which is the caller's own once its body was read. `status` is 0 until it began."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self.request_id, self.status = send, request_id, 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            known = structlog.contextvars.get_contextvars().get("request_id") or self.request_id
            header = (REQUEST_ID_HEADER.lower().encode(), known.encode())
            message = {**message, "headers": [*message.get("headers", ()), header]}
        await self._send(message)


def _request_id(scope: Scope) -> str:
    name = REQUEST_ID_HEADER.lower().encode()
    given = next((value.decode("latin-1") for header, value in scope["headers"] if header == name), "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_urlsafe(16)
