"""How payloads, results and output come in and go out of the worker commands: whole, in UTF-8, or refused before anything begins."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_worker_commands import PLAN, Script
from tests.sdk.gateway import Problem, ScriptedGateway, go


@pytest.fixture
def gateway() -> ScriptedGateway:
    return ScriptedGateway(PLAN)


@pytest.fixture
def script(gateway: ScriptedGateway, tmp_path: Path) -> Script:
    return Script(gateway, tmp_path)


async def test_output_in_which_a_key_is_given_twice_is_kept_as_it_is(script: Script, gateway: ScriptedGateway, capfd: Any) -> None:
    text = '{"id": "re_1", "id": "re_2"}'
    assert await script.exec(f"print({text!r})") == 0
    assert capfd.readouterr().out == text + "\n"
    assert gateway.bodies("steps/charge/complete")[0]["result"] == {"stdout": text + "\n"}


class Full(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError(28, "No space left on device")


class Gone(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize(("stream", "code", "told"), [(Full(), 1, "No space left on device; what is recorded stays"), (Gone(), 141, "")])
async def test_output_that_takes_nothing_more_is_told_and_the_step_stays_done(
    stream: io.StringIO, code: int, told: str, script: Script, gateway: ScriptedGateway, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert await script.exec("print('paid')") == code
    err = capfd.readouterr().err
    assert told in err
    assert "Traceback" not in err
    assert "steps/charge/complete" in gateway.routes()


@pytest.mark.parametrize("stream", [None, Gone()], ids=["closed", "broken"])
async def test_who_does_not_hear_that_it_did_not_happen_makes_no_doubt_of_it(
    stream: io.StringIO | None, script: Script, gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    code = "raise SystemExit(65)"
    gateway.on("steps/charge/begin", go(1, [sys.executable, "-c", code]), Problem("halted"))
    assert await script.exec(code, "--not-applied-exit", "65") == 76
    assert gateway.bodies("steps/charge/fail")[0]["reason"] == "Exit65"


async def test_what_others_wrote_is_shown_on_standard_error_and_not_obeyed(script: Script, gateway: ScriptedGateway, capfd: Any) -> None:
    gateway.on("steps/charge/begin", {"outcome": "Denied", "reason": "Denied", "message": "no\x1b[2J\u202e\nstepfence: paid"})
    assert await script.exec("print(1)") == 3
    err = capfd.readouterr().err
    assert "no\\x1b[2J\\u202e\\nstepfence: paid" in err
    assert err.count("\n") == 1
