"""What stands on a person's terminal while runs go on: `stepfence local run` under a pseudo terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from e2e.local.world import ROOT, SECONDS, World
from e2e.provider.client import matcher
from e2e.provider.wire import Fault, Happening, Route

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Terminal:
    """A pseudo terminal and the command that runs on it. `text`: all that was written to it."""

    process: asyncio.subprocess.Process
    text: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, data: bytes) -> None:
        self.text += data.decode(errors="replace")
        self.changed.set()

    @property
    def lines(self) -> list[str]:
        """Logical lines, as a terminal would copy them, without what moves and colours."""
        return [CONTROL.sub("", line) for line in self.text.replace("\r", "").split("\n")]

    async def until(self, fact: Callable[[str], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not fact(self.text):
                self.changed.clear()
                await self.changed.wait()

    async def over(self) -> int:
        return await asyncio.wait_for(self.process.wait(), SECONDS)


@contextlib.asynccontextmanager
async def on_terminal(world: World, *words: str, width: int = 80, **environ: str) -> AsyncIterator[Terminal]:
    """Run `stepfence local` on a terminal of that width."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
    command = [sys.executable, "-m", "stepfence.cli", "local", "--state", str(world.state), *words]
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=world.folder,
        env={**world.environ, "TERM": "xterm-256color", **environ},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    terminal, loop = Terminal(process), asyncio.get_running_loop()

    def read() -> None:
        try:
            terminal.take(os.read(ours, 65536))
        except OSError:  # the other end is closed
            loop.remove_reader(ours)

    loop.add_reader(ours, read)
    try:
        yield terminal
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        loop.remove_reader(ours)
        os.close(ours)


async def in_flight(world: World, terminal: Terminal) -> None:
    await world.control.wait_for(matcher(Happening.HANG), seconds=SECONDS)
    await terminal.until(lambda text: "InFlight" in text)


async def test_it_shows_who_is_waited_for_and_the_answering_command_on_one_line(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, after=Fault(hang=True))
    async with on_terminal(world, "run", str(world.refund()), width=100) as terminal:
        await in_flight(world, terminal)
        assert re.search(r"worker 1, at the latest [0-9:]{8} \(in [0-9]+ s\)", terminal.text)
        await world.local("-n", "support", "kill", "refund-4711")
        await terminal.until(lambda text: "a person: Happened or Abandon" in text)
        await world.control.clear_rules()
        (question,) = (await world.document())["status"]["questions"].values()
        assert terminal.lines.count(question["patch"]) == 1
        assert any("NeedsReconciliation" in line and "token 2" in line for line in terminal.lines)
        code, output = await world.shell(["/bin/sh", "-c", question["patch"]])
        assert code == 0, output
        assert await terminal.over() == 0
        await terminal.until(lambda text: text.endswith("\x1b[?25h"))
    last = terminal.lines[-5:]
    assert "Succeeded" in last[0]
    assert [line.split()[:3] for line in last[1:4]] == [
        ["lookup-order", "Read", "Done"],
        ["refund", "Payment", "Done"],
        ["notify", "Create", "Done"],
    ]
    assert await world.effects() == [Route.CREATE_REFUND, Route.CREATE_NOTIFICATION]


async def test_a_signal_lets_the_worker_go_while_the_view_goes_on(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, before=Fault(hang=True))
    async with on_terminal(world, "run", str(world.refund())) as terminal:
        await in_flight(world, terminal)
        os.killpg(terminal.process.pid, signal.SIGINT)
        await terminal.until(lambda text: "worker 1 lives, told to go" in text)
        await world.control.release()
        assert await terminal.over() == 130
        await terminal.until(lambda text: text.endswith("\x1b[?25h"))
    assert "worker 1 ended: Drained" in "\n".join(terminal.lines[-6:])
    assert world.processes() == []


def hostile(world: World) -> Path:
    # What the shell's printf makes of it: a cleared screen, a line that looks like one of ours, markup.
    message = r"$(printf '\033[2Jboo\r\n12:00:00 support/x Succeeded: forged [red]:smile:')"
    return world.manifest(["/bin/sh", "-c", f'stepfence fail --reason Odd --message "{message}"'])


SHOWN = r"\x1b[2Jboo\r\n12:00:00 support/x Succeeded: forged [red]:smile:"


async def test_what_a_worker_says_is_shown_and_never_obeyed(world: World) -> None:
    async with on_terminal(world, "run", str(hostile(world)), width=200) as terminal:
        assert await terminal.over() == 1
        await terminal.until(lambda text: text.endswith("\x1b[?25h"))
    assert SHOWN in terminal.text
    assert "\x1b[2J" not in terminal.text
    assert not any(line.startswith("12:00:00") for line in terminal.lines)


async def test_in_plain_lines_neither(world: World) -> None:
    code, output = await world.local("run", str(hostile(world)))
    assert code == 1
    assert SHOWN in output
    assert "\x1b" not in output


async def test_a_terminal_that_cannot_be_drawn_on_gets_plain_lines(world: World) -> None:
    async with on_terminal(world, "run", str(world.refund()), TERM="dumb") as terminal:
        assert await terminal.over() == 0
        await terminal.until(lambda text: "Succeeded: Finished" in text)
    assert "\x1b" not in terminal.text
    assert "WAITS FOR" not in terminal.text


@contextlib.asynccontextmanager
async def unread(world: World, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `stepfence local` with an output that is full and that nobody reads."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * 4096)
    command = [sys.executable, "-m", "stepfence.cli", "local", "--state", str(world.state), *words]
    process = await asyncio.create_subprocess_exec(*command, cwd=world.folder, env=world.environ, stdout=writer)
    os.close(writer)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        os.close(reader)


async def test_an_output_that_nobody_reads_holds_up_neither_workers_nor_others_nor_a_signal(world: World) -> None:
    async with unread(world, "run", str(world.refund())) as process:
        await world.control.wait_for(matcher(Happening.EFFECT, route=Route.CREATE_NOTIFICATION), seconds=SECONDS)
        assert await (await world.run()).over() == 0
        # What it has to say may wait for ever; it serves nobody any more.
        assert await (await world.run(world.refund("another"))).over() == 0
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), SECONDS) == -signal.SIGTERM


async def test_json_stays_json_on_a_terminal(world: World) -> None:
    async with on_terminal(world, "run", "--output", "json", str(world.refund())) as terminal:
        assert await terminal.over() == 0
        await terminal.until(lambda text: '"Succeeded"' in text and text.endswith("\n"))
    reasons = [json.loads(line)["reason"] for line in terminal.lines if line]
    # Whether the worker's end is told before or after is a matter of moments.
    assert (reasons[0], "Succeeded" in reasons) == ("Accepted", True)


async def test_an_interrupted_run_says_how_long_it_waits_and_what_it_leaves(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, after=Fault(hang=True))
    container = {"name": "worker", "command": ["python", str(ROOT / "examples/refund.py")]}
    file = world.refund(template={"spec": {"terminationGracePeriodSeconds": 90, "containers": [container]}})
    async with on_terminal(world, "run", str(file), width=120) as terminal:
        await in_flight(world, terminal)
        terminal.process.send_signal(signal.SIGINT)
        await terminal.until(lambda text: "1 worker told to go, at most 90 s from now; a second signal does not wait for that" in text)
        terminal.process.send_signal(signal.SIGINT)
        await terminal.until(lambda text: "1 worker left to end by itself; the next `run` goes on from there" in text)
        assert await terminal.over() == 130
    assert world.processes() != []
