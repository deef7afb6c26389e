"""What a command leaves running does not outlive its step: it could still send after the step is told."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepfence.cli import guard
from tests.cli.script import Script
from tests.sdk.gateway import Problem, ScriptedGateway, go

# Leaves a process behind: as a shell does, as a shell with job control and `timeout` do, and one that does not end when it is asked to.
LEFT = {
    "in its group": "subprocess.Popen(['sleep', '30'], **quiet)",
    "in a group of its own": "subprocess.Popen(['sleep', '30'], process_group=0, **quiet)",
    "deaf": "subprocess.Popen(['sleep', '30'], preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), **quiet)",
}


class Pipe:
    """Is open for writing in what a command starts. Reading finds its end once all of that is gone."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self.reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def code(self, left: str, then: str) -> str:
        """Return the code of a command that leaves something running, and then does something."""
        return (
            "import os, signal, subprocess, sys\n"
            f"pipe = os.open({str(self.path)!r}, os.O_WRONLY); os.write(pipe, b'.')\n"
            "quiet = {'stdout': subprocess.DEVNULL, 'pass_fds': [pipe]}\n"
            f"{LEFT[left]}\n{then}"
        )

    def all_gone(self) -> bool:
        """Whether the command has run, and nothing of it does any more."""
        assert os.read(self.reader, 1) == b"."
        try:
            return os.read(self.reader, 1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    made = Pipe(tmp_path / "pipe")
    yield made
    os.close(made.reader)


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("code", [1, 65])
async def test_what_a_command_that_failed_left_running_is_ended(
    left: str, code: int, pipe: Pipe, script: Script, gateway: ScriptedGateway, capfd: pytest.CaptureFixture[str]
) -> None:
    program = pipe.code(left, f"sys.exit({code})")
    gateway.on("steps/charge/begin", go(1, [sys.executable, "-c", program]), Problem("halted"))
    assert await script.exec(program, "--not-applied-exit", "65") == 76
    assert pipe.all_gone()
    assert gateway.bodies("steps/charge/fail") == []
    said = f"exit code {code}, and what it left running was ended: it is not known whether it happened"
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("left", LEFT)
async def test_the_deadline_ends_all_that_a_command_started(left: str, pipe: Pipe, script: Script, gateway: ScriptedGateway) -> None:
    program = pipe.code(left, "signal.pause()")
    gateway.on("steps/charge/begin", go(1, [sys.executable, "-c", program]), Problem("halted"))
    assert await script.exec(program, "--timeout", "1") == 76
    assert pipe.all_gone()
    assert gateway.bodies("steps/charge/lose")[0]["reason"] == "DeadlineExceeded"


@pytest.mark.parametrize("left", LEFT)
async def test_the_guard_ends_all_of_a_command_whose_exec_was_killed(left: str, pipe: Pipe) -> None:
    program = pipe.code(left, "print(flush=True); signal.pause()")
    command = await asyncio.create_subprocess_exec(sys.executable, "-c", program, start_new_session=True, stdout=subprocess.PIPE)
    assert command.stdout is not None
    await asyncio.wait_for(command.stdout.readline(), 20)
    told = await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", guard.__file__, stdin=subprocess.PIPE)
    await asyncio.wait_for(told.communicate(b"%d " % command.pid), 20)
    assert await asyncio.wait_for(command.wait(), 20) == -signal.SIGKILL
    assert pipe.all_gone()


async def test_what_a_command_that_succeeded_left_running_is_its_own_affair(pipe: Pipe, script: Script, gateway: ScriptedGateway) -> None:
    program = pipe.code("in its group", "print(os.getpid())")
    gateway.on("steps/charge/begin", go(1, [sys.executable, "-c", program]))
    assert await script.exec(program) == 0
    session = gateway.bodies("steps/charge/complete")[0]["result"]
    assert not pipe.all_gone()
    guard.send_signal(session, signal.SIGKILL)


async def test_an_exit_code_is_seen_though_who_started_us_ignores_the_ends_of_children(script: Script, gateway: ScriptedGateway) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        gateway.on("steps/charge/begin", go(1, [sys.executable, "-c", "pass"]))
        assert await script.exec("pass", "--not-applied-exit", "255") == 0
        assert gateway.bodies("steps/charge/fail") == []
    finally:
        signal.signal(signal.SIGCHLD, before)
