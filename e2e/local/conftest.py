"""A world of its own for each test."""

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from e2e.local.world import World
from e2e.provider.client import ProviderClient
from e2e.provider.server import running


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running() as provider, ProviderClient(provider) as control:
        made = World(tmp_path, provider, control)
        try:
            yield made
        finally:
            await made.close()


@pytest.fixture(autouse=True, scope="session")
def _interrupts_are_heard() -> Iterator[None]:
    """What is started in the background by a shell ignores SIGINT, and so would all that the tests start and interrupt."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
