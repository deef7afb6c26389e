"""A script of a worker, and its gateway."""

from pathlib import Path

import pytest

from tests.cli.script import PLAN, Script
from tests.sdk.gateway import ScriptedGateway


@pytest.fixture
def gateway() -> ScriptedGateway:
    return ScriptedGateway(PLAN)


@pytest.fixture
def script(gateway: ScriptedGateway, tmp_path: Path) -> Script:
    return Script(gateway, tmp_path)
