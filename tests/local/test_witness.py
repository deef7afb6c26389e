"""An older copy of the state file is told from the newest one, and no run goes on from it without a person's word (I11)."""

from __future__ import annotations

import asyncio
import filecmp
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from stepfence.core.errors import Code, Refused
from stepfence.core.lifecycle import halt_run, request_cancel
from stepfence.core.words import Outcome
from stepfence.local.__main__ import main
from stepfence.local.commands import accept_older, cancel
from stepfence.local.deletion import sweep_folders
from stepfence.local.manifest import admit_new
from stepfence.local.processes import MARK
from stepfence.local.state import Lock, State, opened
from stepfence.local.witness import Witness
from stepfence.local.workers import WorkerRow, token_hash
from stepfence.ports import RunKey
from stepfence.stores import sqlite
from stepfence.stores.sqlite import Work

COMMAND = "stepfence local"
KEY, ENDING, SINCE = (RunKey("support", name) for name in ("refund", "ending", "since"))
TEMPLATE = {"spec": {"containers": [{"name": "worker", "command": ["true"]}]}}
OLDER = "the state file was put back from an older copy: "


async def create(state: State, key: RunKey) -> None:
    head = {"apiVersion": "stepfence.dev/v1alpha1", "kind": "AgentRun"}
    await state.runs.create(admit_new({**head, "metadata": {"name": key.name}, "spec": {"template": TEMPLATE}}, key.namespace))


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A state file in which a run is open and another is over; `older` is a copy that does not know of a third one, `newest` does."""
    path = tmp_path / "state.db"
    async with opened(path, command=COMMAND) as state:
        await create(state, KEY)
        await create(state, ENDING)
        await cancel(state, lambda _: None, ENDING)
        await state.applier.apply(ENDING, lambda run, at: (request_cancel(run, at), None))
    shutil.copy(path, tmp_path / "older")
    async with opened(path, command=COMMAND) as state:
        await create(state, SINCE)
    shutil.copy(path, tmp_path / "newest")
    return path


async def use(path: Path) -> list[str]:
    async with opened(path, command=COMMAND) as state:
        return [key.name for key, _ in await state.runs.names()]


async def put_back(path: Path, copy: str) -> None:
    shutil.copy(path.with_name(copy), path)


async def test_the_newest_file_is_used_again_and_again(path: Path) -> None:
    assert await use(path) == await use(path) == ["ending", "refund", "since"]


async def test_an_older_copy_is_refused_again_and_again_and_nothing_in_it_changes(path: Path) -> None:
    await put_back(path, "older")
    for _ in range(2):
        with pytest.raises(Refused, match=OLDER + r"revision 5 was stored, it holds 4\. .*--accept-older-state") as refused:
            await use(path)
        assert refused.value.code is Code.HELD
    assert filecmp.cmp(path, path.with_name("older"), shallow=False)


async def test_the_newest_file_put_back_again_is_used(path: Path) -> None:
    await put_back(path, "older")
    with pytest.raises(Refused):
        await use(path)
    await put_back(path, "newest")
    assert await use(path) == ["ending", "refund", "since"]


async def test_a_file_that_was_removed_begins_anew(path: Path, tmp_path: Path) -> None:
    shutil.move(path, tmp_path / "away")
    assert await use(path) == []
    assert await use(path) == []


async def test_a_file_that_was_moved_elsewhere_is_used_and_guarded_there(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / "state.db"
    shutil.move(path, moved)
    assert await use(moved) == ["ending", "refund", "since"]
    shutil.copy(tmp_path / "older", moved)
    with pytest.raises(Refused, match=OLDER):
        await use(moved)


async def test_a_file_of_another_place_put_here_is_no_copy_of_the_one_that_was_used_here(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    async with opened(other, command=COMMAND) as state:
        for number in range(9):
            await create(state, RunKey("support", f"run-{number}"))
    shutil.copy(other, path)
    with pytest.raises(Refused, match=OLDER + "another one was in use here, up to revision 5; this one holds 9"):
        await use(path)


async def test_who_accepts_an_older_copy_has_every_run_that_is_not_over_wait_for_an_answer(path: Path) -> None:
    await put_back(path, "older")
    async with opened(path, command=COMMAND, check=False) as state:
        await accept_older(state)
        held = (await state.applier.read(KEY)).run.hold
        assert held is not None
        assert (held.reason, held.message.startswith(OLDER)) == ("LedgerBehind", True)
        ended = (await state.applier.read(ENDING)).run
        assert (ended.hold, ended.outcome) == (None, Outcome.CANCELLED)
    assert await use(path) == ["ending", "refund"]


async def test_a_copy_of_before_an_older_one_was_accepted_is_refused_however_new(path: Path) -> None:
    await put_back(path, "older")
    async with opened(path, command=COMMAND, check=False) as state:
        await accept_older(state)
    await put_back(path, "newest")
    with pytest.raises(Refused, match=OLDER + "another one was in use here"):
        await use(path)


async def test_to_accept_the_newest_file_changes_nothing(path: Path) -> None:
    async with opened(path, command=COMMAND, check=False) as state:
        await accept_older(state)
        assert (await state.applier.read(KEY)).run.hold is None
    await put_back(path, "newest")
    assert await use(path) == ["ending", "refund", "since"]


async def test_two_who_accept_an_older_copy_at_once_go_on_with_one_history(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await put_back(path, "older")
    async with opened(path, command=COMMAND, check=False) as one, opened(path, command=COMMAND, check=False) as other:
        write, looked, go = other.database.write, asyncio.Event(), asyncio.Event()

        async def late(work: Work[Any]) -> Any:
            try:
                return await write(work)
            finally:
                if not looked.is_set():
                    looked.set()
                    await go.wait()

        monkeypatch.setattr(other.database, "write", late)
        second = asyncio.create_task(accept_older(other))
        await looked.wait()
        await accept_older(one)
        go.set()
        await second
        for state in (other, one):
            await create(state, RunKey("support", f"by-{'one' if state is one else 'other'}"))
            assert "refund" in await use(path)


async def test_a_hold_of_an_older_copy_is_asked_anew_for_its_answer_may_stand_in_the_copy(path: Path) -> None:
    async def questions(state: State) -> list[str]:
        holds = [(await state.applier.read(key)).run.hold for key in (KEY, SINCE)]
        return [hold.question for hold in holds if hold is not None]

    await put_back(path, "newest")
    async with opened(path, command=COMMAND) as state:
        await state.applier.apply(KEY, lambda run, at: (halt_run(run, "BudgetSpent", "look", at), None))
        await state.applier.apply(SINCE, lambda run, at: (halt_run(run, "LedgerBehind", "look", at), None))
        before = await questions(state)
    shutil.copy(path, path.with_name("held"))
    async with opened(path, command=COMMAND) as state:
        await cancel(state, lambda _: None, KEY)
    await put_back(path, "held")
    async with opened(path, command=COMMAND, check=False) as state:
        await accept_older(state)
        assert set(before).isdisjoint(await questions(state))
        hold = (await state.applier.read(KEY)).run.hold
        assert hold is not None
        assert hold.reason == "LedgerBehind"
        assert hold.message.endswith("It was held before (BudgetSpent: look)")


async def test_a_copy_of_before_a_run_was_deleted_is_refused(path: Path, tmp_path: Path) -> None:
    async with opened(path, command=COMMAND) as state:
        await state.runs.delete(KEY)
    await put_back(path, "newest")
    with pytest.raises(Refused, match=OLDER):
        await use(path)


async def of_before_witnesses(path: Path) -> None:
    """As a version of Stepfence left it that knew none."""
    async with opened(path, command=COMMAND, check=False) as state:
        await create(state, KEY)


async def test_a_file_of_before_there_were_witnesses_is_used_and_guarded_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    await of_before_witnesses(path)
    shutil.copy(path, tmp_path / "older")
    assert await use(path) == await use(path) == ["refund"]
    await put_back(path, "older")
    with pytest.raises(Refused, match=OLDER):
        await use(path)
    async with opened(path, command=COMMAND, check=False) as state:
        await accept_older(state)
    assert await use(path) == ["refund"]


async def test_a_file_of_before_there_were_witnesses_is_used_when_the_first_use_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.db"
    await of_before_witnesses(path)

    def killed(connection: sqlite3.Connection) -> int:
        check_revision(connection)
        raise KeyboardInterrupt

    check_revision = sqlite.last_revision
    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "last_revision", killed)  # what comes between the check and its commit
        with pytest.raises(KeyboardInterrupt):
            await use(path)
    assert await use(path) == ["refund"]


async def test_one_file_of_two_names_has_one_witness(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(path)
    assert await use(link) == ["ending", "refund", "since"]
    assert list(link.parent.iterdir()) == [link]
    await put_back(path, "older")
    with pytest.raises(Refused, match=OLDER):
        await use(link)
    async with opened(path, command=COMMAND, check=False) as state:
        await accept_older(state)
    assert await use(link) == await use(path) == ["ending", "refund"]


def worker(path: Path, uid: str) -> subprocess.Popen[bytes]:
    """A process of a worker, and its folder."""
    folder = path.with_name("state.db.workers") / uid
    folder.mkdir(parents=True)
    (folder / "log").write_text(f"log of {uid}")
    return subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: uid})


async def test_a_worker_that_an_older_copy_does_not_know_has_ended_before_a_person_is_asked(path: Path) -> None:
    uids = [str(uuid.uuid4()) for _ in range(3)]
    async with opened(path, command=COMMAND) as state:
        for number, uid in enumerate(uids[:2]):
            await state.workers.add(WorkerRow(uid, KEY, "run", f"job-{number}", number, token_hash(uid), 30, state.clock.now()))
        # One whose keeper took it on; of the other it is not known in this copy.
        await state.database.write(lambda connection: connection.execute("UPDATE workers SET keeper_pid = 1 WHERE uid = ?", (uids[0],)))
        await create(state, RunKey("support", "more"))
    shutil.copy(path, path.with_name("older"))
    async with opened(path, command=COMMAND) as state:
        await create(state, RunKey("support", "later"))
    await put_back(path, "older")
    processes = [await asyncio.to_thread(worker, path, uid) for uid in uids]
    try:
        async with opened(path, command=COMMAND, check=False) as state:
            with capture_logs() as logs:
                await accept_older(state)
            assert await state.workers.uids() == {uids[0]}
        assert [process.poll() for process in processes] == [None, -signal.SIGKILL, -signal.SIGKILL]
        assert {entry["worker"] for entry in logs} == set(uids[1:])
        async with opened(path, command=COMMAND) as state:
            await sweep_folders(state)
        kept = {entry["worker"]: Path(entry["log"]) for entry in logs}
        assert {uid: await asyncio.to_thread(log.read_text) for uid, log in kept.items()} == {uid: f"log of {uid}" for uid in uids[1:]}
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def test_an_older_copy_is_not_accepted_while_a_process_starts_workers(path: Path) -> None:
    """It goes on with the file that was there before; a worker of its own is none that nobody knows."""
    await put_back(path, "older")
    uid, lock = str(uuid.uuid4()), Lock(path)
    assert lock.take()
    process = await asyncio.to_thread(worker, path, uid)
    try:
        async with opened(path, command=COMMAND, check=False) as state:
            with pytest.raises(Refused, match="a `stepfence local run` goes on beside it: end that first"):
                await accept_older(state)
            assert process.poll() is None
            lock.leave()
            await accept_older(state)
            assert process.wait(10) == -signal.SIGKILL
            assert lock.take()
    finally:
        lock.leave()
        process.kill()
        process.wait()


async def test_an_older_copy_is_not_accepted_by_halves(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await put_back(path, "older")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Witness, "begin_anew", killed)
        async with opened(path, command=COMMAND, check=False) as state:
            with pytest.raises(KeyboardInterrupt):
                await accept_older(state)
    with pytest.raises(Refused, match=OLDER):
        await use(path)
    async with opened(path, command=COMMAND, check=False) as state:
        await accept_older(state)
    assert await use(path) == ["ending", "refund"]


@pytest.mark.parametrize("left", [b"", b"x" * 128, b"0" * 64], ids=["empty", "other", "half"])
async def test_what_a_power_cut_left_of_the_witness_is_no_witness(left: bytes, path: Path) -> None:
    path.with_name("state.db.seen").write_bytes(left)
    assert await use(path) == ["ending", "refund", "since"]
    await put_back(path, "older")
    with pytest.raises(Refused, match=OLDER):
        await use(path)


async def test_a_witness_that_cannot_be_written_keeps_no_write_from_the_file_and_is_warned_of_once(tmp_path: Path) -> None:
    (tmp_path / "state.db.seen").symlink_to(tmp_path / "absent" / "file")
    with capture_logs() as logs:
        async with opened(tmp_path / "state.db", command=COMMAND) as state:
            await create(state, KEY)
            await create(state, SINCE)
    assert [entry["event"] for entry in logs] == ["an older copy of the state file would not be noticed"]
    assert await use(tmp_path / "state.db") == ["refund", "since"]


async def test_those_who_open_the_file_while_others_write_are_never_refused(path: Path) -> None:
    over = threading.Event()

    async def write() -> None:
        async with opened(path, command=COMMAND) as state:
            for number in range(60):
                await create(state, RunKey("support", f"run-{number}"))

    async def look() -> int:
        count = 0
        while not over.is_set():
            await use(path)
            count += 1
        return count

    lookers = [asyncio.create_task(look()) for _ in range(3)]
    await asyncio.gather(write(), write_others(path))
    over.set()
    assert min(await asyncio.gather(*lookers)) > 0


async def write_others(path: Path) -> None:
    async with opened(path, command=COMMAND) as state:
        for number in range(60):
            await create(state, RunKey("other", f"run-{number}"))


@pytest.mark.parametrize(
    "words", [["list"], ["-n", "support", "get", "refund"], ["-n", "support", "logs", "refund"]], ids=lambda words: words[-1]
)
def test_what_changes_no_run_may_be_looked_at_in_an_older_copy(words: list[str], path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(path.with_name("older"), path)
    main(["--state", str(path), *words])
    assert OLDER not in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["run"], ["patch", "refund", "-p", "{}"], ["cancel", "refund"], ["drain", "refund"], ["delete", "refund"]],
    ids=lambda words: words[0],
)
def test_nothing_may_be_changed_in_an_older_copy(words: list[str], path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(path.with_name("older"), path)
    assert main(["--state", str(path), "-n", "support", *words]) == 2
    assert f"stepfence local: {OLDER}" in capsys.readouterr().err
