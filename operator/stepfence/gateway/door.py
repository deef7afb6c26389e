"""The TLS port's door: what a connection may cost before it has shown who it is.

It accepts for uvicorn. Each connection is counted before anything of TLS is done for it, then must finish its handshake and send a whole
request head in time. uvicorn sees it once it speaks TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepfence.gateway.auth import RECOGNISED
from stepfence.gateway.metrics import Metrics
from stepfence.gateway.places import Places
from stepfence.gateway.tls import Certificate
from stepfence.stores.rates import Rates

__all__ = ["Door", "DoorLimits"]

log = structlog.get_logger(__name__)

_REFUSED = frozenset({401, 429})
# A token may be refused for a moment when it was just made; who goes on is slowed down.
_FREE_REFUSALS = 3
_PAUSE_SECONDS = 1.0
_SHUTDOWN_SECONDS = 5.0
# When no file can be opened any more, say: as asyncio's own servers wait.
_ACCEPT_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """Connections at once, in all and for one source address; new ones a second for one address; seconds for handshake and request head."""

    connections: int = 4096
    per_address: int = 1024
    new_per_address: int = 50
    handshake_seconds: float = 10.0
    head_seconds: float = 10.0


class Door:
    """Accepts the connections of one server, whose application must be wrapped by `watch`."""

    def __init__(self, certificate: Certificate, limits: DoorLimits, metrics: Metrics) -> None:
        self.certificate, self.limits, self._metrics = certificate, limits, metrics
        self.places = Places(limits.connections, limits.per_address)
        self._handshakes: Rates[str] = Rates(limits.new_per_address, 2 * limits.new_per_address)
        self.visitors: dict[tuple[str, int], Visitor] = {}
        self._accepting: asyncio.Task[None] | None = None
        metrics.connections.set_function(lambda: len(self.places))

    def open(self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Accept from now on. `protocol` makes uvicorn's part of a connection."""
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listener, protocol), name="accept")

    def close(self) -> None:
        """Let nobody in any more; who is still in the handshake must go. What is served goes on."""
        if self._accepting is not None:
            self._accepting.cancel()
        for visitor in [*self.visitors.values()]:
            visitor.go_unless_inside()

    async def wait_closed(self) -> None:
        """Wait until nobody is accepted any more. Raises what made it end by itself."""
        if self._accepting is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._accepting

    async def _accept(self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:
                log.error("gateway.accept.failed", error=str(error))  # noqa: TRY400  (the text says it all)
                await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
            else:
                self._enter(accepted, (str(address[0]), int(address[1])), protocol)

    def _enter(self, accepted: socket.socket, peer: tuple[str, int], protocol: Callable[[], asyncio.Protocol]) -> None:
        longest = self.limits.handshake_seconds
        wait = self._handshakes.take(peer[0], asyncio.get_running_loop().time(), longest)
        visitor = Visitor(self, peer, protocol)
        if wait > longest or not self.places.arrive(visitor, peer[0]):
            self.note("refused")
            accepted.close()
            return
        self.visitors[peer] = visitor
        visitor.greet(accepted, wait)

    def left(self, visitor: Visitor, peer: tuple[str, int]) -> None:
        """Forget a connection."""
        self.places.leave(visitor)
        if self.visitors.get(peer) is visitor:
            del self.visitors[peer]

    def note(self, reason: str) -> None:
        """Count a connection that was closed by us."""
        self._metrics.connections_closed.labels(reason).inc()

    def watch(self, app: ASGIApp) -> ASGIApp:
        """Return the application, telling the connections that it serves when their calls begin and end."""

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            visitor = self.visitors.get(scope.get("client") or ("", 0))
            if visitor is None:
                await app(scope, receive, send)
                return
            status = 0

            async def telling(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            visitor.begin()
            try:
                await app({**scope, RECOGNISED: visitor.recognise}, receive, telling)
            finally:
                visitor.end(refused=status in _REFUSED)

        return watched


class Visitor(asyncio.Protocol):
    """One connection: in the handshake, then with uvicorn's protocol behind it."""

    def __init__(self, door: Door, peer: tuple[str, int], protocol: Callable[[], asyncio.Protocol]) -> None:
        self._door, self._peer, self._make_inner = door, peer, protocol
        self._loop = asyncio.get_running_loop()
        self._greeting: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._inner: asyncio.Protocol | None = None
        self._known = False
        self._calls = self._refusals = 0
        self._head: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None

    def greet(self, accepted: socket.socket, wait: float) -> None:
        """Begin the handshake in so many seconds; nothing is read before."""
        self._greeting = self._loop.create_task(self._greet(accepted, wait), name="TLS handshake")

    async def _greet(self, accepted: socket.socket, wait: float) -> None:
        handed_over = False
        try:
            if wait:
                await asyncio.sleep(wait)
            handed_over = True
            # The peer is gone, speaks no TLS, or takes too long for it.
            with contextlib.suppress(OSError):
                await self._loop.connect_accepted_socket(
                    lambda: self,
                    accepted,
                    ssl=self._door.certificate.context,
                    ssl_handshake_timeout=max(0.1, self._door.limits.handshake_seconds - wait),
                    ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
                )
        finally:
            if not handed_over:
                accepted.close()
            self._greeting = None
            # It may also return without an error when the peer went in the middle of it.
            if self._inner is None and self._door.visitors.get(self._peer) is self:
                self._end("handshake")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is spoken: uvicorn takes over, and a request is waited for."""
        self._transport, self._inner = cast(asyncio.Transport, transport), self._make_inner()
        self._inner.connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Hand on what came."""
        if not self._calls and self._head is None:
            self._expect_head()
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> None:
        """Hand on that nothing more comes."""
        if self._inner is not None:
            self._inner.eof_received()

    def pause_writing(self) -> None:
        """Hand on that the peer reads too slowly."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Hand on that the peer has read."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on that it is over."""
        self._leave()
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def _leave(self) -> None:
        self._door.left(self, self._peer)
        for handle in (self._head, self._pause, self._greeting):
            if handle is not None:
                handle.cancel()
        self._head = self._pause = self._greeting = None

    def dismiss(self) -> None:
        """See `Guest`."""
        self._end("gave-way")

    def go_unless_inside(self) -> None:
        """Close it if it does not speak TLS yet."""
        if self._inner is None:
            self._end("refused")

    def _end(self, reason: str) -> None:
        self._door.note(reason)
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def _expect_head(self) -> None:
        self._head = self._loop.call_later(self._door.limits.head_seconds, self._end, "head")

    def begin(self) -> None:
        """A whole request head has come, and is served."""
        self._calls += 1
        if self._head is not None:
            self._head.cancel()
            self._head = None
        self._door.places.serve(self)

    def recognise(self) -> None:
        """The call is one of a worker."""
        self._known = True

    def end(self, *, refused: bool) -> None:
        """The call was answered."""
        self._calls -= 1
        if not self._calls:
            self._door.places.rest(self, known=self._known)
        if refused and not self._known:
            self._refusals += 1
            if self._refusals > _FREE_REFUSALS:
                self._pause_reading()

    def _pause_reading(self) -> None:
        if self._pause is None and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._pause = self._loop.call_later(_PAUSE_SECONDS, self.read_on)

    def read_on(self) -> None:
        """End a pause."""
        self._pause = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
