"""Who calls: before anything of a body is read, the pod must be a worker of the run that the path names."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import structlog
from fastapi import Request, Response
from fastapi.routing import APIRoute

from stepfence.app import WorkerCalls
from stepfence.core.errors import Code, Refused
from stepfence.core.nesting import read
from stepfence.gateway import problems
from stepfence.gateway.mending import parse_report
from stepfence.ports import Caller, RunKey, WorkerGate

__all__ = ["BODY_BYTES", "RECOGNISED", "Deps", "Identified", "WorkerRoute", "deps_of", "identified"]

BODY_BYTES = 1024 * 1024
# Where a request's scope has what is to be called once its caller is known to be a worker of the run.
RECOGNISED = "stepfence.recognised"
# As many connections as the SDK opens at most.
POD_REQUESTS = 32
# Nothing of form keeps these from being heard: what they tell of has happened.
_REPORTS = frozenset({"completeStep", "failStep", "loseStep", "probeStep", "release"})
# One text for a foreign run, a run that is not there, and a pod that is no worker: none of them is told apart.
_NOT_YOURS = "this pod is not a worker of that run"


@dataclass(frozen=True, slots=True)
class Deps:
    """What the routes need; it stands in the application's state, not in globals. `running`: calls being served, by the pod's uid."""

    calls: WorkerCalls
    gate: WorkerGate
    body_bytes: int = BODY_BYTES
    pod_requests: int = POD_REQUESTS
    running: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Identified:
    """The pod that calls, and the run that it works for."""

    caller: Caller
    key: RunKey


def deps_of(request: Request) -> Deps:
    """Return what the application was made with."""
    deps = request.app.state.deps
    if not isinstance(deps, Deps):
        raise TypeError(f"{deps!r} is no Deps")
    return deps


async def identified(request: Request) -> Identified:
    """Return who calls, as a dependency of routes of a `WorkerRoute`."""
    who = request.state.who
    if not isinstance(who, Identified):
        raise TypeError(f"{who!r} is no Identified")
    return who


class WorkerRoute(APIRoute):
    """A route that knows its caller first, then checks type and size of the body, and only then reads it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute.get_route_handler`."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            deps = deps_of(request)
            caller = await _caller(request, deps.gate)
            # Before its run is looked at: a pod that is no worker of it may cost the store a read for each call.
            with _place(deps, caller):
                who = request.state.who = await _identify(request, deps, caller)
                request.scope.get(RECOGNISED, _nobody)()
                request.state.standing = lambda: deps.calls.standing(who.key)
                return await _serve(request, deps)

        async def _serve(request: Request, deps: Deps) -> Response:
            if request.method == "POST":
                kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
                if kind != "application/json" and not reports:
                    detail = "the body must be application/json"
                    return problems.response(problems.plain(problems.UNSUPPORTED_MEDIA_TYPE, 415, detail, request.url.path, "Content-Type"))
                request = _Report(request, deps.body_bytes) if reports else _Bounded(request, deps.body_bytes)
                await request.body()
            return await handle(request)

        reports = self.operation_id in _REPORTS
        return handler


async def _caller(request: Request, gate: WorkerGate) -> Caller:
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not bearer.strip():
        raise Refused(Code.UNAUTHENTICATED, "a bearer token is needed: the one projected into the worker's pod")
    return await gate.identify(bearer.strip(), request.client.host if request.client else "")


async def _identify(request: Request, deps: Deps, caller: Caller) -> Identified:
    key = RunKey(request.path_params["namespace"], request.path_params["name"])
    structlog.contextvars.bind_contextvars(pod=f"{caller.namespace}/{caller.pod}", run=f"{key.namespace}/{key.name}")
    if caller.namespace != key.namespace or not await deps.calls.works_for(caller, key):
        raise Refused(Code.FORBIDDEN, _NOT_YOURS)
    return Identified(caller, key)


@contextlib.contextmanager
def _place(deps: Deps, caller: Caller) -> Iterator[None]:
    """Hold one of the pod's places. Raises `Refused(OVER_BUDGET)`: one pod, say with calls that never end, must leave room for others."""
    if deps.running[caller.pod_uid] >= deps.pod_requests:
        raise Refused(Code.OVER_BUDGET, f"{deps.pod_requests} calls of this pod are being served: repeat this call", retry_after=1.0)
    deps.running[caller.pod_uid] += 1
    try:
        yield
    finally:
        deps.running[caller.pod_uid] -= 1
        if not deps.running[caller.pod_uid]:
            del deps.running[caller.pod_uid]


class _Bounded(Request):
    """A request whose body is read up to a limit."""

    def __init__(self, request: Request, limit: int) -> None:
        super().__init__(request.scope, request.receive)
        self._limit = limit
        self._whole: bytes | None = None

    async def body(self) -> bytes:
        """Return the whole body. Raises `Refused(TOO_LARGE)` as soon as that is known."""
        if self._whole is None:
            chunks, size = [], 0
            said = self.headers.get("content-length", "")
            if said.isdigit() and int(said) > self._limit:
                raise _too_large(self._limit)
            async for chunk in self.stream():
                size += len(chunk)
                if size > self._limit:
                    raise _too_large(self._limit)
                chunks.append(chunk)
            self._whole = b"".join(chunks)
        return self._whole

    async def json(self) -> Any:
        """Return the value of the body, whatever its form: what cannot be kept is refused by its field."""
        return read(await self.body())


class _Report(_Bounded):
    """What happened, told: it is JSON whatever it calls itself, and is read as far as it can be read."""

    def __init__(self, request: Request, limit: int) -> None:
        super().__init__(request, limit)
        others = [(name, value) for name, value in self.scope["headers"] if name != b"content-type"]
        self.scope = {**self.scope, "headers": [*others, (b"content-type", b"application/json")]}

    async def json(self) -> Any:
        """Return the body's JSON."""
        return parse_report(await self.body())


def _nobody() -> None:
    return None


def _too_large(limit: int) -> Refused:
    return Refused(Code.TOO_LARGE, f"the body is larger than {limit} bytes", field="body")
