"""Logs of workers are printed piece by piece, to the end of the worker or of the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stepfence.core.errors import Refused
from stepfence.local.logs import logs
from stepfence.local.manifest import admit_new
from stepfence.local.state import State, opened
from stepfence.local.workers import WorkerRow
from stepfence.ports import RunKey

KEY = RunKey("support", "refund")
NOW = datetime(2026, 1, 2, tzinfo=UTC)
TEMPLATE = {"spec": {"containers": [{"name": "worker", "command": ["true"]}]}}


@dataclass
class Kept:
    state: State
    run_uid: str
    pieces: list[str] = field(default_factory=list)

    async def worker(self, number: int, log: bytes | None) -> Path:
        uid = f"uid-{number}"
        await self.state.workers.add(WorkerRow(uid, KEY, self.run_uid, f"refund-{number}", number, f"token-{number}", 5, NOW))
        folder = self.state.worker_folder(uid)
        folder.mkdir(parents=True)
        if log is not None:
            (folder / "log").write_bytes(log)
        return folder / "log"

    async def ended(self, number: int) -> None:
        await self.state.workers.note_end(f"uid-{number}", NOW, "")

    async def read(self, number: int | None = None, *, follow: bool = False) -> str:
        await logs(self.state, self.pieces.append, KEY, number, follow=follow)
        return "".join(self.pieces)

    async def until(self, text: str) -> None:
        async with asyncio.timeout(20):
            while text not in "".join(self.pieces):
                await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(lambda: None))], timeout=0.02)


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    async with opened(tmp_path / "state.db", command="stepfence local") as state:
        manifest = {
            "apiVersion": "stepfence.dev/v1alpha1",
            "kind": "AgentRun",
            "metadata": {"name": KEY.name},
            "spec": {"template": TEMPLATE},
        }
        stored = await state.runs.create(admit_new(manifest, KEY.namespace))
        yield Kept(state, stored.run.uid)


@pytest.mark.parametrize(
    ("log", "printed"),
    [(None, ""), (b"", ""), (b"one\ntwo\n", "one\ntwo\n"), (b"one", "one\n"), (b"\xff\xc3", "\ufffd\ufffd\n"), (b"\n", "\n")],
    ids=repr,
)
async def test_what_is_there_is_printed_and_nothing_for_nothing(log: bytes | None, printed: str, kept: Kept) -> None:
    await kept.worker(1, log)
    assert await kept.read() == printed


async def test_a_large_log_is_read_in_pieces_and_no_character_is_torn(kept: Kept) -> None:
    text = "x" + "é" * 500_000 + "\n"
    await kept.worker(1, text.encode())
    assert await kept.read() == text
    assert max(map(len, kept.pieces)) <= 64 * 1024


async def test_the_last_worker_is_meant_unless_its_number_is_given(kept: Kept) -> None:
    await kept.worker(1, b"first\n")
    await kept.worker(2, b"second\n")
    assert await kept.read() == "second\n"
    assert await kept.read(1) == "second\nfirst\n"
    with pytest.raises(Refused, match="no worker 3"):
        await kept.read(3, follow=True)


async def test_a_worker_is_followed_to_its_end_and_what_it_wrote_last_is_printed(kept: Kept) -> None:
    path = await kept.worker(1, b"one\n")
    following = asyncio.create_task(kept.read(1, follow=True))
    await kept.until("one\n")
    with path.open("ab") as file:
        file.write(b"two\n")
    await kept.until("two\n")
    with path.open("ab") as file:
        file.write(b"three")
    await kept.ended(1)
    assert await following == "one\ntwo\nthree\n"


async def test_without_a_number_the_next_worker_is_followed_until_the_run_is_gone(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    following = asyncio.create_task(kept.read(follow=True))
    await kept.worker(1, None)
    (kept.state.worker_folder("uid-1") / "log").write_text("one\n")
    await kept.until("one\n")
    await kept.ended(1)
    await kept.worker(2, b"two\n")
    await kept.until("two\n")
    await kept.state.runs.delete(KEY)
    await kept.ended(2)
    assert await following == "one\ntwo\n"
    assert capsys.readouterr().err == "stepfence local: worker 1 has ended, worker 2 follows\n"


async def test_a_worker_that_is_forgotten_ends_it(kept: Kept) -> None:
    await kept.worker(1, b"one\n")
    following = asyncio.create_task(kept.read(follow=True))
    await kept.until("one\n")
    await kept.state.runs.delete(KEY)
    await kept.ended(1)
    await kept.state.workers.forget("uid-1")
    assert await following == "one\n"
