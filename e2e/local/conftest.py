"""A world of its own for each test."""

from collections.abc import AsyncIterator
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
