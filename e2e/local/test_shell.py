"""A shell script with curl: killed between the provider's answer and the record of it, it asks, is answered, and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.shell import provide
from e2e.local.world import ROOT, SECONDS, Running, World, holds
from e2e.provider.client import matcher
from e2e.provider.server import running
from e2e.provider.wire import Fault, Happening, Route

RUN = "refund-4711"
HAPPENED = {"id": "re_1", "order": "4711", "amount": 4200}


@pytest.fixture(scope="module", autouse=True)
def _curl() -> None:
    provide({"curl": "curl"})


def example(world: World, *, provider: str = "", steps: list[dict[str, Any]] | None = None, **environ: str) -> Path:
    """The example's own manifest, told where the provider of this test is."""
    document = yaml.safe_load((ROOT / "examples/refund-curl.yaml").read_text())
    (container,) = document["spec"]["template"]["spec"]["containers"]
    container["workingDir"] = str(ROOT)
    container["env"] = [{"name": name, "value": value} for name, value in {"PROVIDER_URL": provider or world.provider, **environ}.items()]
    document["metadata"] = {"name": RUN, "namespace": "support"}
    document["spec"]["plan"]["steps"] = steps or document["spec"]["plan"]["steps"]
    path = world.folder / "refund-curl.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


async def killed(world: World) -> None:
    code, output = await world.local("-n", "support", "kill", RUN)
    assert code == 0, output


async def answer(world: World, asked: str, **result: Any) -> None:
    """Run the printed command, with a result beside the verdict when one is given."""
    command = asked.partition("Answer with: ")[2]
    if result:
        words = shlex.split(command)
        patch = json.loads(words[-1])
        (decision,) = patch["spec"]["decisions"].values()
        command = shlex.join(
            [*words[:-1], json.dumps({"spec": {"decisions": {next(iter(patch["spec"]["decisions"])): decision | result}}})]
        )
    code, output = await world.shell(["/bin/sh", "-c", command])
    assert code == 0, output


async def logged(world: World, number: int) -> str:
    code, output = await world.local("-n", "support", "logs", RUN, "--worker", str(number))
    assert code == 0, output
    return output


async def keys(world: World, happening: Happening) -> list[str | None]:
    return [entry.key for entry in (await world.control.log()).entries if entry.happening is happening]


async def test_a_refund_by_curl_and_what_the_script_saw_is_what_is_recorded(world: World) -> None:
    run = await world.run(example(world))
    assert await run.over() == 0, run.lines
    status = (await world.document())["status"]
    refund = status["ledger"]["refund"]
    assert await keys(world, Happening.EFFECT) == [refund["key"]]
    assert await logged(world, 1) == f"paid back: {json.dumps(json.loads(status['result']))}\n"
    assert json.loads(status["result"])["key"] == refund["key"]


async def test_killed_while_the_provider_holds_back_its_answer_it_asks_and_goes_on(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, after=Fault(hang=True))
    run = await world.run(example(world))
    await world.control.wait_for(matcher(Happening.HANG), seconds=SECONDS)
    await killed(world)
    asked = (await run.until("NeedsReconciliation"))["message"]
    await world.control.clear_rules()
    (effect,) = await keys(world, Happening.EFFECT)
    assert effect
    assert f"key {effect})" in asked
    await answer(world, asked)
    assert await run.over() == 0, run.lines
    assert await keys(world, Happening.EFFECT) == [effect]
    assert await keys(world, Happening.REQUEST) == [effect]
    status = (await world.document())["status"]
    assert (status["ledger"]["refund"]["key"], status["worker"]["number"], status["result"]) == (effect, 2, "null")
    assert await logged(world, 2) == "paid back: null\n"


async def test_killed_after_curl_had_its_answer_it_asks_and_the_script_sees_the_answered_result(world: World) -> None:
    stopped = Holding(world)
    run = await world.run(example(world, PATH=stopped.path))
    await holds(stopped.answered.exists)
    assert json.loads(stopped.answered.read_text()) == HAPPENED | {"currency": "EUR", "key": (await keys(world, Happening.EFFECT))[0]}
    await killed(world)
    asked = (await run.until("NeedsReconciliation"))["message"]
    await answer(world, asked, result=HAPPENED)
    assert await run.over() == 0, run.lines
    assert await world.effects() == [Route.CREATE_REFUND]
    assert json.loads((await world.document())["status"]["result"]) == HAPPENED
    assert await logged(world, 2) == f"paid back: {json.dumps(dict(sorted(HAPPENED.items())))}\n"


async def test_killed_after_the_record_the_next_worker_sees_the_same_bytes(world: World) -> None:
    """The step is Done; the script is killed before it ends the run."""
    stopped = Holding(world, "printf")
    script = (ROOT / "examples/refund-curl.sh").read_text().replace("printf 'paid", "/usr/bin/env printf 'paid")
    file = world.manifest(
        ["sh", "-c", script], input={"order": "4711", "amount": 4200}, plan={"steps": [{"id": "refund", "action": "Payment"}]}
    )
    with_path(file, stopped.path)
    run = await world.run(file)
    await holds(stopped.answered.exists)
    first = stopped.answered.read_text()
    stopped.let_go()
    await killed(world)
    assert await run.over() == 0, run.lines
    assert await logged(world, 2) == first
    assert first.startswith("paid back: {")
    assert await world.effects() == [Route.CREATE_REFUND]
    assert "NeedsReconciliation" not in run.reasons()


async def test_no_connection_is_tried_again_and_nobody_is_asked(world: World) -> None:
    async with nothing_listens() as (url, port):
        steps = [{"id": "refund", "action": "Payment", "attempts": 20, "backoffSeconds": 1}]
        run = await world.run(example(world, provider=url, steps=steps))
        failed = await run.until("StepFailed")
        assert "Exit7 (exit code 7)" in failed["message"]
        port.release()
        async with running(port=port.number):
            assert await run.over() == 0, run.lines
    assert not {"NeedsReconciliation", "StepInDoubt"} & set(run.reasons())
    assert (await world.document())["status"]["ledger"]["refund"]["attempt"] > 1


async def test_a_500_is_a_doubt_and_did_not_happen_lets_it_pay(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, before=Fault(status=500))
    run = await world.run(example(world))
    doubt = await run.until("StepInDoubt")
    assert "exit code 22" in doubt["message"]
    asked = (await run.until("NeedsReconciliation"))["message"]
    assert await world.effects() == []
    await answer(world, asked, verdict="DidNotHappen", force=True)
    assert await run.over() == 0, run.lines
    assert await world.effects() == [Route.CREATE_REFUND]
    assert len(set(await keys(world, Happening.REQUEST))) == 1


async def test_a_redirect_is_no_answer(world: World) -> None:
    """Alone, curl would take it for success; and following it, end with 7 after it had sent the request."""

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(redirect, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        run = await world.run(example(world, provider=url))
        assert "exit code 47" in (await run.until("StepInDoubt"))["message"]
        await run.kill()


PLAN = {"steps": [{"id": "refund", "action": "Payment"}, {"id": "notify", "action": "Create"}]}
DOUBT = "stepfence exec --step refund --action Payment -- sh -c 'exit 9'"
NOTIFY = "stepfence exec --step notify --action Create -- sh -c 'echo told >>told'"


@pytest.mark.parametrize("shell", ["sh", "bash"])
async def test_an_assignment_ends_the_script_with_the_code_that_says_why(shell: str, world: World) -> None:
    provide({shell: shell})
    script = f"set -eu; x=$({DOUBT}); echo went on; {NOTIFY}"
    around = f'{shell} -c "$1" || {{ echo "code $?"; exit 76; }}'
    run = await world.run(world.manifest(["sh", "-c", around, "sh", script], plan=PLAN))
    await halted(run)
    assert (await logged(world, 1)).splitlines()[-1] == "code 76"
    assert (await world.document())["status"]["worker"]["exitReason"] == "Halted"


async def test_a_script_that_overlooks_the_code_goes_on_but_begins_nothing(world: World) -> None:
    """None of these lets `set -e` see the code."""
    overlooked = [f"{DOUBT} | cat", f"export x=$({DOUBT})", f'echo "$({DOUBT})"', f"{DOUBT} & wait", f"if {DOUBT}; then :; fi"]
    script = "; ".join(["set -eu", *overlooked, f"{NOTIFY} || touch stopped"])
    run = await world.run(world.manifest(["sh", "-c", script], plan=PLAN))
    await run.until("NeedsReconciliation")
    await holds((world.folder / "stopped").exists)
    await run.kill()
    assert not (world.folder / "told").exists()


async def halted(run: Running) -> None:
    """Its question is asked and its worker has ended, in whichever order they are told."""
    while not {"NeedsReconciliation", "WorkerEnded"} <= set(run.reasons()):
        assert await run.next() is not None, run.lines
    await run.kill()


class Holding:
    """A folder before the others in PATH in which one program says that it is done, keeps its output, and waits until it is killed."""

    def __init__(self, world: World, program: str = "curl") -> None:
        folder = world.folder / "bin"
        folder.mkdir()
        self.answered, self._go = world.folder / "answered", world.folder / "go"
        os.mkfifo(world.folder / "never")
        real = shutil.which(program)
        assert real
        (folder / program).write_text(
            f'#!/bin/sh\nset -eu\n[ ! -e {self._go} ] || exec {real} "$@"\n'
            f'{real} "$@" >{self.answered}.new\nmv {self.answered}.new {self.answered}\nread -r _ <{world.folder}/never\n'
        )
        (folder / program).chmod(0o755)
        self.path = f"{folder}:{Path(sys.executable).parent}:/usr/bin:/bin"

    def let_go(self) -> None:
        """Later calls do not wait."""
        self._go.touch()


def with_path(file: Path, path: str) -> None:
    document = yaml.safe_load(file.read_text())
    document["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "PATH", "value": path}]
    file.write_text(yaml.safe_dump(document))


class Port:
    """A port of loopback that is ours, and refuses connections because nobody listens."""

    def __init__(self, held: Any) -> None:
        self._held = held
        self.number: int = held.getsockname()[1]

    def release(self) -> None:
        self._held.close()


@contextlib.asynccontextmanager
async def nothing_listens() -> AsyncIterator[tuple[str, Port]]:
    import socket

    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = Port(held)
        yield f"http://127.0.0.1:{port.number}", port
