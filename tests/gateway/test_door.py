"""The door of the TLS port over real sockets, in both loops that a gateway may run in: slow, idle, broken and refused connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from stepfence.gateway import door as door_module
from stepfence.gateway.auth import RECOGNISED
from stepfence.gateway.door import Door, DoorLimits
from stepfence.gateway.health import Readiness, create_health_app
from stepfence.gateway.metrics import Metrics
from stepfence.gateway.serving import serve
from stepfence.gateway.settings import GatewaySettings
from stepfence.gateway.tls import Certificate
from stepfence.testing import FakeClock
from tests.gateway import certificates
from tests.gateway.test_serving import free_port, store_answers

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LONG = 1000.0
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class App:
    """`/known` is a call of a worker, `/wrong` one under a wrong token, `/slow` one that is answered when it is let."""

    def __init__(self) -> None:
        self.slow, self.let = 0, asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/known":
            scope[RECOGNISED]()
        if scope["path"] == "/slow":
            self.slow += 1
            await self.let.wait()
        await PlainTextResponse("done", 401 if scope["path"] == "/wrong" else 200)(scope, receive, send)


class Served:
    """A gateway's servers with this door."""

    def __init__(self, folder: Path, limits: DoorLimits) -> None:
        self.metrics, self.app = Metrics(), App()
        self.door = Door(Certificate(folder), limits, self.metrics)
        self.settings = GatewaySettings(bind="127.0.0.1", https_port=free_port(), health_port=free_port(), drain_seconds=5)
        self.stop = asyncio.Event()
        self.client = ssl.create_default_context(cafile=folder / "ca.crt")

    async def run(self) -> None:
        readiness = Readiness(FakeClock(), store_answers)
        await serve(self.settings, self.app, create_health_app(readiness, self.metrics), readiness, self.door, self.stop)

    async def plain(self) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.settings.https_port)

    async def secure(self) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.settings.https_port, ssl=self.client)

    def closed(self, reason: str) -> int:
        return int(self.metrics.connections_closed.labels(reason)._value.get())

    async def held(self, count: int) -> None:
        """Wait until the door holds so many connections."""
        await until(lambda: len(self.door.places) == count)


async def until(fact: Callable[[], bool]) -> None:
    while not fact():
        await asyncio.to_thread(lambda: None)


async def ended(streams: Streams) -> bool:
    """Wait until the server has closed the connection."""
    with contextlib.suppress(OSError):
        while await streams[0].read(65_536):
            pass
    return True


def hang_up(*all_streams: Streams) -> None:
    for _, writer in all_streams:
        writer.transport.abort()


async def ask(streams: Streams, path: str = "/") -> int:
    """Make one call on this connection; its status."""
    reader, writer = streams
    writer.write(f"GET {path} HTTP/1.1\r\nHost: gateway\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(4)
    return int(head.split()[1])


@contextlib.asynccontextmanager
async def served(folder: Path, **limits: float) -> AsyncIterator[Served]:
    certificates.write(folder)
    gateway = Served(folder, DoorLimits(**{"handshake_seconds": LONG, "head_seconds": LONG, "new_per_address": 1000, **limits}))  # type: ignore[arg-type]
    running = asyncio.create_task(gateway.run())
    try:
        while True:
            with contextlib.suppress(OSError):
                hang_up(await gateway.secure())
                break
        await gateway.held(0)
        yield gateway
    finally:
        gateway.stop.set()
        await running


Story = Callable[[Path], Awaitable[None]]


def run(story: Story, folder: Path, loop: str) -> None:
    async def within() -> None:
        async with asyncio.timeout(15):
            await story(folder)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(within())


both_loops = pytest.mark.parametrize("loop", LOOPS)


@both_loops
def test_idle_connections_push_out_each_other_and_a_newcomer_is_served(loop: str, tmp_path: Path) -> None:
    async def story(folder: Path) -> None:
        async with served(folder, connections=5) as gateway:
            known = await gateway.secure()
            assert await ask(known, "/known") == 200
            idle = [await gateway.secure() for _ in range(20)]
            assert all([await ended(streams) for streams in idle[:16]])
            assert (len(gateway.door.places), gateway.closed("gave-way")) == (5, 16)
            assert await ask(known) == 200
            late = await gateway.secure()
            assert await ask(late) == 200
            hang_up(known, late, *idle)

    run(story, tmp_path, loop)


@both_loops
def test_a_call_that_is_served_is_never_torn_for_a_newcomer(loop: str, tmp_path: Path) -> None:
    async def story(folder: Path) -> None:
        async with served(folder, connections=2) as gateway:
            streams = [await gateway.secure() for _ in range(2)]
            calls = [asyncio.create_task(ask(each, "/slow")) for each in streams]
            await until(lambda: gateway.app.slow == 2)
            newcomer = await gateway.plain()
            assert await ended(newcomer)
            assert gateway.closed("refused") == 1
            gateway.app.let.set()
            assert [await call for call in calls] == [200, 200]
            late = await gateway.secure()
            assert await ask(late) == 200
            hang_up(newcomer, late, *streams)

    run(story, tmp_path, loop)


@both_loops
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00"], ids=["nothing", "half a hello"])
def test_a_handshake_that_takes_too_long_ends_and_its_place_is_free(loop: str, sent: bytes, tmp_path: Path) -> None:
    async def story(folder: Path) -> None:
        async with served(folder, handshake_seconds=0.2) as gateway:
            slow = await gateway.plain()
            slow[1].write(sent)
            assert await ended(slow)
            await gateway.held(0)
            assert gateway.closed("handshake") >= 1
            hang_up(slow)

    run(story, tmp_path, loop)


@both_loops
@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096], ids=["plain HTTP", "noise"])
def test_what_is_no_tls_is_closed_and_its_place_is_free(loop: str, sent: bytes, tmp_path: Path) -> None:
    async def story(folder: Path) -> None:
        async with served(folder) as gateway:
            wrong = await gateway.plain()
            wrong[1].write(sent)
            assert await ended(wrong)
            await gateway.held(0)
            hang_up(wrong)

    run(story, tmp_path, loop)


@both_loops
def test_a_peer_that_leaves_at_any_moment_takes_nothing_along(loop: str, tmp_path: Path) -> None:
    async def story(folder: Path) -> None:
        async with served(folder) as gateway:
            for sent in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"):
                for close in ("transport.abort", "close"):
                    reader, writer = await gateway.plain()
                    writer.write(sent)
                    await writer.drain()
                    writer.transport.abort() if close == "transport.abort" else writer.close()
                    del reader
            for _ in range(5):
                hang_up(await gateway.secure())
            half = await gateway.secure()
            half[1].write(b"GET / HT")
            half[1].close()
            await gateway.held(0)
            assert gateway.door.visitors == {}
            fine = await gateway.secure()
            assert await ask(fine) == 200
            hang_up(fine)

    run(story, tmp_path, loop)


@both_loops
@pytest.mark.parametrize("calls", [0, 1])
@pytest.mark.parametrize("sent", ["", "GET / HTTP/1.1\r\nHost:"], ids=["nothing", "half a head"])
def test_a_request_head_that_takes_too_long_ends_the_connection(loop: str, sent: str, calls: int, tmp_path: Path) -> None:
    async def story(folder: Path) -> None:
        async with served(folder, head_seconds=0.2) as gateway:
            slow = await gateway.secure()
            for _ in range(calls):
                assert await ask(slow, "/known") == 200
            slow[1].write(sent.encode())
            if calls and not sent:
                # Between calls it may be idle: others that began later are ended, and it is served.
                other = await gateway.secure()
                assert await ended(other)
                assert await ask(slow) == 200
                hang_up(other, slow)
            else:
                assert await ended(slow)
                assert gateway.closed("head") == 1

    run(story, tmp_path, loop)


@both_loops
def test_a_head_that_does_not_end_is_not_kept(loop: str, tmp_path: Path) -> None:
    async def story(folder: Path) -> None:
        async with served(folder) as gateway:
            endless = await gateway.secure()
            endless[1].write(b"GET / HTTP/1.1\r\nX: " + b"a" * 1_000_000)
            assert (await endless[0].readline()).startswith(b"HTTP/1.1 400")
            assert await ended(endless)
            hang_up(endless)

    run(story, tmp_path, loop)


@both_loops
def test_more_new_connections_of_an_address_than_it_may_make_are_refused_before_tls(loop: str, tmp_path: Path) -> None:
    async def story(folder: Path) -> None:
        async with served(folder, new_per_address=1, handshake_seconds=0.01) as gateway:
            streams = [await gateway.plain() for _ in range(40)]
            assert all([await ended(each) for each in streams])
            assert gateway.closed("refused") > 20
            hang_up(*streams)

    run(story, tmp_path, loop)


@both_loops
def test_a_connection_that_is_refused_again_and_again_is_read_more_slowly_and_others_are_not(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "_PAUSE_SECONDS", LONG)

    async def story(folder: Path) -> None:
        async with served(folder) as gateway:
            guessing, worker = await gateway.secure(), await gateway.secure()
            assert await ask(worker, "/known") == 200
            for _ in range(door_module._FREE_REFUSALS + 1):
                assert await ask(guessing, "/wrong") == 401
            waiting = asyncio.create_task(ask(guessing, "/"))
            for _ in range(20):
                assert await ask(worker, "/wrong") == 401
            assert not waiting.done()
            for visitor in gateway.door.visitors.values():
                if visitor._pause is not None:
                    visitor.read_on()
            assert await waiting == 200
            hang_up(guessing, worker)

    run(story, tmp_path, loop)


@both_loops
def test_a_gateway_that_leaves_does_not_wait_for_handshakes(loop: str, tmp_path: Path) -> None:
    async def story(folder: Path) -> None:
        async with served(folder) as gateway:
            slow = [await gateway.plain() for _ in range(3)]
            idle = await gateway.secure()
            await gateway.held(4)
            gateway.stop.set()
            assert all([await ended(streams) for streams in slow])
            assert await ended(idle)
            hang_up(idle, *slow)
            await gateway.held(0)

    run(story, tmp_path, loop)


@both_loops
def test_addresses_have_places_of_their_own(loop: str, tmp_path: Path) -> None:
    async def from_address(gateway: Served, address: str) -> Streams:
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((address, 0))
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", gateway.settings.https_port))
        return await asyncio.open_connection(sock=sock, ssl=gateway.client, server_hostname="127.0.0.1")

    async def story(folder: Path) -> None:
        async with served(folder, connections=100, per_address=3) as gateway:
            quiet = await from_address(gateway, "127.0.0.2")
            flood = [await from_address(gateway, "127.0.0.3") for _ in range(10)]
            assert all([await ended(streams) for streams in flood[:7]])
            assert (len(gateway.door.places), gateway.closed("gave-way")) == (4, 7)
            assert await ask(quiet) == 200
            hang_up(quiet, *flood)

    run(story, tmp_path, loop)
