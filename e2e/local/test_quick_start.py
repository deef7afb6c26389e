"""The quick start without a cluster, pasted block by block: it does what the page says, and prints what the page shows."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from e2e.local.pages import blocks_of, no_worker_is_left, paste, plain, terminal
from e2e.local.world import ROOT

PAGE = ROOT / "docs/quick-start.md"
PORT = "18080"
COMMAND = re.compile(r"stepfence local -n default patch .*refund-4713 .+")


async def test_the_quick_start_without_a_cluster_does_what_it_says(tmp_path: Path) -> None:
    with no_worker_is_left(tmp_path / "stepfence-try"):
        await paste(blocks_of(PAGE, tmp_path, PORT), COMMAND)
    assert os.listdir(tmp_path) == []  # noqa: PTH208  (a folder of this test alone)


def test_every_command_of_that_part_is_in_a_block_that_is_tried(tmp_path: Path) -> None:
    part = PAGE.read_text().partition("## 1. Without a cluster")[2].partition("\n## 2.")[0]
    assert len(blocks_of(PAGE, tmp_path, PORT)) == part.count("```") / 2 > 10
    assert not re.search(r"^    \S", part, re.MULTILINE), "an indented block is not tried"


@pytest.mark.parametrize(
    ("shown", "same"),
    [("one\ntwo\n", True), ("two\none\n", False), ("one\n", False), ("one\ntwo\ntwo\n", False)],
)
async def test_an_output_that_is_shown_whole_is_all_that_its_command_prints(shown: str, same: bool) -> None:
    async with terminal() as shell:
        shell.paste("echo one\n")
        try:
            await shell.says_alone("printf 'one\\ntwo\\n'\n", shown)
        except AssertionError:
            assert not same
        else:
            assert same


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
