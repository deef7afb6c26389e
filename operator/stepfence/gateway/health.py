"""Alive, ready, and the figures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse

from stepfence.core.errors import StepfenceError
from stepfence.gateway.metrics import Metrics, metrics_of
from stepfence.ports import Clock

__all__ = ["Readiness", "create_health_app", "health_router"]

log = structlog.get_logger(__name__)

_FRESH_SECONDS = 5.0
_ASK_SECONDS = 3.0


class Readiness:
    """Whether workers should be sent here: a certificate is there, the store answers, and this gateway is not leaving.

    `ask` makes one cheap call to the store and raises what its stores raise; its answer is believed for a few seconds.
    """

    def __init__(self, clock: Clock, ask: Callable[[], Awaitable[None]]) -> None:
        self._clock, self._ask = clock, ask
        self._lock = asyncio.Lock()
        self._asked: float | None = None
        self._store_problem = "not asked yet"
        self.serving = False
        self.leaving = False

    async def problems(self) -> list[str]:
        """Return why this gateway is not ready; nothing when it is."""
        found = [] if self.serving else ["waiting for the certificate"]
        found += ["shutting down"] if self.leaving else []
        async with self._lock:
            now = self._clock.monotonic()
            if self._asked is None or now - self._asked >= _FRESH_SECONDS:
                self._store_problem = await self._ask_store()
                self._asked = self._clock.monotonic()
        return [*found, *([self._store_problem] if self._store_problem else [])]

    async def _ask_store(self) -> str:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                await self._ask()
        except TimeoutError:
            return "the store does not answer"
        except StepfenceError as error:
            # The text may name internals: the log has it.
            log.warning("gateway.store.unreachable", error=str(error))
            return "the store does not answer"
        return ""


def health_router() -> APIRouter:
    """Return `/livez` and `/readyz` for an application with `state.readiness`."""
    router = APIRouter(include_in_schema=False, default_response_class=PlainTextResponse)

    @router.get("/livez")
    async def livez() -> str:
        return "ok\n"

    @router.get("/readyz")
    async def readyz(request: Request) -> Response:
        readiness = request.app.state.readiness
        found = await readiness.problems() if readiness is not None else []
        return PlainTextResponse("\n".join([*found, ""]) if found else "ok\n", 503 if found else 200)

    return router


def create_health_app(readiness: Readiness, metrics: Metrics) -> FastAPI:
    """Return the application of the plain port: health and metrics, nothing of any run."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.readiness, app.state.metrics = readiness, metrics
    app.include_router(health_router())

    @app.get("/metrics")
    async def figures(request: Request) -> Response:
        return Response(metrics_of(request).text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app
