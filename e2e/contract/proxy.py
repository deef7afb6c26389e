"""A TCP proxy in front of an API server that loses replies or calls when it is told to. TLS goes through it untouched."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_CHUNK = 65536


class Proxy:
    """Forwards to `server`. With `replies` off, the first bytes that come back on a connection end it; with `calls` off, the first that go.

    A new connection is ended at once while either is off, so that no client quietly sends its call a second time.
    """

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        self._to = (parts.hostname or "", parts.port or 443)
        self.replies = self.calls = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()
        # Closed, not cancelled: asyncio reports a cancelled connection as an error of ours.
        for writer in tuple(self._writers):
            writer.close()
        await asyncio.gather(*tuple(self._tasks), return_exceptions=True)
        await self._server.wait_closed()

    def heal(self) -> None:
        """Forward everything again."""
        self.replies = self.calls = True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            if self.replies and self.calls:
                await self._connect(reader, writer)
        except OSError:
            return
        finally:
            await _close(writer)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._to)
        mine = {writer, up_writer}
        self._writers |= mine
        try:
            directions = (self._pump(reader, up_writer, "calls"), self._pump(up_reader, writer, "replies"))
            tasks = [asyncio.create_task(direction) for direction in directions]
            try:
                # When one direction ends, so does the connection.
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._writers -= mine
            await _close(up_writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        while chunk := await reader.read(_CHUNK):
            if not getattr(self, direction):
                return
            writer.write(chunk)
            await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
