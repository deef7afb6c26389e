"""The live view on a terminal that is recorded: the story above, the runs below, drawn only when something has changed."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace

import pytest
from rich.console import Console

from stepfence.core.fencing import settle
from stepfence.core.model import Run, Worker
from stepfence.core.words import At, Settings
from stepfence.local.screen import Screen, terminal
from stepfence.testing.builders import begun, claimed, new_run, seconds, step
from stepfence.testing.clock import FakeClock

COMMAND = 'stepfence local -n support patch agentruns.stepfence.dev refund -p \'{"spec":' + "x" * 300 + "}'"


class Seen:
    """A screen, its clock and all that was written to its terminal."""

    def __init__(self, *, color: bool = True, width: int = 60, height: int = 24) -> None:
        self.file, self.clock = io.StringIO(), FakeClock()
        environ = {"TERM": "xterm-256color"} if color else {"TERM": "xterm-256color", "NO_COLOR": "1"}
        self.console = Console(file=self.file, force_terminal=True, force_interactive=True, width=width, height=height, _environ=environ)
        self.screen = Screen(self.console, lambda: At(self.clock.now(), "", Settings()))

    async def drawn(self) -> str:
        """Tick until a picture that was begun has been drawn; return what that wrote."""
        before = self.file.tell()
        self.screen.tick()
        while (task := self.screen._drawing) is not None:
            await task
            self.screen.tick()
        return self.file.getvalue()[before:]


def a_run() -> Run:
    worker = Worker(1, "refund-1", "", seconds(0), pod_uid="pod-1-uid")
    return claimed(replace(new_run(step(), step("notify")), worker=worker))


async def test_the_story_is_not_wrapped_and_the_runs_stand_below() -> None:
    seen = Seen()
    async with seen.screen.shown():
        seen.screen.write(COMMAND)
        seen.screen.show([a_run()], [])
        await seen.drawn()
    written = seen.file.getvalue()
    assert f"{COMMAND}\n" in written
    assert written.rindex("support/refund") > written.rindex(COMMAND)
    assert written.endswith("\x1b[?25h")


async def test_the_last_state_stays() -> None:
    seen = Seen()
    run, _ = begun(a_run())
    async with seen.screen.shown():
        seen.screen.show([run], [])
        await seen.drawn()
        seen.screen.write("the end")
        seen.screen.show([settle(run, "WorkerLost", At(seconds(1), "n"))], [])
    last = seen.file.getvalue()
    assert last.rindex("NeedsReconciliation") > max(last.rindex("the end"), last.rindex("InFlight"))


async def test_nothing_is_drawn_when_nothing_has_changed() -> None:
    seen = Seen()
    async with seen.screen.shown():
        seen.screen.show([a_run()], [])
        assert await seen.drawn() != ""
        assert await seen.drawn() == ""
        seen.clock.advance(1)
        assert await seen.drawn() == ""


async def test_a_time_that_is_shown_is_drawn_anew_each_second() -> None:
    seen = Seen(width=100)
    run, _ = begun(a_run())
    async with seen.screen.shown():
        seen.screen.show([run], [])
        assert "(in 70 s)" in await seen.drawn()
        assert await seen.drawn() == ""
        seen.clock.advance(1)
        assert "(in 69 s)" in await seen.drawn()


async def test_a_terminal_that_takes_nothing_holds_nothing_up() -> None:
    seen, gate = Seen(), asyncio.Event()
    async with seen.screen.shown():
        seen.screen._drawing = asyncio.create_task(_until(gate))
        for number in range(12_000):
            seen.screen.write(f"line {number}")
        seen.screen.tick()
        assert "line" not in seen.file.getvalue()
        gate.set()
        await seen.screen._drawing
        written = await seen.drawn()
    assert "line 9999\n" in written
    assert "… 2000 lines are left out here" in written


async def _until(gate: asyncio.Event) -> None:
    await gate.wait()


async def test_a_terminal_that_is_gone_is_an_error() -> None:
    seen = Seen()
    async with seen.screen.shown():
        seen.screen.write("a line")
        seen.screen._live.stop()
        seen.console.file = _Gone()
        seen.screen.tick()
        assert seen.screen._drawing is not None
        await asyncio.wait([seen.screen._drawing])
        with pytest.raises(OSError, match="gone"):
            seen.screen.tick()
        seen.console.file, seen.screen._drawing = seen.file, None


class _Gone(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError("gone")


@pytest.mark.parametrize("color", [True, False])
async def test_colour_is_used_unless_no_color_is_set(color: bool) -> None:
    seen = Seen(color=color, width=100)
    run, _ = begun(a_run())
    async with seen.screen.shown():
        seen.screen.show([run], [])
        await seen.drawn()
    assert ("\x1b[36m" in seen.file.getvalue()) is color
    assert "InFlight" in seen.file.getvalue()


async def test_markup_and_emoji_in_a_line_are_text() -> None:
    seen = Seen()
    async with seen.screen.shown():
        seen.screen.write("[red]:smile:[/red] [link=http://x]y[/link]")
        await seen.drawn()
    assert "[red]:smile:[/red] [link=http://x]y[/link]\n" in seen.file.getvalue()


def test_what_is_no_terminal_is_not_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert terminal() is None
