"""What the end of a command tells: done, surely not, or a doubt."""

import asyncio
import errno
import sys
from typing import Any

import pytest

from tests.cli.script import Script
from tests.sdk.gateway import Problem, ScriptedGateway, go


@pytest.mark.parametrize(
    ("code", "options", "told", "ended"),
    [
        ("raise SystemExit(1)", (), "lose", "exit code 1: it is not known whether it happened"),
        ("raise SystemExit(2)", ("--not-applied-exit", "2,65"), "fail", "exit code 2: it did not happen"),
        ("raise SystemExit(3)", ("--not-applied-exit", "2,65"), "lose", "exit code 3: it is not known whether it happened"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", (), "lose", "killed by signal 9: it is not known"),
    ],
)
async def test_a_failing_command_is_a_doubt_unless_its_code_says_otherwise(
    code: str, options: tuple[str, ...], told: str, ended: str, script: Script, gateway: ScriptedGateway, capfd: Any
) -> None:
    gateway.on("steps/charge/begin", go(1, [sys.executable, "-c", code]), Problem("halted", more={"patch": "kubectl patch …"}))
    assert await script.exec(code, *options) == 76
    assert [route.split("/")[2] for route in gateway.routes() if route.startswith("steps/")] == ["begin", told, "begin"]
    assert gateway.routes()[-1] == "release"
    out, err = capfd.readouterr()
    assert out == ""
    # The log of a worker is where one looks first for what went wrong.
    assert f"step 'charge', attempt 1: {ended}" in err
    assert "Halted" in err
    assert "kubectl patch" in err


async def test_a_command_that_is_not_there_did_nothing(script: Script, gateway: ScriptedGateway, capfd: Any) -> None:
    assert await script("exec", "--step", "charge", "--action", "Payment", "--", "/no/such/command") == 1
    assert gateway.bodies("steps/charge/fail")[0]["reason"] == "CommandNotStarted"
    assert "release" not in gateway.routes(), "the script may go on by another step"
    assert "step 'charge'" in capfd.readouterr().err


async def test_a_start_that_fails_for_want_of_descriptors_may_have_started(
    script: Script, gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, real = [], asyncio.create_subprocess_exec

    async def fails(*argv: Any, **more: Any) -> Any:
        starts.append(argv)
        if len(starts) == 1:
            return await real(*argv, **more)  # the guard of the command
        raise OSError(errno.EMFILE, "too many open files")

    gateway.on("steps/charge/begin", go(1, [sys.executable, "-c", "pass"]), Problem("halted"))
    monkeypatch.setattr(asyncio, "create_subprocess_exec", fails)
    assert await script.exec("pass") == 76
    assert gateway.bodies("steps/charge/fail") == []
    assert gateway.bodies("steps/charge/lose")[0]["reason"] == "CommandFailed"


async def test_a_command_that_says_no_but_left_something_running_is_in_doubt(script: Script, gateway: ScriptedGateway, capfd: Any) -> None:
    code = "import subprocess, sys; subprocess.Popen(['sleep', '30'], stdout=subprocess.DEVNULL); sys.exit(65)"
    gateway.on("steps/charge/begin", go(1, [sys.executable, "-c", code]), Problem("halted"))
    assert await script.exec(code, "--not-applied-exit", "65") == 76
    assert gateway.bodies("steps/charge/fail") == []
    assert "exit code 65, and what it left running was ended: it is not known" in capfd.readouterr().err


async def test_a_recorded_payload_that_cannot_be_handed_on_has_started_nothing(script: Script, gateway: ScriptedGateway) -> None:
    gateway.on("steps/charge/begin", go(2, {"amount": 5}, payloadChanged=True))
    assert await script.exec("raise SystemExit(9)") == 1
    assert gateway.bodies("steps/charge/fail")[0]["reason"] == "PayloadMismatch"
