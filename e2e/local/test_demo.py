"""`make demo` as its user sees it: it says what the provider's own log says, and leaves nothing behind however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from e2e.demo import DemoError, answer_to, judge
from e2e.local.world import ROOT, SECONDS, holds
from e2e.provider.wire import Entry, Happening, Route

KEY = "sf1abc"
COMMAND = """stepfence local patch refund-4711 -p '{"spec":{"decisions":{"refund.x":{"verdict":"Happened"}}}}'"""
QUESTION = f"12:00:00 default/refund-4711 NeedsReconciliation: did step 'refund' (Payment, key {KEY}) happen? Answer with: {COMMAND}"


@dataclass
class Running:
    """One demo, with a folder for temporary files of its own. `said`: its standard output and error so far."""

    folder: Path
    process: asyncio.subprocess.Process
    said: str = ""

    async def until(self, text: str) -> None:
        assert self.process.stdout is not None
        while text not in self.said:
            line = await asyncio.wait_for(self.process.stdout.readline(), SECONDS)
            assert line, f"it ended without {text!r}: {self.said}"
            self.said += line.decode()

    async def over(self) -> int:
        output, _ = await asyncio.wait_for(self.process.communicate(), SECONDS)
        self.said += output.decode()
        return self.process.returncode or 0

    async def provider(self) -> httpx.AsyncClient:
        await self.until("A payment provider runs at ")
        found = re.search(r"http://127\.0\.0\.1:\d+", self.said)
        assert found is not None
        return httpx.AsyncClient(base_url=found[0], trust_env=False)

    def processes(self) -> list[int]:
        """Every process that it or anything that it started has started, itself too."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"TMPDIR={self.folder}".encode() in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    def nothing_left(self) -> None:
        assert self.processes() == []
        assert list(self.folder.iterdir()) == []


@dataclass
class Demos:
    folder: Path
    started: list[Running] = field(default_factory=list)

    async def start(self, *words: str) -> Running:
        environ = {**os.environ, "TMPDIR": str(self.folder), "HTTP_PROXY": "http://127.0.0.1:9"}  # a proxy is not for loopback
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "e2e.demo",
            *words,
            cwd=ROOT,
            env=environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self.started.append(Running(self.folder, process))
        return self.started[-1]


@pytest.fixture
async def demos(tmp_path: Path) -> AsyncIterator[Demos]:
    made = Demos(tmp_path)
    yield made
    for running in made.started:
        for pid in running.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await running.process.communicate()


async def test_it_answers_with_the_printed_command_ends_with_one_refund_and_leaves_nothing(demos: Demos) -> None:
    demo = await demos.start()
    assert await demo.over() == 0, demo.said
    assert "One refund, by the provider's own log" in demo.said
    closing = demo.said.rpartition("The provider's own log (")[2]
    assert len(re.findall(r"POST /refunds +asked", closing)) == len(re.findall(r"POST /refunds +it is done", closing)) == 1
    command = re.search(r"Answer with: (.+)", demo.said)
    assert command is not None
    assert f"\n$ {command[1]}\n" in demo.said
    demo.nothing_left()


MOMENTS = ["$ stepfence local run", "Claimed:", "==> 3.", "==> 4.", "Answered:"]


@pytest.mark.parametrize(("moment", "number"), [*((moment, signal.SIGINT) for moment in MOMENTS), ("==> 3.", signal.SIGTERM)])
async def test_a_signal_at_any_moment_leaves_nothing(moment: str, number: signal.Signals, demos: Demos) -> None:
    demo = await demos.start()
    await demo.until(moment)
    demo.process.send_signal(number)
    assert await demo.over() == 128 + number, demo.said
    demo.nothing_left()


async def test_a_second_signal_does_not_disturb_the_cleaning_up(demos: Demos) -> None:
    demo = await demos.start()
    await demo.until("==> 3.")
    demo.process.send_signal(signal.SIGINT)
    demo.process.send_signal(signal.SIGTERM)
    assert await demo.over() in (130, 143), demo.said
    demo.nothing_left()


async def test_told_to_keep_it_leaves_the_state_file_alone_and_says_how_to_look_at_it(demos: Demos) -> None:
    demo = await demos.start("--keep")
    await demo.until("==> 3.")
    demo.process.send_signal(signal.SIGINT)
    assert await demo.over() == 130, demo.said
    await holds(lambda: not demo.processes())
    command = demo.said.partition("A look at it:\n")[2].splitlines()[0]
    process = await asyncio.create_subprocess_shell(f"{command} -o json", stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    assert json.loads(output)["metadata"]["name"] == "refund-4711"


async def test_a_second_refund_in_the_providers_log_is_told_and_fails(demos: Demos) -> None:
    demo = await demos.start()
    async with await demo.provider() as provider:
        await demo.until("==> 3.")
        (await provider.post("/refunds", json={"order": "4711", "amount": 4200})).raise_for_status()
    assert await demo.over() == 1, demo.said
    assert "FAILED: the provider's log has 2 refunds" in demo.said
    assert "One refund" not in demo.said
    demo.nothing_left()


async def test_a_refund_that_the_log_does_not_have_is_not_said_to_have_happened(demos: Demos) -> None:
    demo = await demos.start()
    async with await demo.provider() as provider:
        await demo.until("==> 3.")
        (await provider.delete("/_log")).raise_for_status()
    assert await demo.over() == 1, demo.said
    assert "FAILED: the provider's log has no refund with key sf1" in demo.said
    assert "Answered:" not in demo.said
    demo.nothing_left()


def log(*happenings: Happening, key: str = KEY) -> list[Entry]:
    when = datetime(2026, 1, 2, tzinfo=UTC)
    numbered = enumerate(happenings, 1)
    return [Entry(seq=n, time=when, happening=each, request=n, route=Route.CREATE_REFUND, key=key) for n, each in numbered]


ASKED, DONE = Happening.REQUEST, Happening.EFFECT


@pytest.mark.parametrize(
    ("entries", "code", "wrong"),
    [
        (log(ASKED, DONE), 0, None),
        (log(ASKED, DONE), 1, "the run did not succeed"),
        (log(ASKED), 0, "has no refunds"),
        ([], 0, "has no refunds"),
        (log(ASKED, DONE, ASKED, DONE), 0, "has 2 refunds"),
        (log(ASKED, DONE, ASKED, Happening.REPLAY), 0, "asked for the refund 2 times"),
    ],
)
def test_how_it_ended_is_judged_by_the_log(entries: list[Entry], code: int, wrong: str | None) -> None:
    judged = judge(entries, code)
    assert judged is None if wrong is None else wrong in (judged or "")


def test_the_answer_is_the_printed_command_when_the_log_has_that_key() -> None:
    assert answer_to(QUESTION, log(ASKED, DONE)) == COMMAND


@pytest.mark.parametrize("entries", [[], log(ASKED), log(ASKED, DONE, key="sf1other")])
def test_without_that_key_in_the_log_there_is_no_answer(entries: list[Entry]) -> None:
    with pytest.raises(DemoError, match="would be a lie"):
        answer_to(QUESTION, entries)
