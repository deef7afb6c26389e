"""Workers as processes: started at most once, ended with everything that they started, and their end known whoever recorded it."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from e2e.local.world import SECONDS, World, holds
from stepfence.local import keeper
from stepfence.local.keeper import NOT_STARTED, start_of
from stepfence.local.processes import MARK, alive, end_marked, send
from stepfence.local.workers import TABLES, WorkerRow, Workers
from stepfence.ports import RunKey
from stepfence.stores.sqlite import Database

NOW = datetime(2026, 1, 2, tzinfo=UTC)


class Kept:
    """One worker row and its keeper."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self.database, self.workers = folder, database, Workers(database)
        self.row = WorkerRow("uid-1", RunKey("support", "run"), "run-uid", "run-1", 1, "token", 5, NOW)

    async def keep(self, *command: str, grace: float = 5, prestop: str = "[]") -> asyncio.subprocess.Process:
        own = [sys.executable, "-I", "-S", str(Path(keeper.__file__)), str(self.database.path), self.row.uid, str(grace)]
        words = [*own, str(self.folder / "log"), str(self.folder), prestop, "--", *command]
        return await asyncio.create_subprocess_exec(*words, env={"PATH": "/usr/bin:/bin", MARK: self.row.uid}, start_new_session=True)

    async def found(self) -> WorkerRow:
        row = await self.workers.by_uid(self.row.uid)
        assert row is not None
        return row

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    database = Database(tmp_path / "state.db", TABLES)
    made = Kept(tmp_path, database)
    await made.workers.add(made.row)
    yield made
    end_marked(made.row.uid)
    await database.close()


async def over(process: asyncio.subprocess.Process) -> int:
    return await asyncio.wait_for(process.wait(), SECONDS)


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
async def test_the_end_is_recorded_with_its_code(script: str, code: int, kept: Kept) -> None:
    assert await over(await kept.keep("/bin/sh", "-c", script)) == 0
    row = await kept.found()
    assert (row.exit_code, row.ended_at is not None) == (code, True)


async def test_a_command_that_is_not_there_is_an_end_that_says_so(kept: Kept) -> None:
    assert await over(await kept.keep("no-such-command")) == 0
    row = await kept.found()
    assert (row.exit_code, row.message) == (127, "no-such-command: No such file or directory")


async def test_a_worker_that_was_taken_back_is_never_started(kept: Kept) -> None:
    await kept.workers.take_back_unstarted()
    assert await over(await kept.keep("/bin/sh", "-c", "echo started")) == NOT_STARTED
    assert kept.log == ""


async def test_of_two_keepers_one_starts_the_worker(kept: Kept) -> None:
    both = [await kept.keep("/bin/sh", "-c", "echo started") for _ in range(2)]
    assert sorted([await over(process) for process in both]) == [0, NOT_STARTED]
    assert kept.log == "started\n"


async def test_what_a_worker_leaves_behind_ends_before_its_end_is_recorded(kept: Kept) -> None:
    assert await over(await kept.keep("/bin/sh", "-c", "setsid sleep 1000 & echo $!")) == 0
    assert (await kept.found()).exit_code == 0
    assert start_of(int(kept.log)) is None


async def test_told_to_go_it_gets_its_hook_then_sigterm(kept: Kept) -> None:
    script = "trap 'echo term; exit 75' TERM; echo up; while :; do sleep 0.02; done"
    process = await kept.keep("/bin/sh", "-c", script, grace=SECONDS, prestop='["/bin/echo", "hook"]')
    await holds(lambda: "up" in kept.log)
    process.send_signal(signal.SIGTERM)
    assert await over(process) == 0
    assert kept.log.split() == ["up", "hook", "term"]
    assert (await kept.found()).exit_code == 75


async def test_told_to_go_it_is_killed_when_its_grace_has_passed(kept: Kept) -> None:
    process = await kept.keep("/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.02; done", grace=0.1)
    await holds(lambda: "up" in kept.log)
    process.send_signal(signal.SIGTERM)
    assert await over(process) == 0
    assert (await kept.found()).exit_code == 137


async def test_a_killed_keeper_takes_its_worker_with_it(kept: Kept) -> None:
    process = await kept.keep("/bin/sh", "-c", "setsid sleep 1000 & echo $! $$; wait")
    await holds(lambda: len(kept.log.split()) == 2)
    daemon, worker = map(int, kept.log.split())
    process.kill()
    await over(process)
    await holds(lambda: start_of(worker) is None)
    assert start_of(daemon) is not None
    await holds(lambda: end_marked(kept.row.uid))
    assert start_of(daemon) is None
    assert (await kept.found()).ended_at is None


async def test_a_signal_reaches_only_the_process_that_is_meant() -> None:
    mine = start_of(os.getpid())
    assert mine is not None
    assert alive(os.getpid(), mine)
    assert not alive(os.getpid(), f"{mine}0")
    assert not send(os.getpid(), f"{mine}0", signal.SIGKILL)


async def test_a_run_whose_keeper_was_killed_goes_on_with_the_next_worker(world: World) -> None:
    script = f"echo $$ > {world.folder}/up; exec sleep 1000"
    run = await world.run(world.manifest(["/bin/sh", "-c", script]))
    await holds((world.folder / "up").exists)
    with sqlite3.connect(world.state) as connection:
        (pid,) = connection.execute("SELECT keeper_pid FROM workers").fetchone()
    connection.close()
    os.kill(pid, signal.SIGKILL)
    ended = await run.until("WorkerEnded")
    assert "Lost (the process that kept this worker is gone)" in ended["message"]
    await run.until("WorkerStarted")
    await run.kill()


async def test_workers_that_bring_nothing_forward_end_the_run(world: World) -> None:
    run = await world.run(world.manifest(["/bin/sh", "-c", "exit 3"], backoffLimit=0))
    assert await run.over() == 1
    status = (await world.document())["status"]
    assert (status["reason"], status["worker"]["number"]) == ("BackoffLimitExceeded", 1)
    assert "exit code 3" in status["message"]


async def test_a_worker_is_told_what_a_pod_is_told(world: World) -> None:
    script = 'echo "$(WHO) $STEPFENCE_NAMESPACE $STEPFENCE_RUN $STEPFENCE_WORKER $(pwd)"; ls -l "$STEPFENCE_TOKEN_FILE" | cut -c1-10'
    file = world.manifest(["/bin/sh", "-c"], backoffLimit=0)
    text = file.read_text().replace(
        "name: worker\n", f"name: worker\n        args: [{script!r}]\n        env: [{{name: WHO, value: jo}}]\n"
    )
    file.write_text(text)
    run = await world.run(file)
    assert await run.over() == 1
    code, output = await world.local("-n", "support", "logs", "refund-4711")
    assert code == 0, output
    assert output.split() == ["jo", "support", "refund-4711", "1", str(world.folder), "-rw-------"]


async def test_a_spent_identity_starts_nothing(world: World) -> None:
    first = await world.run(world.manifest(["stepfence", "fail", "--reason", "Done"], "first", runID="one"))
    assert await first.over() == 1
    second = await world.run(world.manifest(["/bin/sh", "-c", f"touch {world.folder}/started"], "second", runID="one"))
    assert await second.over() == 1
    assert (await world.document("second"))["status"]["reason"] == "AlreadyRan"
    assert not (world.folder / "started").exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"command": None}, "containers[0].command"),
        ({"envFrom": [{"secretRef": {"name": "x"}}]}, "containers[0].envFrom"),
        ({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}, "containers[0].env[0].valueFrom"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_no_process_can_be_made_of_is_refused_by_name(change: dict[str, object], field: str, world: World) -> None:
    container = {"name": "worker", "command": ["true"], **change}
    file = world.manifest(["true"], template={"spec": {"containers": [container]}})
    code, output = await world.local("run", str(file))
    assert (code, f"spec.template.spec.{field}: " in output) == (2, True), output
    assert not world.processes()
