"""Two servers in one process: the worker API over TLS, health in plain HTTP; and how both come and go."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp

from stepfence.gateway.health import Readiness
from stepfence.gateway.settings import GatewaySettings
from stepfence.gateway.tls import Certificate

__all__ = ["serve"]

log = structlog.get_logger(__name__)

# Longer than workers keep an idle connection, so that it is they who close it.
_KEEP_ALIVE_SECONDS = 75
_HEALTH_DRAIN_SECONDS = 2


class _Server(uvicorn.Server):
    """Signals are handled once, for both servers; `up` is set when the port is open."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    settings: GatewaySettings, api: ASGIApp, health: ASGIApp, readiness: Readiness, certificate: Certificate, stop: asyncio.Event
) -> None:
    """Serve until `stop` is set or SIGTERM comes; then finish what is in flight, for at most `drain_seconds`.

    Raises `OSError` when a port is taken, `RuntimeError` when a server ends by itself.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with _running(_config(settings, health, settings.health_port, None, _HEALTH_DRAIN_SECONDS), stop):
        if await _before(stop, certificate.wait()):
            async with _running(_config(settings, api, settings.https_port, certificate, settings.drain_seconds), stop):
                watcher = asyncio.create_task(certificate.follow(), name="certificate")
                readiness.serving = True
                log.info("gateway.serving", https_port=settings.https_port, health_port=settings.health_port)
                await stop.wait()
                readiness.leaving = True
                log.info("gateway.leaving")
                watcher.cancel()
    log.info("gateway.stopped")


@contextlib.asynccontextmanager
async def _running(config: uvicorn.Config, stop: asyncio.Event) -> AsyncIterator[None]:
    """Run a server around a block; on leaving, it finishes what is in flight. A server that ends by itself sets `stop`."""
    listener = _listen(config.host, config.port, config.backlog)
    server = _Server(config)
    task = asyncio.create_task(server.serve([listener]), name=f"server on port {config.port}")
    task.add_done_callback(lambda _: stop.set())
    try:
        await _before(stop, server.up.wait())
        yield
    finally:
        ended = task.done()
        server.should_exit = True
        try:
            await task
        finally:
            listener.close()
    if ended:
        raise RuntimeError(f"the server on port {config.port} ended by itself")


def _listen(bind: str, port: int, backlog: int) -> socket.socket:
    # Opened here, because a server that cannot open its port ends the process from within a task.
    if not bind and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    return socket.create_server((bind, port), family=socket.AF_INET6 if ":" in bind else socket.AF_INET, backlog=backlog)


async def _before(stop: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Do some work unless `stop` comes first; return whether it was done."""
    tasks = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()


def _config(settings: GatewaySettings, app: ASGIApp, port: int, certificate: Certificate | None, drain: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.bind,
        port=port,
        ssl_context_factory=None if certificate is None else lambda _config, _default: certificate.context,
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=drain,
        backlog=512,
    )
