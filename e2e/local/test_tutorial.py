"""The tutorial, pasted block by block into two shells: it does what it says, prints what it shows, and shows the code that there is."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.demo import state_in, workers_of
from e2e.local.test_quick_start import plain, terminal
from e2e.local.world import ROOT, SECONDS

PAGE = ROOT / "docs/tutorial.md"
BEFORE, AFTER = (ROOT / "examples/tutorial" / name for name in ("before.py", "after.py"))
BLOCK = re.compile(
    r"^```(?P<kind>sh|text) terminal=(?P<terminal>[12])(?P<how> printed| fails)?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
CODE = re.compile(r"^```(?P<kind>python|diff)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"stepfence local -n default patch .*refund-4712 .+")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In place of a home; whatever becomes of a test, no worker is left."""
    yield tmp_path
    for pid in workers_of(state_in(tmp_path / "stepfence-tutorial")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def blocks(folder: Path) -> list[re.Match[str]]:
    """The page's blocks, with a folder and a port of this test's own in place of those that it names."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return list(BLOCK.finditer(PAGE.read_text().replace("$HOME/", f"{folder}/").replace("18081", str(port))))


async def test_the_tutorial_does_what_it_says(folder: Path) -> None:
    async with terminal() as first, terminal() as second:
        both = {"1": first, "2": second}
        for block in blocks(folder):
            at, text = both[block["terminal"]], block["text"]
            if block["kind"] == "text":
                await at.shows(text)
            elif block["how"] == " printed":
                command = next(line for line in first.printed if COMMAND.fullmatch(line))
                assert plain(command) == plain(text)
                at.paste(command + "\n")
            elif block["how"] == " fails":
                at.paste(f"{{ {text.rstrip()}; }} && exit 99\n")
            else:
                at.paste(text)
        for each in both.values():
            assert each.process.stdin is not None
            each.process.stdin.close()
            assert await asyncio.wait_for(each.process.wait(), SECONDS) == 0, each.printed
    assert os.listdir(folder) == []  # noqa: PTH208  (a folder of this test alone)


def test_every_block_of_the_page_is_tried(tmp_path: Path) -> None:
    page = PAGE.read_text()
    assert len(blocks(tmp_path)) + len(list(CODE.finditer(page))) == page.count("```") / 2
    assert not re.search(r"^    \S", BLOCK.sub("", CODE.sub("", page)), re.MULTILINE), "an indented block is not tried"


def test_the_code_on_the_page_is_the_code_of_the_examples() -> None:
    sources = "".join(path.read_text() for path in sorted(AFTER.parent.glob("*.py")))
    for block in CODE.finditer(PAGE.read_text()):
        if block["kind"] == "python":
            assert block["text"] in sources
        else:
            before, after = (path.read_text().splitlines() for path in (BEFORE, AFTER))
            assert block["text"].splitlines() == list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]
