"""Where the story of runs is told: line by line, for a pipe, a file or a terminal that cannot be drawn on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from stepfence.cli.text import as_json
from stepfence.core.model import Run
from stepfence.local.workers import WorkerRow

__all__ = ["Lines"]

# Lines that wait for a reader who takes none (a pager, a terminal that was stopped by its user): more are counted, not kept.
_MOST_LINES = 10_000


class Lines:
    """Writes in a thread, one piece at a time: a reader who takes nothing holds up neither workers nor signals. `emit` gets text."""

    # Whether a command that answers a question stands on a line of its own.
    apart = False

    def __init__(self, emit: Callable[[str], object], *, as_json: bool = False) -> None:
        self._emit, self._as_json = emit, as_json
        self._story: list[str] = []
        self._missed = 0
        self._drawing: asyncio.Task[None] | None = None

    def write(self, line: str) -> None:
        """Add a line to the story."""
        if len(self._story) < _MOST_LINES:
            self._story.append(line)
        else:
            self._missed += 1

    def show(self, runs: Iterable[Run], workers: Iterable[WorkerRow]) -> None:
        """Take the runs as they are now, and the workers that live: here the story alone is told."""

    def tick(self) -> None:
        """Write what is new; nothing while the last piece is still being written. Raises `OSError` when the reader is gone."""
        if self._idle() and self._story:
            self._start(self._put, self._told())

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Tell the story around a block, to its end."""
        try:
            yield
        finally:
            await self._finish_drawing()
            await asyncio.to_thread(self._put, self._told())

    def _idle(self) -> bool:
        task = self._drawing
        if task is not None and task.done():
            self._drawing = None
            task.result()
        return self._drawing is None

    def _start(self, paint: Callable[..., None], *what: Any) -> None:
        self._drawing = asyncio.create_task(asyncio.to_thread(paint, *what), name="drawing")

    async def _finish_drawing(self) -> None:
        task, self._drawing = self._drawing, None
        if task is not None:
            await task

    def _told(self) -> list[str]:
        told, self._story = self._story, []
        if self._missed:
            missed, self._missed = f"… {self._missed} lines are left out here", 0
            left_out = {"type": "Warning", "reason": "LinesLeftOut", "message": missed}
            told.append(as_json(left_out) if self._as_json else missed)
        return told

    def _put(self, story: list[str]) -> None:
        self._emit("".join(f"{line}\n" for line in story))
