"""`delete` and `logs -f` as their user runs them: killed in the middle, with workers that live, with nobody who runs."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sqlite3
import sys
import uuid
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.local.test_view import on_terminal
from e2e.local.world import SECONDS, Running, World, holds
from stepfence.core.words import Settings
from stepfence.local.processes import MARK

NAMED = ("-n", "support")
# Workers that stay until they are told to go: one that begins nothing and takes its time to end, one in the middle of a step.
SLOW = "trap 'echo TERM; sleep 0.2; echo BYE; exit 0' TERM; echo READY; while :; do sleep 0.05; done"
IN_A_STEP = "trap 'echo TERM; exit 0' TERM; stepfence exec --step a --action Create -- sh -c 'echo BEGUN >&2; sleep 1000' & wait"


def rows(world: World, query: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(world.state)) as connection:
        return connection.execute(query).fetchall()


def folders(world: World) -> list[Path]:
    return sorted(Path(f"{world.state}.workers").glob("*"))


def log(world: World) -> str:
    return "".join((folder / "log").read_text() for folder in folders(world) if (folder / "log").exists())


async def started(world: World, script: str, says: str, **spec: Any) -> Running:
    run = await world.run(world.manifest(["/bin/bash", "-c", script], plan={"steps": [{"id": "a", "action": "Create"}]}, **spec))
    await holds(lambda: says in log(world))
    return run


async def test_a_run_that_is_over_goes_with_all_that_belongs_to_it_but_its_identity_stays_spent(world: World) -> None:
    file = world.refund(runID="once")
    run = await world.run(file)
    assert await run.over() == 0
    assert len(folders(world)) == 1
    code, output = await world.local(*NAMED, "delete", "agentruns/refund-4711")
    assert (code, output) == (0, "agentrun.stepfence.dev/refund-4711 deleted\n")
    assert (await world.local("list"))[1].splitlines()[1:] == []
    assert folders(world) == []
    assert rows(world, "SELECT run_uid FROM workers UNION SELECT run_uid FROM records") == []
    assert len(rows(world, "SELECT * FROM identities")) == 1
    again = await world.run(file)
    assert await again.over() == 1
    assert (await world.document())["status"]["reason"] == "AlreadyRan"
    assert len(await world.effects()) == 2


async def test_what_is_not_there_cannot_be_deleted(world: World) -> None:
    assert await world.local(*NAMED, "delete", "nothing") == (2, "stepfence local: there is no AgentRun support/nothing\n")


async def test_a_half_done_run_is_deleted_only_when_that_is_confirmed_and_its_worker_is_told_to_go(world: World) -> None:
    container = {"name": "worker", "command": ["/bin/bash", "-c", IN_A_STEP]}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    run = await started(world, IN_A_STEP, "BEGUN", template=template)
    code, output = await world.local(*NAMED, "delete", "refund-4711")
    assert (code, "half done" in output, "how these stand: a" in output) == (2, True, True), output
    assert (await world.document())["status"]["phase"] == "Running"
    code, output = await world.local(*NAMED, "delete", "--confirm", "refund-4711")
    assert (code, "worker 1 of support/refund-4711 told to go" in output) == (0, True), output
    await run.until("Deleted")
    assert await run.over() == 1
    assert world.processes() == []
    assert folders(world) == []
    assert rows(world, "SELECT uid FROM workers") == []


async def test_nothing_of_a_worker_is_removed_while_it_lives(world: World) -> None:
    hold = world.folder / "hold"
    hold.touch()
    told = f"echo TERM; while [ -e {hold} ]; do sleep 0.02; done; exit 0"
    run = await started(world, f"trap '{told}' TERM; echo READY; while :; do sleep 0.02; done", "READY")
    assert (await world.local(*NAMED, "delete", "refund-4711"))[0] == 0
    await holds(lambda: "TERM" in log(world))
    # Passes go on meanwhile: another run comes and ends.
    other = await world.run(world.manifest(["stepfence", "fail", "--reason", "Done"], "other"))
    assert await other.over() == 1
    (folder,) = [folder for folder in folders(world) if "TERM" in (folder / "log").read_text()]
    assert (folder / "token").exists()
    hold.unlink()
    assert await run.over() == 1
    assert not folder.exists()


async def test_it_works_while_nobody_runs_and_the_next_runner_clears_away(world: World) -> None:
    run = await started(world, SLOW, "READY")
    await run.kill()
    assert world.processes()
    code, output = await world.local(*NAMED, "delete", "refund-4711")
    assert (code, "told to go" in output) == (0, True), output
    await holds(lambda: not world.processes())
    assert log(world).split() == ["READY", "TERM", "BYE"]
    assert rows(world, "SELECT exit_code FROM workers") == [(0,)]
    assert await (await world.run()).over() == 0
    assert (folders(world), rows(world, "SELECT uid FROM workers")) == ([], [])


async def killed_while_it_writes(world: World, fact: str) -> None:
    """Run `delete` with an output that takes nothing, and kill it when `fact` finds no row any more."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * 4096)
    words = [sys.executable, "-m", "stepfence.cli", "local", "--state", str(world.state), *NAMED, "delete", "refund-4711"]
    process = await asyncio.create_subprocess_exec(*words, cwd=world.folder, env=world.environ, stdout=writer)
    os.close(writer)
    await holds(lambda: not rows(world, fact))
    process.kill()
    assert await process.wait() == -signal.SIGKILL
    os.close(reader)


async def test_killed_when_only_the_run_is_gone_the_rest_is_done_by_the_next_runner(world: World) -> None:
    run = await started(world, SLOW, "READY", runID="once")
    await run.kill()
    await killed_while_it_writes(world, "SELECT uid FROM runs")
    assert "TERM" not in log(world)
    assert world.processes()
    assert (len(folders(world)), len(rows(world, "SELECT * FROM identities"))) == (1, 1)
    following = asyncio.create_task((await world.run()).over())
    await holds(lambda: not world.processes())
    assert await following == 0
    assert await (await world.run()).over() == 0
    assert (folders(world), len(rows(world, "SELECT * FROM identities"))) == ([], 1)


async def test_killed_when_only_the_run_is_gone_it_can_be_said_again(world: World) -> None:
    run = await started(world, SLOW, "READY")
    await run.kill()
    await killed_while_it_writes(world, "SELECT uid FROM runs")
    code, output = await world.local(*NAMED, "delete", "refund-4711")
    assert (code, "was deleted before" in output, "told to go" in output) == (0, True, True), output
    await holds(lambda: not world.processes())
    assert "TERM" in log(world)
    # When its worker has ended, nothing is left that could be deleted.
    assert (await world.local(*NAMED, "delete", "refund-4711"))[0] == 2


async def test_killed_before_its_transaction_nothing_has_happened(world: World) -> None:
    run = await started(world, SLOW, "READY")
    await run.kill()
    with contextlib.closing(sqlite3.connect(world.state, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        words = [sys.executable, "-m", "stepfence.cli", "local", "--state", str(world.state), *NAMED, "delete", "refund-4711"]
        process = await asyncio.create_subprocess_exec(*words, cwd=world.folder, env=world.environ)
        await holds(lambda: str(world.state).encode() in maps(process.pid))
        process.kill()
        await process.wait()
        connection.execute("ROLLBACK")
    assert (await world.document())["metadata"]["name"] == "refund-4711"
    assert world.processes()


def maps(pid: int) -> bytes:
    """What a process has mapped: the shared memory of an open database among it."""
    return Path(f"/proc/{pid}/maps").read_bytes()


async def test_folders_that_no_worker_took_are_removed_by_the_next_runner_unless_something_lives_in_them(world: World) -> None:
    spare, living = (Path(f"{world.state}.workers", str(uuid.uuid4())) for _ in range(2))
    other = Path(f"{world.state}.workers", "notes")
    for folder in (spare, living, other):
        folder.mkdir(parents=True)
        (folder / "token").touch()
    process = await asyncio.create_subprocess_exec("sleep", "1000", env={MARK: living.name, "PATH": "/usr/bin:/bin"})
    try:
        assert await (await world.run()).over() == 0
        assert folders(world) == sorted((living, other))
    finally:
        process.kill()
        await process.wait()
    assert await (await world.run()).over() == 0
    assert folders(world) == [other]


@contextlib.asynccontextmanager
async def following(world: World, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    command = [sys.executable, "-m", "stepfence.cli", "local", "--state", str(world.state), *NAMED, "logs", *words, "refund-4711"]
    process = await asyncio.create_subprocess_exec(*command, cwd=world.folder, env=world.environ, stdout=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), SECONDS)).decode()


async def test_a_log_is_followed_from_worker_to_worker_until_the_run_is_over(world: World) -> None:
    go = [world.folder / f"go-{number}" for number in (1, 2)]
    script = f"echo worker $STEPFENCE_WORKER; until [ -e {world.folder}/go-$STEPFENCE_WORKER ]; do sleep 0.02; done; echo end; exit 3"
    run = await started(world, script, "worker 1", backoffLimit=1)
    async with following(world, "-f") as all_of_it, following(world, "--follow", "-w", "1") as the_first:
        assert (await line(all_of_it), await line(the_first)) == ("worker 1\n", "worker 1\n")
        go[0].touch()
        assert [await line(the_first), await line(the_first)] == ["end\n", ""]
        assert await the_first.wait() == 0
        assert [await line(all_of_it), await line(all_of_it)] == ["end\n", "worker 2\n"]
        go[1].touch()
        assert [await line(all_of_it), await line(all_of_it)] == ["end\n", ""]
        assert await all_of_it.wait() == 0
    assert await run.over() == 1
    (ended, _), (_, created) = rows(world, "SELECT ended_at, created_at FROM workers ORDER BY number")
    waited = datetime.fromisoformat(created) - datetime.fromisoformat(ended)
    assert waited.total_seconds() >= Settings().backoff_base


async def test_a_log_is_followed_to_its_end_when_the_run_is_deleted(world: World) -> None:
    run = await started(world, SLOW, "READY")
    async with following(world, "-f") as process:
        assert await line(process) == "READY\n"
        assert (await world.local(*NAMED, "delete", "refund-4711"))[0] == 0
        assert [await line(process) for _ in range(3)] == ["TERM\n", "BYE\n", ""]
        assert await process.wait() == 0
    assert await run.over() == 1


async def test_who_stops_following_is_told_nothing_more(world: World) -> None:
    await started(world, SLOW, "READY")
    async with following(world, "-f") as process:
        assert await line(process) == "READY\n"
        process.send_signal(signal.SIGINT)
        assert [await line(process), await process.wait()] == ["", 130]


async def test_a_log_without_text_prints_nothing(world: World) -> None:
    run = await world.run(world.manifest(["true"], backoffLimit=0))
    assert await run.over() == 1
    assert await world.local(*NAMED, "logs", "refund-4711") == (0, "")
    assert await world.local(*NAMED, "logs", "-f", "refund-4711") == (0, "")


async def test_a_reader_that_goes_is_no_error(world: World) -> None:
    run = await world.run(world.manifest(["seq", "200000"], backoffLimit=0))
    assert await run.over() == 1
    command = f"{sys.executable} -m stepfence.cli local --state {world.state} -n support logs refund-4711 | head -n 1"
    assert await world.shell(["/bin/sh", "-c", command]) == (0, "1\n")


async def test_the_live_view_tells_of_a_run_that_is_deleted(world: World) -> None:
    file = world.manifest(["/bin/bash", "-c", SLOW])
    async with on_terminal(world, "run", str(file)) as terminal:
        await holds(lambda: "READY" in log(world))
        assert (await world.local(*NAMED, "delete", "refund-4711"))[0] == 0
        assert await terminal.over() == 1
        await terminal.until(lambda text: "Deleted: the run was deleted" in text)


async def test_run_without_a_file_says_when_nothing_is_open(world: World) -> None:
    said = f"stepfence local: no run in {world.state} is open; to start one: stepfence local run FILE.yaml\n"
    assert await world.local("run") == (0, said)


async def test_run_without_a_file_keeps_to_its_namespace(world: World) -> None:
    first = await world.run(world.manifest(["/bin/true"], suspend=True))
    await first.until("Accepted")
    await first.kill()
    said = f"stepfence local: no run of namespace other in {world.state} is open; to start one: stepfence local run FILE.yaml\n"
    assert await world.local("-n", "other", "run") == (0, said)
    again = await world.run()
    await again.until("Held")


async def test_a_file_that_is_not_there_is_named(world: World) -> None:
    assert await world.local("run", "refnud.yaml") == (2, "stepfence local: refnud.yaml: No such file or directory\n")


async def test_of_a_worker_that_brings_nothing_forward_it_is_told_where_its_words_are(world: World) -> None:
    code, output = await world.local("run", str(world.manifest(["/bin/sh", "-c", "echo no such module; exit 3"], backoffLimit=0)))
    command = f"stepfence local --state {world.state} -n support logs refund-4711 -w 1"
    assert code == 1
    assert f"WorkerEnded: worker 1 ended: Crashed (exit code 3); what it wrote: {command}\n" in output
    assert await world.shell([sys.executable, "-m", "stepfence.cli", *command.split()[1:]]) == (0, "no such module\n")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, "; it is over: to do all of it again, delete it first: stepfence local --state {state} -n support delete refund-4711"),
        ({"runID": "once"}, "; it is over, and its runID is spent: to do all of it again, give another name and runID"),
    ],
)
async def test_of_a_run_that_is_over_it_is_told_how_to_do_it_again(spec: dict[str, str], told: str, world: World) -> None:
    file = str(world.refund(**spec))
    assert (await world.local("run", file))[0] == 0
    code, output = await world.local("run", file)
    assert code == 0
    assert output.endswith(f"Succeeded: as stored, steps settled: 3{told.format(state=world.state)}\n")
    assert len(await world.effects()) == 2


async def test_a_change_that_is_refused_names_the_run_that_was_started_before(world: World) -> None:
    assert (await world.local("run", str(world.refund())))[0] == 0
    said = "stepfence local: support/refund-4711 was started before: spec.plan: plan is immutable\n"
    assert await world.local("run", str(world.refund(plan={"steps": [{"id": "another"}]}))) == (2, said)
