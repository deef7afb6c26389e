"""`stepfence local run`: start runs, or go on with them, until they are over."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from stepfence.core.errors import Code, Refused
from stepfence.core.model import Run
from stepfence.core.words import Outcome
from stepfence.local.admission import IMMUTABLE, admit_patch
from stepfence.local.lines import Lines
from stepfence.local.manifest import Document, admit_new
from stepfence.local.reading import read_documents
from stepfence.local.runner import Runner
from stepfence.local.serving import gateway
from stepfence.local.state import Lock, State
from stepfence.local.story import Story
from stepfence.local.template import DIRECTORY_ANNOTATION, check_template
from stepfence.ports import RunKey
from stepfence.stores.sqlite import Database

__all__ = ["INTERRUPTED", "apply_manifests", "read_manifests", "run"]

INTERRUPTED = 130
_ENDING = (signal.SIGINT, signal.SIGTERM)
_LOG = structlog.get_logger(__name__)
_LOOK_SECONDS = 0.1
_KEEPERS_SECONDS = 1.0


def read_manifests(files: Sequence[Path], namespace: str) -> list[Document]:
    """Read and check every document of every file before any is applied. Raises `Refused` naming file and field, `OSError`."""
    found = []
    for path in files:
        try:
            documents = read_documents(path.read_text(encoding="utf-8"))
            for manifest in documents:
                document = admit_new(manifest, namespace)
                check_template(document["spec"]["template"])
                found.append(document)
        except UnicodeDecodeError as error:
            raise Refused(Code.BAD_REQUEST, f"{path}: {error}") from error
        except Refused as refused:
            raise Refused(refused.code, f"{path}: {refused.detail}", field=refused.field) from refused
        if not documents:
            raise Refused(Code.BAD_REQUEST, f"{path}: there is no AgentRun in it")
    return found


async def apply_manifests(state: State, manifests: Sequence[Document], folder: Path) -> list[RunKey]:
    """Create each run; of one that is there, change what may be changed. `folder`: where relative paths of workers begin.

    Raises `Refused(BAD_REQUEST)` naming the field.
    """
    keys, known = [], {key for key, _ in await state.runs.names()}
    for manifest in manifests:
        metadata = manifest["metadata"]
        key = RunKey(metadata["namespace"], metadata["name"])
        annotations = {DIRECTORY_ANNOTATION: str(folder), **(metadata.get("annotations") or {})}
        given: dict[str, Any] = {**manifest, "metadata": {**metadata, "annotations": annotations}}
        if key in known:
            try:
                await state.runs.edit(key, functools.partial(_applied, manifest["spec"]))
            except Refused as refused:
                detail = f"{key.namespace}/{key.name} was started before: {refused.detail}"
                raise Refused(refused.code, detail, field=refused.field) from refused
        else:
            await state.runs.create(given)
            known.add(key)
        keys.append(key)
    return keys


def _applied(spec: Document, before: Document) -> Document:
    """A field that the manifest no longer has counts as removed; the template is taken whole."""
    removed = {field: None for field in IMMUTABLE if field not in spec}
    after = admit_patch(before, {"spec": {**removed, **spec}})
    return {**after, "spec": {**after["spec"], "template": spec["template"]}}


async def run(state: State, keys: Sequence[RunKey], view: Lines, *, as_json: bool = False) -> int:
    """Tell the story of the runs until they are over; the first process of a state file also starts and serves all its workers.

    `view`: where it is told. Returns 0 when all succeeded, 1 when one did not or was deleted before, `INTERRUPTED` after SIGINT or
    SIGTERM: then its workers were told to go, and another `run` goes on from there.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()
    for number in _ENDING:
        asyncio.get_running_loop().add_signal_handler(number, lambda: hurry.set() if stop.is_set() else stop.set())
    lock = Lock(state.path)
    loop = _Loop(state, list(keys), Story(state, view.write, as_json=as_json, apart=view.apart), lock, view)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(view.shown())
        # After these only the last words are left: whoever does not read them keeps no other process from taking over, nor a signal.
        stack.callback(_end_by_signals)
        stack.callback(lock.leave)
        outcomes = await loop.until_over(stop, stack)
        if loop.runner is not None:
            stop.set()  # from here on any signal is one that does not wait
            await loop.let_workers_go(loop.runner, hurry, interrupted=outcomes is None)
    if outcomes is None:
        return INTERRUPTED
    return 0 if all(outcome is Outcome.SUCCEEDED for outcome in outcomes) else 1


def _end_by_signals() -> None:
    for number in _ENDING:
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)


@dataclass
class _Loop:
    state: State
    keys: list[RunKey]
    story: Story
    lock: Lock
    view: Lines
    runner: Runner | None = None
    wake: datetime | None = None
    _seen: int | None = field(default=None, init=False)
    _keepers_at: float = field(default=0.0, init=False)

    async def until_over(self, stop: asyncio.Event, stack: contextlib.AsyncExitStack) -> list[Outcome | None] | None:
        """Go on until all runs are over and none of their workers lives; return their outcomes, None when stopped."""
        watched = Database(self.state.path)  # a connection of its own sees what every other one writes, this process's too
        stack.push_async_callback(watched.close)
        await self._tell()
        while not stop.is_set():
            if self.runner is None and self.lock.take():
                self.runner = Runner(self.state, await stack.enter_async_context(gateway(self.state)))
                stack.push_async_callback(self.runner.close)
                await self.runner.start()
                self._seen = None
            version = await watched.data_version()
            due = self.wake is not None and self.state.clock.now() >= self.wake
            if version != self._seen or due:
                self._seen = version
                runs = await self._look()
                if all(run is None or run.terminal for run in runs) and not await self._mine_live():
                    return [self._outcome(key, run) for key, run in zip(self.keys, runs, strict=True)]
            await self._watch_keepers()
            await self._rest(stop)
        return None

    async def _look(self) -> list[Run | None]:
        if self.runner is not None:
            self.wake = await self.runner.look()
        return await self._tell()

    async def _tell(self) -> list[Run | None]:
        runs = [await self.story.tell(key) for key in self.keys]
        self.view.show((run for run in runs if run is not None), await self.state.workers.living())
        return runs

    async def _rest(self, wakes: asyncio.Event) -> None:
        self.view.tick()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(wakes.wait(), _LOOK_SECONDS)

    def _outcome(self, key: RunKey, run: Run | None) -> Outcome | None:
        """A run that was deleted ended as it was last seen."""
        last = run or self.story.gone(key)
        return None if last is None else last.outcome

    async def _mine_live(self) -> bool:
        return any(row.key in self.keys for row in await self.state.workers.living())

    async def _watch_keepers(self) -> None:
        now = self.state.clock.monotonic()
        if self.runner is not None and now >= self._keepers_at:
            self._keepers_at = now + _KEEPERS_SECONDS
            await self.runner.watch_keepers()

    async def let_workers_go(self, runner: Runner, hurry: asyncio.Event, *, interrupted: bool) -> None:
        """Tell what still lives to go, and serve it until it has, at its grace at the latest; a second signal leaves it to its keeper."""
        if living := await self.state.workers.living():
            grace = max(row.grace for row in living)
            which = "a second signal" if interrupted else "a signal"
            self.story.remark(f"{_workers(len(living))} told to go, at most {grace} s from now; {which} does not wait for that")
        while not hurry.is_set() and await self.state.workers.living():
            await runner.dismiss_all()
            await runner.watch_keepers()
            await self._tell()
            await self._rest(hurry)
        await self._tell()
        if left := len(await self.state.workers.living()):
            alone = "itself" if left == 1 else "themselves"
            self.story.remark(f"{_workers(left)} left to end by {alone}; the next `run` goes on from there")


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
