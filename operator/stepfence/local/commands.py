"""What people ask of runs without a cluster: the same YAML and the same patches as with kubectl, on the state file alone.

No command needs `stepfence local run` to be running: what is written takes effect when one runs next.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from stepfence.cli.text import as_json, plain
from stepfence.core.errors import Code, Refused
from stepfence.core.lifecycle import hold_behind
from stepfence.local.admission import admit_json_patch, admit_patch
from stepfence.local.deletion import end_strays
from stepfence.local.manifest import Document
from stepfence.local.processes import send
from stepfence.local.reading import read_one
from stepfence.local.state import Lock, State
from stepfence.local.template import check_template
from stepfence.local.text import as_yaml
from stepfence.local.witness import OlderCopy, Witness
from stepfence.local.workers import WorkerRow
from stepfence.ports import RunKey
from stepfence.schema.times import parse_time

__all__ = ["Write", "accept_older", "cancel", "drain", "get", "kill", "listing", "patch"]

Write = Callable[[str], None]
_COLUMNS = ("NAMESPACE", "NAME", "PHASE", "STEPS", "TOKEN", "OPEN", "AGE")


async def listing(state: State, write: Write, namespace: str | None, *, output: str) -> None:
    """Print all runs, of one namespace or of all: `output` table, yaml or json."""
    found = [document for document in await state.runs.documents() if namespace in (None, document["metadata"]["namespace"])]
    if output != "table":
        _print({"apiVersion": "v1", "items": found, "kind": "List", "metadata": {"resourceVersion": ""}}, write, output)
        return
    now = state.clock.now()
    for line in _table([_COLUMNS, *(_cells(document, now) for document in found)]):
        write(line)


def _cells(document: Document, now: datetime) -> tuple[str, ...]:
    metadata, status = document["metadata"], document.get("status") or {}
    age = _age((now - parse_time(metadata["creationTimestamp"])).total_seconds())
    names = (metadata["namespace"], metadata["name"], status.get("phase", ""), status.get("progress", ""))
    return (*names, str(status.get("fencingToken", "")), status.get("openStep", ""), age)


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


async def get(state: State, write: Write, key: RunKey, *, output: str) -> None:
    """Print one run as `kubectl get -o yaml` does, or in the table. Raises `Refused(NOT_FOUND)`."""
    document = await state.runs.document(key)
    if output == "table":
        for line in _table([_COLUMNS, _cells(document, state.clock.now())]):
            write(line)
    else:
        _print(document, write, output)


def _print(value: Any, write: Write, output: str) -> None:
    text = as_json(value, indent=4, sort_keys=True) if output == "json" else as_yaml(value)
    write(text.rstrip("\n"))


async def patch(state: State, write: Write, key: RunKey, text: str, *, kind: str = "merge") -> None:
    """Apply a patch in JSON (or YAML, as kubectl takes it): `kind` merge or json. Raises `Refused` naming the field."""
    admit = {"merge": admit_patch, "json": admit_json_patch}[kind]
    try:
        changes = read_one(text)
    except Refused as refused:
        raise Refused(refused.code, f"the patch cannot be read: {refused.detail}", field=refused.field) from refused

    def change(before: Document) -> Document:
        after = admit(before, changes)
        if after["spec"]["template"] != before["spec"]["template"]:
            check_template(after["spec"]["template"])
        return after

    before = await state.runs.load(key)
    after = await state.runs.edit(key, change)
    write(f"agentrun.stepfence.dev/{key.name} patched{' (no change)' if after.revision == before.revision else ''}")


async def accept_older(state: State) -> None:
    """Go on from a state file that is an older copy of itself: every run that is not over waits for a person, then it is the newest.

    Killed in between, it is an older copy still. Raises `Refused(HELD)` while another process starts workers: it goes on with the file that
    was there before, and its workers are none that nobody knows.
    """
    with contextlib.suppress(OlderCopy):
        await state.database.write(state.witness.check)
        return
    lock = Lock(state.path)
    if not lock.take():
        raise Refused(Code.HELD, "the state file is an older copy, and a `stepfence local run` goes on beside it: end that first")
    try:
        await _accept_older(state)
    finally:
        lock.leave()


async def _accept_older(state: State) -> None:
    older = await state.database.write(functools.partial(_left_behind, state.witness))
    if older is None:
        return  # another process has accepted it meanwhile
    await end_strays(state)
    for key, _ in await state.runs.names():
        await state.applier.apply(key, lambda run, at: (hold_behind(run, older.how, at), None))
    await state.database.write(state.witness.begin_anew)


def _left_behind(witness: Witness, connection: sqlite3.Connection) -> OlderCopy | None:
    """In one transaction: of two who accept it at once, none leaves behind what the other goes on with."""
    try:
        witness.check(connection)
    except OlderCopy as older:
        witness.leave_behind(connection)
        return older
    return None


async def cancel(state: State, write: Write, key: RunKey) -> None:
    """Set `spec.cancel`. Raises `Refused(NOT_FOUND)`."""
    await patch(state, write, key, '{"spec": {"cancel": true}}')


async def kill(state: State, write: Write, key: RunKey) -> None:
    """Kill the run's worker with SIGKILL, as a crash would. Raises `Refused(NOT_FOUND)`."""
    row = await _living(state, key)
    if row.process is None or not send(*row.process, signal.SIGKILL):
        raise Refused(Code.NOT_FOUND, f"worker {row.number} of {key.namespace}/{key.name} does not run")
    write(f"worker {row.number} of {key.namespace}/{key.name} killed")


async def drain(state: State, write: Write, key: RunKey) -> None:
    """Tell the run's worker to go, as the deletion of its pod would; another one goes on. Raises `Refused(NOT_FOUND)`."""
    row = await _living(state, key)
    await state.workers.dismiss(row.uid, state.clock.now() + timedelta(seconds=row.grace))
    if row.keeper is not None:
        send(*row.keeper, signal.SIGTERM)
    write(f"worker {row.number} of {key.namespace}/{key.name} told to go, at most {row.grace} s from now")


async def _living(state: State, key: RunKey) -> WorkerRow:
    run = (await state.runs.load(key)).run
    found = [row for row in await state.workers.of_run(run.uid) if row.ended_at is None]
    if not found:
        raise Refused(Code.NOT_FOUND, f"{key.namespace}/{key.name} has no worker that lives")
    return found[-1]
