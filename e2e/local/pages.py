"""Pages of the documentation, pasted block by block into two shells: they do what they say, and print what they show.

A block's first line says which terminal it belongs to, and more: `printed` is a command that a terminal has printed, `fails` one whose exit
code is not 0, `whole` an output that is all that the block before it prints.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.demo import state_in, workers_of
from e2e.local.world import ROOT, SECONDS

BLOCK = re.compile(
    r"^```(?P<kind>sh|text) terminal=(?P<terminal>[12])(?: (?P<how>printed|fails|whole))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
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

    async def says_alone(self, command: str, text: str) -> None:
        """Paste a command, and wait for its end: it has printed these lines and no others."""
        begin, end = (f"{word} {len(self.printed)}" for word in ("begin", "end"))
        self.paste(f"echo {begin}\n{command}echo {end}\n")
        await self.shows(end)
        mine = self.printed[self.printed.index(begin) + 1 : self.printed.index(end)]
        assert [plain(line) for line in mine] == [plain(line) for line in text.splitlines()]

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


def blocks_of(page: Path, home: Path, port: str) -> list[re.Match[str]]:
    """The page's blocks, with a folder and a port of this test's own in place of those that it names."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        mine = str(free.getsockname()[1])
    return list(BLOCK.finditer(page.read_text().replace("$HOME/", f"{home}/").replace(port, mine)))


async def paste(blocks: Sequence[re.Match[str]], command: re.Pattern[str]) -> None:
    """Paste every block where it belongs; `command` is the one that is printed. Both shells end well."""
    async with terminal() as first, terminal() as second:
        both = {"1": first, "2": second}
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            at, text = both[block["terminal"]], block["text"]
            if block["how"] == "whole":
                continue  # it was compared when its command was pasted
            if after is not None and after["how"] == "whole":
                assert (after["kind"], after["terminal"]) == ("text", block["terminal"])
                await at.says_alone(text, after["text"])
            elif block["kind"] == "text":
                await at.shows(text)
            elif block["how"] == "printed":
                line = next(line for line in first.printed if command.fullmatch(line))
                assert plain(line) == plain(text)
                at.paste(line + "\n")
            elif block["how"] == "fails":
                at.paste(f"{{ {text.rstrip()}; }} && exit 99\n")
            else:
                at.paste(text)
        for each in both.values():
            assert each.process.stdin is not None
            each.process.stdin.close()
            assert await asyncio.wait_for(each.process.wait(), SECONDS) == 0, each.printed


@contextlib.contextmanager
def no_worker_is_left(state_home: Path) -> Iterator[None]:
    """Whatever becomes of a page."""
    try:
        yield
    finally:
        for pid in workers_of(state_in(state_home)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
