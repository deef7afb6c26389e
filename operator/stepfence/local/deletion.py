"""The end of a run's record: `delete`, and what is cleared away after runs that are gone.

As on a cluster a run has no finalizer: its object goes at once, and what belongs to it is collected afterwards, by whoever looks next. So
nothing is lost or left when a process is killed in between. Its workers are told to go as deleted pods are; until its end is known, a
worker keeps its token and log. That an identity was spent is kept for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import structlog

from stepfence.core.errors import Code, Refused
from stepfence.core.model import Run
from stepfence.core.words import State as StepState
from stepfence.local.processes import end_marked, marks, send
from stepfence.local.state import State
from stepfence.local.workers import WorkerRow
from stepfence.ports import RunKey

__all__ = ["collect", "delete", "end_strays", "sweep_folders"]

_LOG = structlog.get_logger(__name__)
# How often, and how long apart, one looks for what was killed: together longer than a process needs that is not stuck in the kernel.
_END_LOOKS, _END_SECONDS = 100, 0.1
_OVER = (StepState.DONE, StepState.DENIED)


async def delete(state: State, write: Callable[[str], None], key: RunKey, *, confirmed: bool) -> None:
    """Remove a run with its ledger and records, and tell its worker to go. Repeated, it tells a worker that is left once more.

    Raises `Refused`: NOT_FOUND; BAD_REQUEST when it has begun a step, is not over, and nobody confirmed that this may be forgotten.
    """
    left = [row for row in await state.workers.orphans() if row.key == key and row.ended_at is None]
    try:
        run = (await state.runs.load(key)).run
        await state.runs.delete(key, allow=_allow(run.uid, confirmed=confirmed))
    except Refused as refused:
        if refused.code is not Code.NOT_FOUND or not left:
            raise
        write(f"agentrun.stepfence.dev/{key.name} was deleted before")
    else:
        write(f"agentrun.stepfence.dev/{key.name} deleted")
    await state.records.collect()
    await collect(state, _tell)
    for row in await state.workers.orphans():
        if row.key == key and row.ended_at is None:
            write(f"worker {row.number} of {key.namespace}/{key.name} told to go, at most {row.grace} s from now")


def _allow(uid: str, *, confirmed: bool) -> Callable[[Run], None]:
    def allow(run: Run) -> None:
        if run.uid != uid:
            raise Refused(Code.NOT_FOUND, "another run has this name now")
        begun = [step for step, entry in run.ledger.items() if entry.attempt]
        if begun and not run.terminal and not confirmed:
            still_open = [step for step in begun if run.ledger[step].state not in _OVER]
            about = f", and how these stand: {', '.join(still_open)}" if still_open else ""
            raise Refused(
                Code.BAD_REQUEST,
                f"{run.namespace}/{run.name} is half done: what it has done would be known to nobody{about}. Cancel it, "
                "or delete it with --confirm",
            )

    return allow


def _tell(row: WorkerRow) -> None:
    if row.keeper is not None:
        send(*row.keeper, signal.SIGTERM)


async def collect(state: State, tell: Callable[[WorkerRow], None]) -> None:
    """Clear away after runs that are gone: tell living workers to go, remove what is left of ended ones. Any part may be repeated."""
    if not await state.workers.orphans():
        return
    await state.workers.take_back_unstarted(orphans=True)
    for row in await state.workers.orphans():
        if row.ended_at is None:
            await state.workers.dismiss(row.uid, state.clock.now() + timedelta(seconds=row.grace))
            tell(row)
        else:
            await asyncio.to_thread(shutil.rmtree, state.worker_folder(row.uid), ignore_errors=True)
            await state.records.collect()
            await state.workers.forget(row.uid)


async def sweep_folders(state: State) -> None:
    """Remove folders of workers that nobody knows, if no process of theirs lives. Only for the one who starts workers, before it does."""
    found = await asyncio.to_thread(_folders, state.folder)
    known = await state.workers.uids()
    if spare := [path for path in found if path.name not in known]:
        await asyncio.to_thread(_remove, spare)


async def end_strays(state: State) -> None:
    """End the workers that nobody knows: of a state file that is an older copy, they go on with what is not recorded in it.

    Only while nobody may start workers. What they wrote is kept, for a person will ask what they did. Raises `Refused(HELD)` when one
    does not end.
    """
    await state.workers.take_back_unstarted()
    known = await state.workers.uids()
    for path in await asyncio.to_thread(_folders, state.folder):
        if path.name in known:
            continue
        lived = path.name in await asyncio.to_thread(marks)
        await _end(path.name)
        log = await asyncio.to_thread(_keep_log, path)
        if lived:
            told = "ended a worker that the older copy does not know: what it had in flight is in doubt"
            _LOG.warning(told, worker=path.name, log=str(log) if log else None)


def _keep_log(folder: Path) -> Path | None:
    """Move an unknown worker's folder out of the way of `sweep_folders`, if there is a log in it."""
    log = folder / "log"
    if not log.exists() or not log.stat().st_size:
        return None
    kept = folder.rename(folder.with_name(f"{folder.name}.unknown"))
    return kept / "log"


async def _end(uid: str) -> None:
    """Kill a worker until two looks in a row find nothing of it: one may miss a process that is just becoming another program."""
    clean = 0
    for _ in range(_END_LOOKS):
        clean = clean + 1 if await asyncio.to_thread(end_marked, uid) else 0
        if clean == 2:
            return
        await asyncio.sleep(0 if clean else _END_SECONDS)
    raise Refused(Code.HELD, f"worker {uid} was killed and does not end: nothing goes on before it has")


def _folders(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False) and _is_uid(entry.name)]
    return []


def _is_uid(name: str) -> bool:
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


def _remove(spare: list[Path]) -> None:
    # One may live all the same: the state file may be an older copy of itself.
    live = marks()
    for path in spare:
        if path.name not in live:
            shutil.rmtree(path, ignore_errors=True)
