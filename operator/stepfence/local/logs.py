"""What workers wrote, printed piece by piece and, if asked to, as it is written."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from stepfence.cli.output import complain
from stepfence.core.errors import Code, Refused
from stepfence.local.state import State
from stepfence.local.workers import WorkerRow
from stepfence.ports import RunKey

__all__ = ["logs"]

_PIECE = 64 * 1024
_LOOK_SECONDS = 0.2
Emit = Callable[[str], None]


async def logs(state: State, emit: Emit, key: RunKey, number: int | None, *, follow: bool = False) -> None:
    """Print what a worker wrote: the last one unless its number is given. `emit` gets pieces of text.

    `follow`: until that worker has ended; without a number, until the run is over or gone, one worker after another.
    Raises `Refused(NOT_FOUND)`.
    """
    run_uid = (await state.runs.load(key)).run.uid
    rows = [row for row in await state.workers.of_run(run_uid) if number in (None, row.number)]
    if not rows and not (follow and number is None):
        which = "no worker yet" if number is None else f"no worker {number} (any more)"
        raise Refused(Code.NOT_FOUND, f"{key.namespace}/{key.name} has {which}")
    row = rows[-1] if rows else await _next(state, key, run_uid, 0)
    while row is not None:
        await _print(state, emit, row, follow=follow)
        after = await _next(state, key, run_uid, row.number) if follow and number is None else None
        if after is not None:
            complain(f"stepfence local: worker {row.number} has ended, worker {after.number} follows")
        row = after


async def _next(state: State, key: RunKey, run_uid: str, number: int) -> WorkerRow | None:
    """Wait for a worker after that one; None when the run is over or gone, and has none."""
    while True:
        # Whether it is over is asked first: a worker that came before is then seen.
        over = await _over(state, key, run_uid)
        found = [row for row in await state.workers.of_run(run_uid) if row.number > number]
        if found or over:
            return found[0] if found else None
        await asyncio.sleep(_LOOK_SECONDS)


async def _over(state: State, key: RunKey, run_uid: str) -> bool:
    try:
        run = (await state.runs.load(key)).run
    except Refused as refused:
        if refused.code is Code.NOT_FOUND:
            return True
        raise
    return run.terminal or run.uid != run_uid


async def _print(state: State, emit: Emit, row: WorkerRow, *, follow: bool) -> None:
    """Print one worker's log to its end: as it is now, or, `follow`, as it is when the worker has ended."""
    decoder, last = codecs.getincrementaldecoder("utf-8")("replace"), "\n"
    with contextlib.ExitStack() as stack:
        file: BinaryIO | None = None
        ended = False
        while True:
            file = file or await asyncio.to_thread(_opened, state.worker_folder(row.uid) / "log", stack)
            while file is not None and (piece := await asyncio.to_thread(file.read, _PIECE)):
                text = decoder.decode(piece)
                last = text[-1:] or last
                emit(text)
            if ended or not follow:
                break
            now = await state.workers.by_uid(row.uid)
            # Once more from here: what it wrote before its end was recorded is in the file by now.
            ended = now is None or now.ended_at is not None
            if not ended:
                await asyncio.sleep(_LOOK_SECONDS)
    rest = decoder.decode(b"", final=True)
    if (rest or last)[-1] != "\n":
        emit(rest + "\n")


def _opened(path: Path, stack: contextlib.ExitStack) -> BinaryIO | None:
    """The log, opened; None while its keeper has not made it, or when it is gone."""
    with contextlib.suppress(FileNotFoundError):
        return stack.enter_context(path.open("rb"))
    return None
