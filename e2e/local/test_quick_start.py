"""The quick start without a cluster, pasted block by block into two shells: it does what the page says, and prints what the page shows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from e2e.demo import state_in, workers_of
from e2e.local.world import ROOT, SECONDS

PAGE = ROOT / "docs/quick-start.md"
BLOCK = re.compile(r"^```(?P<kind>sh|text) terminal=(?P<terminal>[12])(?P<printed> printed)?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"stepfence local -n default patch .*refund-4713 .+")
# What differs from one time to the next.
VARIABLE = (
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"\bsf1[0-9a-f]{20,}"), "KEY"),
    (re.compile(r"(refund-\d{4})-[0-9a-f]{5}-(\d)(-[0-9a-f]{5})?\b"), r"\1-JOB-\2"),
    (re.compile(r"\brefund\.[a-z0-9]{10}\b"), "refund.QUESTION"),
    (re.compile(r"\b\d+(\.\d+)?[sm]$"), "AGE"),
    (re.compile(r" +"), " "),
)


def plain(line: str) -> str:
    """A line without what differs from one time to the next."""
    for pattern, word in VARIABLE:
        line = pattern.sub(word, line.strip())
    return line


@dataclass
class Terminal:
    """A shell into which blocks are pasted, and all that it has printed. It ends at the first command that fails."""

    process: asyncio.subprocess.Process
    reading: asyncio.Task[None] = field(init=False)
    printed: list[str] = field(default_factory=list)
    grown: asyncio.Condition = field(default_factory=asyncio.Condition)
    over: bool = False

    def __post_init__(self) -> None:
        self.reading = asyncio.create_task(self.read())

    async def read(self) -> None:
        assert self.process.stdout is not None
        while text := await self.process.stdout.readline():
            async with self.grown:
                # On a terminal, as the page shows it, the command has a line of its own; to a pipe it is told in the same line.
                self.printed.extend(text.decode().replace("Answer with: ", "Answer with:\n").splitlines())
                self.grown.notify_all()
        async with self.grown:
            self.over = True
            self.grown.notify_all()

    def paste(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())

    def lacks(self, text: str) -> list[str]:
        """The lines of an expected output that it has not printed."""
        seen = {plain(line) for line in self.printed}
        return [line for line in text.splitlines() if plain(line) not in seen]

    async def shows(self, text: str) -> None:
        """Wait until each line has been printed, in whatever order: some of a story happen at once."""
        try:
            async with asyncio.timeout(SECONDS), self.grown:
                await self.grown.wait_for(lambda: self.over or not self.lacks(text))
        except TimeoutError:
            pass
        assert self.lacks(text) == [], "\n".join(self.printed)


@contextlib.asynccontextmanager
async def terminal() -> AsyncIterator[Terminal]:
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and name != "VIRTUAL_ENV"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-e"), cwd=ROOT, env=kept, start_new_session=True, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    made = Terminal(process)
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await made.reading
        await process.wait()


def blocks(folder: Path) -> list[re.Match[str]]:
    """The page's blocks, with a folder and a port of this test's own in place of those that it names."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    page = PAGE.read_text().replace("$HOME/stepfence-try", str(folder / "try")).replace("18080", str(port))
    return list(BLOCK.finditer(page))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In place of a home; whatever becomes of a test, no worker is left."""
    yield tmp_path
    for pid in workers_of(state_in(tmp_path / "try")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def test_the_quick_start_without_a_cluster_does_what_it_says(folder: Path) -> None:
    async with terminal() as first, terminal() as second:
        both = {"1": first, "2": second}
        for block in blocks(folder):
            at, text = both[block["terminal"]], block["text"]
            if block["kind"] == "text":
                await at.shows(text)
            elif block["printed"]:
                command = next(line for line in first.printed if COMMAND.fullmatch(line))
                assert plain(command) == plain(text)
                at.paste(command + "\n")
            else:
                at.paste(text)
        for each in both.values():
            assert each.process.stdin is not None
            each.process.stdin.close()
            assert await asyncio.wait_for(each.process.wait(), SECONDS) == 0, each.printed
    assert os.listdir(folder) == []  # noqa: PTH208  (a folder of this test alone)


def test_every_command_of_that_part_is_in_a_block_that_is_tried(tmp_path: Path) -> None:
    part = PAGE.read_text().partition("## 1. Without a cluster")[2].partition("\n## 2.")[0]
    assert len(blocks(tmp_path)) == part.count("```") / 2 > 10
    assert not re.search(r"^    \S", part, re.MULTILINE), "an indented block is not tried"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("12:00:00 default/refund-4713 Claimed: pod refund-4713-f6bdc-1-c268b", "9:9 default/refund-4713", False),
        ("12:00:00 pod refund-4713-f6bdc-1-c268b under token 1", "13:10:09 pod refund-4713-aaaaa-1-bbbbb under token 1", True),
        ("12:00:00 pod refund-4713-f6bdc-1-c268b under token 1", "13:10:09 pod refund-4713-f6bdc-1-c268b under token 2", False),
        ("default   refund-4713   Succeeded   3/3   2   5s", "default refund-4713 Succeeded 3/3 2 61s", True),
    ],
)
def test_lines_are_compared_without_what_differs_each_time(one: str, other: str, same: bool) -> None:
    assert (plain(one) == plain(other)) is same
