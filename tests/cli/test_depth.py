"""Values of any depth in the commands of a worker's script: a command that has done its work is never in doubt for its output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from stepfence.cli.__main__ import _parse
from stepfence.cli.command import as_result
from stepfence.cli.worker import run_command
from stepfence.sdk.settings import Options
from tests.sdk.gateway import ScriptedGateway


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


async def run(gateway: ScriptedGateway, folder: Path, code: str, *options: str) -> int:
    (folder / "token").write_text("token")
    environ = {
        "STEPFENCE_GATEWAY": "http://gateway.test",
        "STEPFENCE_NAMESPACE": "support",
        "STEPFENCE_RUN": "refund-4711",
        "STEPFENCE_RUN_UID": "u1",
        "STEPFENCE_WORKER": "1",
        "STEPFENCE_TOKEN_FILE": str(folder / "token"),
        "STEPFENCE_STATE_DIR": str(folder),
    }
    argv = ["exec", "--step", "charge", "--action", "Payment", *options, "--", sys.executable, "-c", code]
    return await run_command(_parse(argv), environ, transport=gateway.transport, options=Options())


@pytest.mark.parametrize(
    "text",
    [nested(65), nested(2_000), nested(100_000), "7" * 5_000, "[1e400]", '"\\ud800"'],
    ids=["65 levels", "2,000 levels", "100,000 levels", "5,000 digits", "beyond all floats", "half of a pair"],
)
def test_output_that_cannot_be_kept_as_a_value_is_kept_as_text(text: str) -> None:
    assert as_result(text.encode()) == {"stdout": text}


async def test_a_command_with_deep_output_is_done_and_printed_alike_when_it_is_replayed(tmp_path: Path, capfd: Any) -> None:
    gateway, code = ScriptedGateway({"charge": "Payment"}), "print('[' * 2000 + ']' * 2000)"
    assert await run(gateway, tmp_path, code) == 0
    live = capfd.readouterr().out
    assert live == nested(2_000) + "\n"
    assert await run(gateway, tmp_path, code) == 0
    assert capfd.readouterr().out == live
    assert gateway.routes() == ["claim", "steps/charge/begin", "steps/charge/complete", "steps/charge/begin"]


@pytest.mark.parametrize("levels", [65, 2_000, 20_000])
async def test_a_payload_that_is_nested_too_deep_begins_nothing(levels: int, tmp_path: Path, capfd: Any) -> None:
    gateway = ScriptedGateway({"charge": "Payment"})
    assert await run(gateway, tmp_path, "print(1)", "--payload", nested(levels)) == 2
    assert "nested" in capfd.readouterr().err
    assert gateway.bodies("steps/charge/begin") == []
