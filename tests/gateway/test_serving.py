"""Two servers in one process over real sockets: TLS that is waited for and followed, and a graceful end."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from stepfence.gateway.door import Door, DoorLimits
from stepfence.gateway.health import Readiness, create_health_app
from stepfence.gateway.metrics import Metrics
from stepfence.gateway.serving import serve
from stepfence.gateway.settings import GatewaySettings
from stepfence.gateway.tls import Certificate
from stepfence.testing import FakeClock
from tests.gateway import certificates


class Slow:
    """An application that answers at `/slow` only when it is told to."""

    def __init__(self) -> None:
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            self.entered.set()
            await self.go_on.wait()
        await PlainTextResponse("done")(scope, receive, send)


async def store_answers() -> None:
    return None


class Served:
    """A gateway's two servers, running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app, self.stop = Slow(), asyncio.Event()
        self.settings = GatewaySettings(bind="127.0.0.1", https_port=free_port(), health_port=free_port(), tls_dir=folder)
        self.readiness = Readiness(FakeClock(), store_answers)
        self.certificate = Certificate(folder, look_seconds=0.02)
        self.metrics = Metrics()
        self.door = Door(self.certificate, DoorLimits(), self.metrics)
        self.plain = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.settings.health_port}", trust_env=False)

    async def run(self) -> None:
        health = create_health_app(self.readiness, self.metrics)
        await serve(self.settings, self.app, health, self.readiness, self.door, self.stop)

    def secure(self) -> httpx.AsyncClient:
        context = ssl.create_default_context(cafile=self.folder / "ca.crt")
        return httpx.AsyncClient(base_url=f"https://127.0.0.1:{self.settings.https_port}", verify=context, trust_env=False)

    async def readyz(self) -> str:
        with contextlib.suppress(httpx.ConnectError):
            return (await self.plain.get("/readyz")).text
        return ""

    async def shown_name(self) -> str:
        """The common name of the certificate that a new connection sees."""
        context = ssl.create_default_context(cafile=self.folder / "ca.crt")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.settings.https_port, ssl=context)
        except ssl.SSLError:
            return ""
        shown = writer.get_extra_info("peercert")["subject"][0][0][1]
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return str(shown)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def until(fact: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a fact; it costs a round trip to look, so that this is no spin."""
    async with asyncio.timeout(20):
        while not await fact():
            await asyncio.to_thread(lambda: None)


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    gateway = Served(folder)
    task = asyncio.create_task(gateway.run())
    try:
        yield gateway
    finally:
        gateway.stop.set()
        async with asyncio.timeout(20):
            await task
        await gateway.plain.aclose()


async def test_it_waits_for_its_certificate_and_says_so(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway:

        async def waiting() -> bool:
            return await gateway.readyz() == "waiting for the certificate\n"

        async def ready() -> bool:
            return await gateway.readyz() == "ok\n"

        await until(waiting)
        assert (await gateway.plain.get("/livez")).status_code == 200
        certificates.write(tmp_path)
        await until(ready)
        async with gateway.secure() as client:
            assert (await client.get("/")).text == "done"


async def test_it_stops_while_it_waits_for_its_certificate(tmp_path: Path) -> None:
    async with served(tmp_path):
        pass


async def test_a_new_certificate_is_taken_without_a_restart_and_a_bad_one_is_not(tmp_path: Path) -> None:
    certificates.write(tmp_path, "first")
    async with served(tmp_path) as gateway:

        async def shows_first() -> bool:
            with contextlib.suppress(OSError):
                return await gateway.shown_name() == "first"
            return False

        await until(shows_first)
        # Half of a rotation: a new certificate with the old key.
        certificates.write(tmp_path / "other", "other")
        (tmp_path / "tls.crt").write_bytes((tmp_path / "other" / "tls.crt").read_bytes())
        with pytest.raises(ssl.SSLError):
            gateway.certificate.load()
        assert await gateway.shown_name() == "first"
        certificates.write(tmp_path, "second")

        async def shows_second() -> bool:
            return await gateway.shown_name() == "second"

        await until(shows_second)


def test_files_that_did_not_change_are_not_taken_again(tmp_path: Path) -> None:
    certificates.write(tmp_path)
    certificate = Certificate(tmp_path)
    assert [certificate.load(), certificate.load()] == [True, False]


async def test_on_its_way_out_it_finishes_what_is_in_flight(tmp_path: Path) -> None:
    certificates.write(tmp_path)
    async with served(tmp_path) as gateway, gateway.secure() as client:

        async def ready() -> bool:
            return await gateway.readyz() == "ok\n"

        await until(ready)
        async with asyncio.timeout(20):
            slow = asyncio.create_task(client.get("/slow"))
            await gateway.app.entered.wait()
            gateway.stop.set()

            async def leaving() -> bool:
                return "shutting down" in await gateway.readyz()

            await until(leaving)
            gateway.app.go_on.set()
            assert (await slow).text == "done"


async def test_a_port_that_is_taken_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    certificates.write(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        gateway = Served(tmp_path)
        object.__setattr__(gateway.settings, "https_port", taken.getsockname()[1])
        async with asyncio.timeout(20):
            with pytest.raises(OSError, match="in use"):
                await gateway.run()
        await gateway.plain.aclose()
