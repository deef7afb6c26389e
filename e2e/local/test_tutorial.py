"""The tutorial, pasted block by block: it does what it says, prints what it shows, and shows the code that there is."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from e2e.local.pages import BLOCK, blocks_of, no_worker_is_left, paste
from e2e.local.world import ROOT

PAGE = ROOT / "docs/tutorial.md"
PORT = "18081"
BEFORE, AFTER = (ROOT / "examples/tutorial" / name for name in ("before.py", "after.py"))
CODE = re.compile(r"^```(?P<kind>python|diff)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"stepfence local -n default patch .*refund-4712 .+")


async def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    with no_worker_is_left(tmp_path / "stepfence-tutorial"):
        await paste(blocks_of(PAGE, tmp_path, PORT), COMMAND)
    assert os.listdir(tmp_path) == []  # noqa: PTH208  (a folder of this test alone)


def test_every_block_of_the_page_is_tried(tmp_path: Path) -> None:
    page = PAGE.read_text()
    assert len(blocks_of(PAGE, tmp_path, PORT)) + len(list(CODE.finditer(page))) == page.count("```") / 2
    assert not re.search(r"^    \S", BLOCK.sub("", CODE.sub("", page)), re.MULTILINE), "an indented block is not tried"


def test_the_code_on_the_page_is_the_code_of_the_examples() -> None:
    sources = "".join(path.read_text() for path in sorted(AFTER.parent.glob("*.py")))
    for block in CODE.finditer(PAGE.read_text()):
        if block["kind"] == "python":
            assert block["text"] in sources
        else:
            before, after = (path.read_text().splitlines() for path in (BEFORE, AFTER))
            assert block["text"].splitlines() == list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]
