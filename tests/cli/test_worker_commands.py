"""The worker commands against a scripted gateway: exec, the ends of a run, one claim for a script, drain."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.script import PLAN, Script
from tests.sdk.gateway import Held, LostReply, Problem, ScriptedGateway, connection, go

PRINTS_KEY = "import os, json; print(json.dumps({'key': os.environ['STEPFENCE_KEY'], 'attempt': os.environ['STEPFENCE_ATTEMPT']}))"


async def test_exec_gives_the_key_and_records_the_output(script: Script, gateway: ScriptedGateway, capfd: Any) -> None:
    assert await script.exec(PRINTS_KEY) == 0
    live = capfd.readouterr().out
    assert json.loads(live) == {"key": "sf1-charge", "attempt": "1"}
    assert await script.exec(PRINTS_KEY) == 0
    assert capfd.readouterr().out == live
    assert gateway.routes() == ["claim", "steps/charge/begin", "steps/charge/complete", "steps/charge/begin"]
    assert gateway.bodies("steps/charge/begin")[0]["payload"] == [sys.executable, "-c", PRINTS_KEY]
    first, second = (body["requestID"] for body in gateway.bodies("steps/charge/begin"))
    assert first != second


@pytest.mark.parametrize("text", ["plain text\n", "", '{"stdout": "not ours"}', "NaN", "12345678901234567890", "[1, null]\n", "a\nb"])
async def test_live_and_replayed_output_are_alike(text: str, script: Script, capfd: Any) -> None:
    code = f"import sys; sys.stdout.write({text!r})"
    assert await script.exec(code) == 0
    live = capfd.readouterr().out
    assert await script.exec(code) == 0
    assert capfd.readouterr().out == live
    assert live.strip() == text.strip() or json.loads(live) == json.loads(text)


async def test_output_that_is_too_long_is_cut_and_that_is_said(script: Script, gateway: ScriptedGateway, capfd: Any) -> None:
    assert await script.exec("import sys; sys.stdout.write('x' * (768 * 1024 + 1))") == 0
    out, err = capfd.readouterr()
    assert len(out) == 768 * 1024
    assert "output is longer than 768 KiB, the rest is cut" in err


async def test_the_recorded_command_line_is_run(script: Script, gateway: ScriptedGateway, capfd: Any) -> None:
    gateway.on("steps/charge/begin", go(2, [sys.executable, "-c", "print('recorded')"], payloadChanged=True))
    assert await script.exec("print('brought')") == 0
    assert capfd.readouterr().out == "recorded\n"


async def test_a_given_payload_comes_by_environment(script: Script, gateway: ScriptedGateway, capfd: Any) -> None:
    code = "import os; print(os.environ['STEPFENCE_PAYLOAD'])"
    assert await script.exec(code, "--payload", '{"amount": 5}') == 0
    assert json.loads(capfd.readouterr().out) == {"amount": 5}
    assert gateway.bodies("steps/charge/begin")[0]["payload"] == {"amount": 5}


async def test_a_recorded_payload_that_is_no_command_line_is_not_run(script: Script, gateway: ScriptedGateway) -> None:
    gateway.on("steps/charge/begin", go(1, {"amount": 5}))
    assert await script.exec("print(1)") == 1
    assert gateway.bodies("steps/charge/fail")[0]["reason"] == "PayloadMismatch"


async def test_a_command_past_its_time_out_is_ended_and_lost(script: Script, gateway: ScriptedGateway, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    # A shell, and time enough for it to start on a busy machine: what never started cannot be ended.
    command = ["/bin/sh", "-c", f"echo $$ >{pid}; exec sleep 60"]
    gateway.on("steps/charge/begin", go(1, command), Problem("halted"))
    assert await script.exec("", "--timeout", "1.5") == 76
    assert gateway.bodies("steps/charge/lose")[0]["reason"] == "DeadlineExceeded"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


async def test_a_command_that_ends_well_because_it_was_told_to_is_a_doubt(script: Script, gateway: ScriptedGateway) -> None:
    """Nobody knows what it had done by then: a payment that was never made would stand as done for good."""
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('ready', flush=True); signal.pause()"
    gateway.on("steps/charge/begin", go(1, [sys.executable, "-c", code]), Problem("halted"))
    assert await script.exec(code, "--timeout", "2") == 76
    assert gateway.bodies("steps/charge/lose")[0]["reason"] == "DeadlineExceeded"
    assert "steps/charge/complete" not in gateway.routes()


async def test_a_command_that_ended_well_before_is_done_whatever_it_left_behind(script: Script, gateway: ScriptedGateway) -> None:
    command = ["/bin/sh", "-c", "sleep 60 & echo paid"]
    gateway.on("steps/charge/begin", go(1, command))
    assert await script.exec("", "--timeout", "1.5") == 0
    assert gateway.bodies("steps/charge/complete")[0]["result"] == {"stdout": "paid\n"}


@pytest.mark.parametrize("argv", [("finish",), ("fail", "--reason", "R"), ("halt", "--reason", "R"), ("plan", "[]")])
async def test_inside_the_command_of_a_step_nothing_is_begun_or_ended(
    argv: tuple[str, ...], script: Script, gateway: ScriptedGateway
) -> None:
    """It would wait until that step has settled, which waits for it."""
    script.environ["STEPFENCE_ATTEMPT"] = "1"
    assert await script(*argv) == 2
    assert await script.exec("print('paid')") == 2
    assert gateway.routes() == []


async def test_inside_the_command_of_a_step_the_input_can_be_read(script: Script, capfd: Any) -> None:
    script.environ["STEPFENCE_ATTEMPT"] = "1"
    assert await script("input") == 0
    assert capfd.readouterr().out


@pytest.mark.parametrize(("code", "exit_code"), [("draining", 75), ("halted", 76), ("cancelled", 76), ("fenced", 75)])
async def test_a_stop_is_the_exit_code(code: str, exit_code: int, script: Script, gateway: ScriptedGateway) -> None:
    gateway.on("steps/charge/begin", Problem(code))
    assert await script.exec("print(1)") == exit_code
    assert ("release" in gateway.routes()) is (code != "fenced")


async def test_a_denied_step_has_a_code_of_its_own(script: Script, gateway: ScriptedGateway) -> None:
    gateway.on("steps/charge/begin", {"outcome": "Denied", "reason": "Denied", "message": "no"})
    assert await script.exec("print(1)") == 3


async def test_finish_fail_and_halt_end_the_script(gateway: ScriptedGateway, tmp_path: Path) -> None:
    for argv, code, reason in [
        (("finish", "--result", '{"ok": true}'), 0, "Finished"),
        (("fail", "--reason", "NoOrder", "--message", "4711"), 77, "Failed"),
        (("halt", "--reason", "Odd"), 76, "Halted"),
    ]:
        folder = tmp_path / argv[0]
        folder.mkdir()
        script = Script(ScriptedGateway(PLAN), folder)
        assert await script.exec("print(1)") == 0
        assert await script(*argv) == code
        assert script.gateway.routes()[-2:] == [argv[0], "release"]
        assert script.gateway.bodies("release")[0]["reason"] == reason
        assert script.gateway.routes().count("claim") == 1


async def test_the_claim_is_shared_and_a_lost_reply_to_it_repeated(script: Script, gateway: ScriptedGateway) -> None:
    gateway.on("claim", LostReply())
    codes = await asyncio.gather(
        script.exec("print(1)"),
        script.exec("print(2)", step="lookup", action="Read"),
        script.exec("print(3)", step="other", action="Create"),
    )
    assert list(codes) == [0, 0, 0]
    assert len({body["requestID"] for body in gateway.bodies("claim")}) == 1
    assert {body["token"] for route, body in gateway.calls if route.endswith("/begin")} == {1}


async def test_a_stop_of_one_command_waits_for_the_others_before_it_releases(script: Script, gateway: ScriptedGateway) -> None:
    answer = asyncio.Event()
    gateway.on("steps/charge/complete", Held(answer))
    gateway.on("steps/other/begin", Problem("halted"))
    charging = asyncio.create_task(script.exec("print(1)"))
    await gateway.called("steps/charge/complete")
    stopping = asyncio.create_task(script.exec("print(2)", step="other", action="Create"))
    await gateway.called("steps/other/begin")
    await asyncio.wait({stopping}, timeout=0.3)
    assert "release" not in gateway.routes()
    answer.set()
    assert await charging == 0
    assert await stopping == 76
    assert gateway.routes()[-1] == "release"


async def test_another_worker_number_claims_for_itself(script: Script, gateway: ScriptedGateway) -> None:
    assert await script.exec("print(1)") == 0
    script.environ["STEPFENCE_WORKER"] = "2"
    assert await script.exec("print(1)") == 0
    assert gateway.routes().count("claim") == 2


async def test_plan_and_input(script: Script, gateway: ScriptedGateway, capfd: Any) -> None:
    gateway.plan = None
    assert await script("plan", '[{"id": "charge", "action": "Payment"}]') == 0
    assert gateway.bodies("plan")[0]["steps"] == [{"id": "charge", "action": "Payment"}]
    assert await script("input") == 0
    assert json.loads(capfd.readouterr().out) == {"order": "4711"}
    assert await script("input", "order") == 0
    assert capfd.readouterr().out == "4711\n"
    assert await script("input", "no.such") == 2


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (("finish", "--result", "{"), "--result"),
        (("plan", '{"id": 1}'), "list of steps"),
        (("exec", "--step", "charge", "--action", "Payment", "--payload", "{", "--", "true"), "--payload"),
        (("exec", "--step", "charge", "--action", "Create", "--", "true"), "planned as Payment"),
    ],
)
async def test_wrong_use_is_told(argv: tuple[str, ...], what: str, script: Script, capfd: Any) -> None:
    assert await script(*argv) == 2
    assert what in capfd.readouterr().err


@pytest.mark.parametrize("name", ["STEPFENCE_GATEWAY", "STEPFENCE_STATE_DIR"])
async def test_outside_a_run_nothing_is_executed(name: str, script: Script, tmp_path: Path, capfd: Any) -> None:
    del script.environ[name]
    marker = tmp_path / "ran"
    assert await script.exec(f"open({str(marker)!r}, 'w')") == 2
    assert name in capfd.readouterr().err
    assert not marker.exists()


async def test_drain_of_a_script_between_two_commands_releases_it(script: Script, gateway: ScriptedGateway) -> None:
    assert await script.exec("print(1)") == 0
    assert await script("drain") == 0
    assert gateway.routes()[-2:] == ["drain", "release"]
    assert gateway.bodies("release")[0] | {"token": 1, "reason": "Drained"} == gateway.bodies("release")[0]
    assert await script.exec("print(1)", step="other", action="Create") == 75
    assert gateway.routes()[-1] == "release", "a pod that drains claims nothing again"


async def test_drain_waits_for_the_command_in_flight(script: Script, gateway: ScriptedGateway) -> None:
    answer = asyncio.Event()
    gateway.on("steps/charge/complete", Held(answer))
    command = asyncio.create_task(script.exec("print(1)"))
    await gateway.called("steps/charge/complete")
    drain = asyncio.create_task(script("drain"))
    await gateway.called("drain")
    assert not drain.done()
    answer.set()
    assert await command == 0
    assert await drain == 0
    assert gateway.routes()[-3:] == ["steps/charge/complete", "drain", "release"]


async def test_drain_gives_up_in_time(script: Script, gateway: ScriptedGateway) -> None:
    answer = asyncio.Event()
    gateway.on("steps/charge/complete", Held(answer))
    command = asyncio.create_task(script.exec("print(1)"))
    await gateway.called("steps/charge/complete")
    assert await script("drain", "--timeout", "0.2") == 1
    answer.set()
    assert await command == 0


async def test_drain_before_any_claim_only_forbids_it(script: Script, gateway: ScriptedGateway) -> None:
    assert await script("drain") == 0
    assert await script.exec("print(1)") == 75
    assert gateway.calls == []


async def test_drain_of_a_python_worker_waits_until_it_has_released(script: Script, gateway: ScriptedGateway, tmp_path: Path) -> None:
    async def worker() -> int:
        try:
            async with connection(gateway, tmp_path, state_dir=tmp_path, exit_on_stop=True, watch_interval=0.01):
                await asyncio.Event().wait()
        except SystemExit as left:
            return int(left.code or 0)
        return 0

    task = asyncio.create_task(worker())
    await gateway.called("claim")
    async with asyncio.timeout(20):
        while script.state.read_claim() is None:
            await asyncio.wait({task}, timeout=0.01)
    assert await script("drain") == 0
    assert await task == 75
    assert gateway.routes() == ["claim", "drain", "release"]
    assert script.state.released.exists()


async def test_sigterm_lets_the_command_settle_and_stops_the_script(script: Script, gateway: ScriptedGateway, capfd: Any) -> None:
    os_kill = f"import os, signal; os.kill({os.getpid()}, signal.SIGTERM); print('sent')"
    before = signal.getsignal(signal.SIGTERM)
    assert await script.exec(os_kill) == 0
    assert capfd.readouterr().out == "sent\n"
    assert signal.getsignal(signal.SIGTERM) is before
    assert await script.exec("print(1)", step="other", action="Create") == 75
    assert "steps/other/begin" not in gateway.routes()
    assert gateway.routes()[-1] == "release"
    assert gateway.bodies("release")[0]["reason"] == "Drained"


# What a script starts is what sends: it must end too.
CONNECTS = "import socket, sys; line = socket.socket(socket.AF_UNIX); line.connect(sys.argv[1]); line.send(b'here'); line.recv(1)"
PERFORMS = """
import asyncio, sys
from stepfence.cli.command import Command
from stepfence.sdk.latch import Latch
from stepfence.sdk.step import Step

async def main():
    clock = asyncio.get_running_loop().time
    step = Step("charge", "sf1-charge", 1, deadline=clock() + 600, clock=clock, latch=Latch(), classifiers=())
    await Command(sys.argv[1:], False, frozenset()).perform(None, step)

asyncio.run(main())
"""


async def test_a_command_ends_with_the_exec_that_watches_it(tmp_path: Path) -> None:
    came, heard = asyncio.Event(), asyncio.Queue[bytes]()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        came.set()
        heard.put_nowait(await reader.read())
        writer.close()

    async with asyncio.timeout(20), await asyncio.start_unix_server(talk, tmp_path / "line"):
        script = ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", CONNECTS, str(tmp_path / "line")]
        watcher = await asyncio.create_subprocess_exec(sys.executable, "-c", PERFORMS, *script)
        await came.wait()
        watcher.kill()
        assert await heard.get() == b"", "the line is closed when its process has ended"
        await watcher.wait()
