"""The worker API as an ASGI application. It knows ports and use cases alone, so that it also serves without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from stepfence.app import WorkerCalls
from stepfence.gateway import problems
from stepfence.gateway.auth import BODY_BYTES, Deps
from stepfence.gateway.edge import Edge, Limits
from stepfence.gateway.health import Readiness, health_router
from stepfence.gateway.metrics import Metrics
from stepfence.gateway.routes import router
from stepfence.ports import WorkerGate

__all__ = ["API_VERSION", "GatewayApp", "create_app", "openapi_document"]

API_VERSION = "v1alpha1"
_DESCRIPTION = "What a worker says to Stepfence. Errors are problems (RFC 9457) of the type `https://stepfence.dev/problems/<code>`."


class GatewayApp(FastAPI):
    """The worker API. Each one stands alone: any number of them may live in one process."""

    def __init__(self, deps: Deps, readiness: Readiness | None, metrics: Metrics, limits: Limits) -> None:
        super().__init__(
            title="Stepfence worker API",
            version=API_VERSION,
            description=_DESCRIPTION,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
        )
        self.state.deps, self.state.readiness, self.state.metrics = deps, readiness, metrics
        self.include_router(router)
        self.include_router(health_router())
        problems.install(self)
        # Around everything, so that an answer to an unexpected error has its id and its line in the log too.
        self._edge = Edge(super().__call__, metrics, limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection (ASGI)."""
        await self._edge(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        return openapi_document(super().openapi())


def create_app(
    calls: WorkerCalls,
    gate: WorkerGate,
    *,
    readiness: Readiness | None = None,
    metrics: Metrics | None = None,
    limits: Limits | None = None,
    body_bytes: int = BODY_BYTES,
) -> GatewayApp:
    """Return the worker API over these use cases."""
    return GatewayApp(Deps(calls, gate, body_bytes), readiness, metrics or Metrics(), limits or Limits())


def openapi_document(document: dict[str, Any]) -> dict[str, Any]:
    """Return FastAPI's document with our errors in place of its own: bad input is a 400 problem, and problems have their own media type."""
    for path in document["paths"].values():
        for operation in path.values():
            responses = operation["responses"]
            responses.pop("422", None)
            content = responses["default"]["content"]
            if "application/json" in content:
                content[problems.MEDIA_TYPE] = content.pop("application/json")
    schemas: Mapping[str, Any] = document["components"]["schemas"]
    document["components"]["schemas"] = {
        name: schema for name, schema in schemas.items() if name not in ("HTTPValidationError", "ValidationError")
    }
    return document
