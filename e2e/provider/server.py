"""Serving the provider: a real socket, so that a connection can really be cut."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .app import Provider, make_app
from .journal import Journal

START_SECONDS = 30.0
STOP_SECONDS = 10


class _CuttableProtocol(H11Protocol):
    """Gives each request its connection's transport, as `request.state.transport`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "transport": transport}


class _Server(uvicorn.Server):
    """Tells when it listens, and ends hanging calls when it stops."""

    def __init__(self, provider: Provider, *, handle_signals: bool) -> None:
        super().__init__(
            uvicorn.Config(
                make_app(provider),
                http=_CuttableProtocol,
                ws="none",
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=STOP_SECONDS,
            )
        )
        self.listening = asyncio.Event()
        self._provider = provider
        self._handle_signals = handle_signals

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._provider.rules.release(go_on=False)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        with super().capture_signals() if self._handle_signals else contextlib.nullcontext():
            yield


async def serve(host: str, port: int, log_file: Path | None) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError when it cannot listen."""
    with socket.create_server((host, port)) as listener:
        await _Server(Provider(Journal(log_file)), handle_signals=True).serve([listener])


@contextlib.asynccontextmanager
async def running(host: str = "127.0.0.1", port: int = 0, log_file: Path | None = None) -> AsyncIterator[str]:
    """Serve inside the `async with` block; yields the base URL. Raises OSError when it cannot listen."""
    with socket.create_server((host, port)) as listener:
        server = _Server(Provider(Journal(log_file)), handle_signals=False)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            async with asyncio.timeout(START_SECONDS):
                await server.listening.wait()
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait({serving}, timeout=2 * STOP_SECONDS)
