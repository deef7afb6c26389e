"""Alive, ready, the figures."""

import asyncio

import httpx
import pytest

from stepfence.core.errors import Unknown
from stepfence.gateway.health import Readiness, create_health_app
from stepfence.gateway.metrics import Metrics
from stepfence.testing import FakeClock
from tests.gateway.support import gateway


class Store:
    """Counts how often it is asked; away when told so."""

    def __init__(self) -> None:
        self.asked, self.away = 0, False

    async def __call__(self) -> None:
        self.asked += 1
        if self.away:
            raise Unknown("10.0.0.1 does not answer")


def health(clock: FakeClock, store: Store) -> tuple[Readiness, httpx.AsyncClient]:
    readiness = Readiness(clock, store)
    app = create_health_app(readiness, Metrics())
    return readiness, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


async def test_it_is_ready_when_it_serves_and_the_store_answers() -> None:
    readiness, client = health(FakeClock(), Store())
    waiting = await client.get("/readyz")
    assert (waiting.status_code, waiting.text) == (503, "waiting for the certificate\n")
    readiness.serving = True
    assert ((await client.get("/readyz")).status_code, (await client.get("/readyz")).text) == (200, "ok\n")
    readiness.leaving = True
    assert (await client.get("/readyz")).text == "shutting down\n"
    assert (await client.get("/livez")).status_code == 200


async def test_a_store_that_is_away_makes_it_unready_without_telling_internals() -> None:
    clock, store = FakeClock(), Store()
    readiness, client = health(clock, store)
    readiness.serving, store.away = True, True
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "the store does not answer\n")
    store.away = False
    clock.advance(5)
    assert (await client.get("/readyz")).status_code == 200


async def test_the_store_is_asked_once_in_a_while_however_many_ask() -> None:
    clock, store = FakeClock(), Store()
    _, client = health(clock, store)
    await asyncio.gather(*(client.get("/readyz") for _ in range(5)))
    assert store.asked == 1
    clock.advance(4.9)
    await client.get("/readyz")
    assert store.asked == 1
    clock.advance(0.1)
    await client.get("/readyz")
    assert store.asked == 2


async def test_the_plain_port_has_figures_and_nothing_of_runs() -> None:
    _, client = health(FakeClock(), Store())
    figures = await client.get("/metrics")
    assert figures.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "stepfence_build_info{version=" in figures.text
    for path in ("/openapi.json", "/v1/namespaces/a/agentruns/b/claim"):
        assert (await client.get(path)).status_code == 404


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_the_worker_port_answers_probes_and_shows_no_figures(path: str) -> None:
    async with gateway() as world:
        assert (await world.client.get(path)).text == "ok\n"
        assert (await world.client.get("/metrics")).status_code == 404
