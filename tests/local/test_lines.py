"""The story as plain lines: written beside the loop, in order, to the end, whatever its reader does."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from stepfence.local.lines import Lines

SECONDS = 30


class Reader:
    """Takes what is written once it is open. `gone`: it never will."""

    def __init__(self, *, open: bool = True, gone: bool = False) -> None:  # noqa: A002
        self.text, self.gone, self.gate = "", gone, threading.Event()
        if open:
            self.gate.set()

    def take(self, text: str) -> None:
        assert self.gate.wait(SECONDS)
        if self.gone:
            raise BrokenPipeError
        self.text += text


async def written(lines: Lines) -> None:
    """Tick until all has been written."""
    lines.tick()
    while lines._drawing is not None:
        await asyncio.wait([lines._drawing])
        lines.tick()


async def test_lines_are_written_as_they_come_and_the_last_ones_at_the_end() -> None:
    reader = Reader()
    lines = Lines(reader.take)
    async with lines.shown():
        lines.write("one")
        await written(lines)
        assert reader.text == "one\n"
        lines.write("two")
    assert reader.text == "one\ntwo\n"


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_reader_who_takes_nothing_holds_nothing_up_and_what_is_left_out_is_counted(as_json: bool) -> None:
    reader = Reader(open=False)
    lines = Lines(reader.take, as_json=as_json)
    async with lines.shown():
        lines.write("first")
        lines.tick()
        for number in range(12_000):
            lines.write(f"line {number}")
        lines.tick()
        assert reader.text == ""
        reader.gate.set()
        await written(lines)
    told = reader.text.splitlines()
    assert told[:2] == ["first", "line 0"]
    assert told[-2] == "line 9999"
    last = json.loads(told[-1])["message"] if as_json else told[-1]
    assert last == "… 2000 lines are left out here"


async def test_a_reader_who_is_gone_is_an_error() -> None:
    lines = Lines(Reader(gone=True).take)
    lines.write("a line")
    with pytest.raises(BrokenPipeError):
        await written(lines)
