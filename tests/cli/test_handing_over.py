"""How payloads, results and output come in and go out of the worker commands: whole, in UTF-8, or refused before anything begins."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.script import PLAN, Script
from tests.cli.test_reading import Stdin
from tests.sdk.gateway import Problem, ScriptedGateway, go

READS_FILE = "import os; print(open(os.environ['STEPFENCE_PAYLOAD_FILE']).read())"
SAYS_WHERE = """
import json, os, stat
path = os.environ['STEPFENCE_PAYLOAD_FILE']
modes = [stat.S_IMODE(os.stat(each).st_mode) for each in (path, os.path.dirname(path))]
print(json.dumps([path, modes, 'STEPFENCE_PAYLOAD' in os.environ, os.path.getsize(path)]))
"""
VALUE = {"text": "x" * 200 * 1024}
LARGE = json.dumps(VALUE)


@pytest.fixture
def gateway() -> ScriptedGateway:
    return ScriptedGateway(PLAN)


@pytest.fixture
def script(gateway: ScriptedGateway, tmp_path: Path) -> Script:
    return Script(gateway, tmp_path)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    file = tmp_path / "large.json"
    file.write_text(LARGE)
    return file


@contextlib.contextmanager
def standard_input(data: bytes) -> Iterator[None]:
    """What this process has as its file 0, and so what it starts."""
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    before = os.dup(0)
    os.dup2(reader, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(reader)
        os.close(before)


async def test_a_payload_comes_by_standard_input_and_the_command_then_reads_nothing(
    script: Script, gateway: ScriptedGateway, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b'{"amount": 5}'))
    code = "import os, sys; print([os.environ['STEPFENCE_PAYLOAD'], sys.stdin.read()])"
    with standard_input(b"of the script"):
        assert await script.exec(code, "--payload", "-") == 0
    assert capfd.readouterr().out == "['{\"amount\":5}', '']\n"
    assert gateway.bodies("steps/charge/begin")[0]["payload"] == {"amount": 5}


async def test_without_that_the_command_reads_what_the_script_reads(script: Script, capfd: Any) -> None:
    with standard_input(b"of the script"):
        assert await script.exec("import sys; print(sys.stdin.read())", "--payload", "1") == 0
    assert capfd.readouterr().out == "of the script\n"


async def test_a_large_payload_comes_by_file_and_goes_on_by_file(
    script: Script, gateway: ScriptedGateway, large: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFENCE_PAYLOAD", "of another step")
    assert await script.exec(READS_FILE, "--payload", f"@{large}", "--payload-in-file") == 0
    assert json.loads(capfd.readouterr().out) == VALUE
    assert gateway.bodies("steps/charge/begin")[0]["payload"] == VALUE
    assert await script.exec(SAYS_WHERE, "--payload", '"Jörg"', "--payload-in-file", step="other", action="Create") == 0
    path, modes, in_variable, size = json.loads(capfd.readouterr().out)
    assert (modes, in_variable, size) == ([0o600, 0o700], False, len('"Jörg"'.encode()))
    assert not Path(path).parent.exists()
    assert list(script.folder.glob("payload.*")) == []


async def test_a_payload_too_large_for_the_variable_is_refused_before_anything_begins(
    script: Script, gateway: ScriptedGateway, large: Path, tmp_path: Path, capfd: Any
) -> None:
    """A command that knows the variable alone would send nothing, and be done."""
    marker = tmp_path / "ran"
    assert await script.exec(f"open({str(marker)!r}, 'w')", "--payload", f"@{large}") == 2
    assert "add --payload-in-file" in capfd.readouterr().err
    assert gateway.calls == []
    assert not marker.exists()


async def test_a_recorded_payload_too_large_for_the_variable_is_not_run(script: Script, gateway: ScriptedGateway) -> None:
    gateway.on("steps/charge/begin", go(1, VALUE))
    assert await script.exec("print(1)", "--payload", "1") == 1
    assert gateway.bodies("steps/charge/fail")[0]["reason"] == "PayloadTooLarge"


async def test_no_variable_of_another_step_reaches_the_command(script: Script, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFENCE_PAYLOAD_FILE", "/of/another/step")
    assert await script.exec("import os; print('STEPFENCE_PAYLOAD_FILE' in os.environ)") == 0
    assert capfd.readouterr().out == "False\n"


async def test_a_file_that_cannot_be_removed_is_no_doubt(script: Script, gateway: ScriptedGateway) -> None:
    folder = "os.path.dirname(os.environ['STEPFENCE_PAYLOAD_FILE'])"
    code = f"import os; folder = {folder}; os.rename(folder, folder + '.gone'); open(folder, 'w').close()"
    assert await script.exec(code, "--payload", "1", "--payload-in-file") == 0
    assert "steps/charge/complete" in gateway.routes()


async def test_a_file_that_cannot_be_written_is_surely_nothing_sent(script: Script, gateway: ScriptedGateway, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    gateway.on("steps/charge/begin", go(1, {"a": 1}))

    def full(*_words: Any, **_more: Any) -> str:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.mkdtemp", full)
        assert await script.exec(f"open({str(marker)!r}, 'w')", "--payload", "1", "--payload-in-file") == 1
    assert gateway.bodies("steps/charge/fail")[0]["reason"] == "PayloadNotWritten"
    assert not marker.exists()


async def test_a_result_and_a_plan_come_by_file_and_by_standard_input(
    gateway: ScriptedGateway, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, name in (("-", "a"), (f"@{large}", "b")):
        folder = tmp_path / name
        folder.mkdir()
        script = Script(ScriptedGateway(PLAN), folder)
        monkeypatch.setattr(sys, "stdin", Stdin(LARGE.encode()))
        assert await script("finish", "--result", given) == 0
        assert script.gateway.bodies("finish")[0]["result"] == VALUE
    gateway.plan = None
    plan = tmp_path / "plan.json"
    plan.write_text('[{"id": "charge", "action": "Payment"}]')
    assert await Script(gateway, tmp_path)("plan", f"@{plan}") == 0
    assert gateway.bodies("plan")[0]["steps"] == [{"id": "charge", "action": "Payment"}]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("finish", "--result", '{"ok": {"a": 1, "a": 2}}'), "--result: ok.a: given twice"),
        (("plan", '[{"id": "a", "action": "Read", "action": "Payment"}]'), "the plan: [0].action: given twice"),
        (
            ("exec", "--step", "charge", "--action", "Payment", "--payload", '{"a": 10, "a": 1000}', "--", "true"),
            "--payload: a: given twice",
        ),
        (
            ("exec", "--step", "charge", "--action", "Payment", "--payload", '{"a": [NaN]}', "--", "true"),
            "--payload: a[0]: a number that is not finite",
        ),
        (("exec", "--step", "charge", "--action", "Payment", "--payload", "[" * 5000, "--", "true"), "--payload: nested too deeply"),
        (("exec", "--step", "charge", "--action", "Payment", "--", "./pay", "caf\udce9"), "argument 1 of the command"),
        (("exec", "--step", "charge\udce9", "--action", "Payment", "--payload", "1", "--", "./pay"), "--step is no UTF-8: b'charge\\xe9'"),
    ],
)
async def test_what_cannot_be_recorded_as_it_is_meant_is_refused_by_name_before_anything_begins(
    argv: tuple[str, ...], told: str, script: Script, gateway: ScriptedGateway, capfd: Any
) -> None:
    assert await script(*argv) == 2
    assert told in capfd.readouterr().err
    assert gateway.calls == []


async def test_a_command_may_have_arguments_that_are_no_utf_8_when_it_is_not_the_payload(script: Script, capfd: Any) -> None:
    words = ("--step", "charge", "--action", "Payment", "--payload", "1")
    assert await script("exec", *words, "--", sys.executable, "-c", "import os, sys; print(os.fsencode(sys.argv[1]))", "caf\udce9") == 0
    assert capfd.readouterr().out == "b'caf\\xe9'\n"


async def test_a_message_of_other_bytes_still_ends_the_run(script: Script, gateway: ScriptedGateway) -> None:
    assert await script("fail", "--reason", "NoOrder", "--message", "caf\udce9 closed") == 77
    assert gateway.bodies("fail")[0]["message"] == "caf\N{REPLACEMENT CHARACTER} closed"


async def test_a_recorded_command_line_that_no_kernel_takes_is_not_run(script: Script, gateway: ScriptedGateway) -> None:
    gateway.on("steps/charge/begin", go(1, ["true", "a\0b"]))
    assert await script.exec("print(1)") == 1
    assert gateway.bodies("steps/charge/fail")[0]["reason"] == "PayloadMismatch"


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


async def test_why_it_waits_is_told_when_something_holds_the_output_of_a_command_that_has_exited(
    script: Script, gateway: ScriptedGateway, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfence.cli.command._HELD_SECONDS", 0.1)
    gateway.on("steps/charge/begin", go(1, ["/bin/sh", "-c", "sleep 60 & echo paid"]))
    assert await script.exec("", "--timeout", "3") == 0
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "has exited" in line]
    assert line.startswith("stepfence: step 'charge', attempt 1: the command has exited (code 0), but something it started still holds its")
    assert re.search(r" output open: waiting for that, at most [0-3] s more$", line)


async def test_a_command_that_ends_with_its_output_is_waited_for_in_silence(script: Script, capfd: Any) -> None:
    assert await script.exec("import subprocess; subprocess.Popen(['sleep', '0.5'])") == 0
    assert "has exited" not in capfd.readouterr().err
