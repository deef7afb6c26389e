"""The controller of one machine: pass after pass over every run, by the same decisions as on a cluster, carried out on processes."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import uuid
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from stepfence.app import Bodies
from stepfence.app.sweep import Sweeper
from stepfence.core.decide import Decided, WorkerPlan, decide
from stepfence.core.errors import Code, Conflict, Refused, Unknown
from stepfence.core.model import Run
from stepfence.core.words import At
from stepfence.core.world import JobFact, World
from stepfence.local.deletion import collect, sweep_folders
from stepfence.local.processes import MARK, alive, end_marked, ended, send, start_keeper
from stepfence.local.state import State
from stepfence.local.template import WorkerCommand, worker_command
from stepfence.local.workers import WorkerRow, token_hash
from stepfence.ports import RunKey, Stored
from stepfence.schema import IDENTITY_ANNOTATION

__all__ = ["Runner"]

_LOG = structlog.get_logger(__name__)
_SWEEP_SECONDS = 300.0


class Runner:
    """Level-triggered: a pass looks at what is stored and at what lives, so that any pass may be lost, repeated or late."""

    def __init__(self, state: State, gateway: str) -> None:
        self._state, self._gateway = state, gateway
        self._bodies = Bodies(state.records, state.settings)
        self._sweeper, self._sweep_at = Sweeper(state.applier, state.records, state.clock), float("-inf")
        self._settled: set[str] = set()
        self._told_to_go: set[str] = set()
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._refusals: dict[str, str] = {}
        # Workers without a keeper of which the last look found nothing.
        self._unkept: set[str] = set()

    async def start(self) -> None:
        """Take over from a runner that is gone: what no keeper took on is taken back, and started anew by the next passes."""
        await self._state.workers.take_back_unstarted()
        await sweep_folders(self._state)
        await self._state.records.collect()

    async def look(self) -> datetime | None:
        """Do one pass over every run that needs it; return when time alone calls for the next. What did not take effect is tried soon."""
        soon, moments = self._state.clock.now() + timedelta(seconds=1), []
        for key, uid in await self._state.runs.names():
            if uid in self._settled:
                continue
            try:
                moments.append(await self._pass(key))
            except (Refused, Conflict, Unknown) as error:
                if isinstance(error, Refused) and error.code is Code.NOT_FOUND:
                    continue  # it was deleted meanwhile
                _LOG.warning("pass failed", namespace=key.namespace, run=key.name, error=str(error))
                moments.append(soon)
        await collect(self._state, self._signal)
        await self._sweep()
        return min((moment for moment in moments if moment is not None), default=None)

    async def _sweep(self) -> None:
        """Every so often, on the way, delete records that no run refers to."""
        now = self._state.clock.monotonic()
        if now < self._sweep_at:
            return
        self._sweep_at = now + _SWEEP_SECONDS
        try:
            await self._sweeper.sweep()
        except (Refused, Unknown) as error:
            _LOG.warning("sweep will be tried again", error=str(error))

    async def watch_keepers(self) -> None:
        """Settle workers whose keeper is gone without a word: nothing that bears its mark is left, twice in a row, so it has ended.

        One look may miss a process that is just becoming another program, or one that is born while the look goes past it.
        """
        left = self._unkept
        self._unkept = set()
        for row in await self._state.workers.living():
            if row.keeper is None:
                await self._note_unstarted(row)
            elif alive(*row.keeper) or not await asyncio.to_thread(end_marked, row.uid):
                continue
            elif row.uid not in left:
                self._unkept.add(row.uid)
            else:
                await self._state.workers.note_end(row.uid, self._state.clock.now(), "the process that kept this worker is gone")

    async def _note_unstarted(self, row: WorkerRow) -> None:
        """A worker whose keeper has ended without taking it on has ended too; one that still tries is left alone."""
        left = None if row.uid in self._keepers else await self._state.workers.by_uid(row.uid)
        if left is not None and left.keeper is None:
            await self._state.workers.note_end(row.uid, self._state.clock.now(), "its keeper could not be started")

    async def dismiss_all(self) -> None:
        """Tell every living worker to go."""
        for row in await self._state.workers.living():
            await self._dismiss(row)

    async def close(self) -> None:
        """Stop waiting for keepers; they go on by themselves."""
        for task in self._keepers.values():
            task.cancel()
        await asyncio.gather(*self._keepers.values(), return_exceptions=True)

    async def _pass(self, key: RunKey) -> datetime | None:
        state = self._state
        seen = await state.applier.read(key)
        rows = await state.workers.of_run(seen.run.uid)
        seen, world = await self._before_the_first(seen, await self._world(seen, rows))
        uid, answers = seen.run.uid, self._bodies.answers()

        def edit(run: Run, at: At) -> tuple[Run, Decided]:
            if run.uid != uid:
                raise Refused(Code.NOT_FOUND, "another run has this name now")
            decided = decide(run, replace(world, bodies=answers.on(run)), at)
            return decided.run, decided

        applied = await state.applier.apply(key, edit, seen=seen, just_read=True, refresh=True, bodies=answers)
        decided, run = applied.answer, applied.stored.run
        await self._act(key, run, decided, rows)
        if run.terminal and not applied.wrote and all(row.ended_at is not None for row in rows):
            self._settled.add(run.uid)
        return decided.wake_at

    async def _before_the_first(self, seen: Stored, world: World) -> tuple[Stored, World]:
        """Spend and mark the identity, when the decision asks for it (I11)."""
        run, applier = seen.run, self._state.applier
        if run.worker is not None or run.terminal:
            return seen, world
        asked = decide(run, world, applier.at())
        if asked.spend:
            world = replace(world, identity=await self._state.records.spend(asked.run))
            asked = decide(run, world, applier.at())
        if asked.mark:
            await self._state.runs.mark(seen.key, run.uid)
            seen, world = await applier.read(seen.key), replace(world, mark=run.uid)
        return seen, world

    async def _world(self, seen: Stored, rows: list[WorkerRow]) -> World:
        run = seen.run
        jobs, current = [row.job_fact() for row in rows], run.worker
        mine = next((row for row in rows if current is not None and row.job == current.job), None)
        if current is not None and mine is None:
            jobs.append(JobFact(current.job, current.number, gone=True, seen=current.pod_uid is not None))
        refusal = self._refusals.get(current.job) if current is not None else None
        document = await self._state.runs.document(seen.key)
        return World(
            jobs=tuple(jobs),
            pods=tuple(row.pod_fact() for row in rows),
            not_created=refusal,
            not_creatable=refusal is not None,
            lease_renewed_at=None if mine is None else mine.lease_at,
            mark=(document["metadata"].get("annotations") or {}).get(IDENTITY_ANNOTATION),
        )

    async def _act(self, key: RunKey, run: Run, decided: Decided, rows: Iterable[WorkerRow]) -> None:
        by_uid = {row.uid: row for row in rows}
        if decided.create is not None:
            await self._create(key, run, decided.create)
        for pod in decided.delete_pods:
            _LOG.info("telling worker to go", namespace=run.namespace, run=run.name, worker=pod.name, reason=pod.reason)
            await self._dismiss(by_uid[pod.uid])
        for row in by_uid.values():
            if row.deletion_at is not None and row.ended_at is None:
                self._signal(row)  # by a runner before this one, or by a command
        for job in decided.delete_jobs:
            row = by_uid[job.uid]
            if row.ended_at is None:
                await self._dismiss(row)
            else:
                await asyncio.to_thread(shutil.rmtree, self._state.worker_folder(row.uid), ignore_errors=True)
                await self._state.workers.forget(row.uid)

    async def _dismiss(self, row: WorkerRow) -> None:
        await self._state.workers.dismiss(row.uid, self._state.clock.now() + timedelta(seconds=row.grace))
        self._signal(row)

    def _signal(self, row: WorkerRow) -> None:
        """Tell the keeper, once for each that runs: the grace begins with the first word."""
        if row.keeper is not None and row.uid not in self._told_to_go and send(*row.keeper, signal.SIGTERM):
            self._told_to_go.add(row.uid)

    async def _create(self, key: RunKey, run: Run, plan: WorkerPlan) -> None:
        document = await self._state.runs.document(key)
        uid, bearer = str(uuid.uuid4()), secrets.token_hex(32)
        folder = self._state.worker_folder(uid)
        ours = {
            "STEPFENCE_GATEWAY": self._gateway,
            "STEPFENCE_TOKEN_FILE": str(folder / "token"),
            "STEPFENCE_STATE_DIR": str(folder / "state"),
            MARK: uid,
        }
        try:
            command = worker_command(run, document, plan, ours, os.environ, self._state.settings)
        except Refused as refused:
            self._refusals[plan.job] = refused.detail
            return
        self._refusals.pop(plan.job, None)
        now = self._state.clock.now()
        row = WorkerRow(uid, key, run.uid, plan.job, plan.number, token_hash(bearer), command.grace, now)
        await asyncio.to_thread(_make_folder, folder, bearer)
        if await self._state.workers.add(row):
            self._keepers[uid] = asyncio.create_task(self._keep(row, command), name=f"keeper of {row.pod}")
        else:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _keep(self, row: WorkerRow, command: WorkerCommand) -> None:
        """Start the keeper and wait for its end; one that could not take its worker on is an end too, as the next look finds."""
        folder = self._state.worker_folder(row.uid)
        own = [str(self._state.path), row.uid, str(command.grace), str(folder / "log"), command.folder]
        try:
            # No child of the loop's: the loop would kill it when it is closed, and a keeper outlives its runner.
            arguments = [*own, json.dumps(command.prestop), "--", *command.argv]
            process = await asyncio.to_thread(start_keeper, arguments, command.environ)
            await ended(process.pid)
            process.poll()
        except (OSError, ValueError) as error:  # of the kernel, or of Python before it asks the kernel
            _LOG.warning("worker not started", namespace=row.key.namespace, run=row.key.name, error=str(error))
        finally:
            self._keepers.pop(row.uid, None)


def _make_folder(folder: Path, bearer: str) -> None:
    folder.parent.mkdir(exist_ok=True, mode=0o700)
    folder.mkdir(mode=0o700)
    (folder / "state").mkdir(mode=0o700)
    handle = os.open(folder / "token", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(bearer)
