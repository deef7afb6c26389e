"""The live view: the story scrolls above, the runs and what they wait for stand below. Needs rich, and is imported for a terminal alone."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from stepfence.core.model import Run
from stepfence.core.words import At
from stepfence.local.layout import Line, lines_of
from stepfence.local.lines import Lines
from stepfence.local.waiting import view_of
from stepfence.local.workers import WorkerRow

__all__ = ["Screen", "drawn", "terminal"]

_STYLES = {
    "run": "bold",
    "dim": "dim",
    "person": "bold yellow",
    "NeedsReconciliation": "bold yellow",
    "AwaitingApproval": "bold yellow",
    "Held": "bold yellow",
    "Unknown": "yellow",
    "InFlight": "cyan",
    "Running": "cyan",
    "Done": "green",
    "Succeeded": "bold green",
    "Failed": "red",
    "Denied": "red",
    "Cancelled": "red",
}


def terminal() -> Console | None:
    """Return standard output as a terminal that can be drawn on; None when it is none."""
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    return console if console.is_terminal and console.is_interactive and not console.is_dumb_terminal else None


def drawn(lines: Iterable[Line]) -> Group:
    """Return lines as text, each cut at the terminal's edge, styled by what each part is."""
    rows = [Text.assemble(*((part.text, _STYLES.get(part.kind, "")) for part in line), no_wrap=True, overflow="ellipsis") for line in lines]
    return Group(*rows)


class _Picture(NamedTuple):
    width: int
    height: int
    lines: tuple[Line, ...]


class Screen(Lines):
    """Draws in a thread, one picture at a time."""

    apart = True

    def __init__(self, console: Console, at: Callable[[], At]) -> None:
        super().__init__(console.file.write)
        self._console, self._at = console, at
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=sys.stderr.isatty())
        self._runs: Sequence[Run] = ()
        self._living: Mapping[str, set[int]] = {}
        self._second: datetime | None = None
        self._changed = False
        self._shown: _Picture | None = None

    def write(self, line: str) -> None:
        """Add a line to the story."""
        self._changed = True
        super().write(line)

    def show(self, runs: Iterable[Run], workers: Iterable[WorkerRow]) -> None:
        """Take the runs as they are now, and the workers that live."""
        living: dict[str, set[int]] = defaultdict(set)
        for row in workers:
            living[row.run_uid].add(row.number)
        self._runs, self._living, self._changed = tuple(runs), living, True

    def tick(self) -> None:
        """Draw what has changed, and what a second has changed; nothing while the last picture is still being drawn."""
        if not self._idle():
            return
        at = self._at()
        second = at.now.replace(microsecond=0)
        if self._changed or second != self._second:
            self._second, self._changed = second, False
            self._draw(at)

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Show the view around a block; its last state stays."""
        self._live.start()
        # Whoever is killed with SIGKILL leaves the terminal as it is.
        self._console.show_cursor(True)
        try:
            yield
        finally:
            await self._end()

    async def _end(self) -> None:
        try:
            await self._finish_drawing()
        finally:
            await asyncio.to_thread(self._paint, self._told(), self._picture(self._at()).lines)
            await asyncio.to_thread(self._live.stop)

    def _draw(self, at: At) -> None:
        picture = self._picture(at)
        if self._story or picture != self._shown:
            self._shown = picture
            self._start(self._paint, self._told(), picture.lines)

    def _picture(self, at: At) -> _Picture:
        width, height = self._console.size
        views = [view_of(run, at, self._living.get(run.uid, ())) for run in self._runs]
        return _Picture(width, height, tuple(lines_of(views, width, height * 2 // 3)))

    def _paint(self, story: Sequence[str], lines: Sequence[Line]) -> None:
        with self._console:  # one write for all of it, so that nothing flickers
            if story:
                # Not wrapped: a command is copied as the one line that it is.
                self._console.print(Text("\n".join(story)), soft_wrap=True)
            self._live.update(drawn(lines), refresh=True)
