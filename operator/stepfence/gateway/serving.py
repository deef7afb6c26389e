"""Two servers in one process: the worker API over TLS, health in plain HTTP; and how both come and go."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, cast

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from stepfence.gateway.door import Door
from stepfence.gateway.health import Readiness
from stepfence.gateway.settings import GatewaySettings

__all__ = ["serve"]

log = structlog.get_logger(__name__)

# Longer than workers keep an idle connection, so that it is they who close it.
_KEEP_ALIVE_SECONDS = 75
_HEALTH_DRAIN_SECONDS = 2
_HEAD_BYTES = 64 * 1024


class _Server(uvicorn.Server):
    """Signals are handled once, for both servers; `up` is set when the port is open. With a door, it is the door that accepts."""

    def __init__(self, config: uvicorn.Config, door: Door | None) -> None:
        super().__init__(config)
        self._door = door
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._door is None or not sockets:
            await super().startup(sockets)
        else:
            self._door.open(sockets[0], self._protocol)
            # What uvicorn closes, and waits for, at its end.
            self.servers = [cast(asyncio.Server, self._door)]
            self.started = True
        self.up.set()

    def _protocol(self) -> asyncio.Protocol:
        return H11Protocol(self.config, self.server_state, self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: GatewaySettings, api: ASGIApp, health: ASGIApp, readiness: Readiness, door: Door, stop: asyncio.Event) -> None:
    """Serve until `stop` is set or SIGTERM comes; then finish what is in flight, for at most `drain_seconds`.

    Raises `OSError` when a port is taken, `RuntimeError` when a server ends by itself.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with _running(_config(settings, health, settings.health_port, _HEALTH_DRAIN_SECONDS), stop):
        if await _before(stop, door.certificate.wait()):
            async with _running(_config(settings, door.watch(api), settings.https_port, settings.drain_seconds), stop, door):
                watcher = asyncio.create_task(door.certificate.follow(), name="certificate")
                readiness.serving = True
                log.info("gateway.serving", https_port=settings.https_port, health_port=settings.health_port)
                await stop.wait()
                readiness.leaving = True
                door.close()
                log.info("gateway.leaving")
                watcher.cancel()
    log.info("gateway.stopped")


@contextlib.asynccontextmanager
async def _running(config: uvicorn.Config, stop: asyncio.Event, door: Door | None = None) -> AsyncIterator[None]:
    """Run a server around a block; on leaving, it finishes what is in flight. A server that ends by itself sets `stop`."""
    listener = _listen(config.host, config.port, config.backlog)
    server = _Server(config, door)
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


def _config(settings: GatewaySettings, app: ASGIApp, port: int, drain: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.bind,
        port=port,
        # It bounds what it keeps of a head that does not end. TLS is the door's.
        http="h11",
        h11_max_incomplete_event_size=_HEAD_BYTES,
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
