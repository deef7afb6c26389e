"""What is nested too deep is an error of the program before anything begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepfence import Action, Step
from tests.sdk.gateway import ScriptedGateway, connection
from tests.sdk.virtual import virtual_time

RING: list[Any] = []
RING.append(RING)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


async def never(_payload: Any, _step: Step) -> Any:
    raise AssertionError("nothing may be performed")


@pytest.mark.parametrize("value", [nested(65), nested(300), nested(5_000), RING], ids=["65", "300", "5,000", "a ring"])
@virtual_time
async def test_a_payload_that_is_nested_too_deep_begins_nothing(value: Any, tmp_path: Path) -> None:
    gateway = ScriptedGateway({"refund": "Payment"})
    async with connection(gateway, tmp_path) as run:
        with pytest.raises(TypeError, match="payload"):
            await run.step("refund", Action.PAYMENT, value, never)
        with pytest.raises(TypeError, match="result"):
            await run.finish(value)
        assert gateway.routes() == ["claim"]
        await run.finish(None)
