"""`stepfence local` as its user runs it: a process of its own, over a state file, with real workers and a real provider."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from e2e.provider.client import ProviderClient
from e2e.provider.wire import Happening

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
PLAN = [{"id": "lookup-order", "action": "Read"}, {"id": "refund", "action": "Payment"}, {"id": "notify", "action": "Create"}]
Line = dict[str, Any]


@dataclass
class Running:
    """One `stepfence local run -o json`; `lines`: what it has told so far."""

    process: asyncio.subprocess.Process
    lines: list[Line] = field(default_factory=list)

    async def next(self) -> Line | None:
        """The next line; None at its end."""
        assert self.process.stdout is not None
        text = await asyncio.wait_for(self.process.stdout.readline(), SECONDS)
        if not text:
            return None
        self.lines.append(json.loads(text))
        return self.lines[-1]

    async def until(self, reason: str) -> Line:
        """The first line of that reason from here on."""
        while (line := await self.next()) is not None:
            if line["reason"] == reason:
                return line
        raise AssertionError(f"it ended without {reason}: {self.lines}, exit code {await self.process.wait()}")

    async def over(self) -> int:
        """Read to its end and return its exit code."""
        while await self.next() is not None:
            pass
        return await asyncio.wait_for(self.process.wait(), SECONDS)

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.over()

    def reasons(self) -> list[str]:
        return [line["reason"] for line in self.lines]


@dataclass
class World:
    folder: Path
    provider: str = ""
    control: ProviderClient = field(default_factory=ProviderClient)
    running: list[Running] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.folder / "state.db"

    @property
    def environ(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        return {"PATH": path, "PYTHONPATH": str(ROOT / "operator"), "HOME": str(self.folder), "PROVIDER_URL": self.provider}

    def manifest(self, command: list[str], name: str = "refund-4711", *, order: str = "4711", **spec: Any) -> Path:
        """Write a manifest and return its path."""
        template = {"spec": {"containers": [{"name": "worker", "command": command}]}}
        body = {"input": {"order": order}, "plan": {"steps": PLAN}, "template": template, **spec}
        metadata = {"name": name, "namespace": "support"}
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"apiVersion": "stepfence.dev/v1alpha1", "kind": "AgentRun", "metadata": metadata, "spec": body}))
        return path

    def refund(self, name: str = "refund-4711", **spec: Any) -> Path:
        return self.manifest(["python", str(ROOT / "examples/refund.py")], name, **spec)

    async def run(self, *words: Path | str) -> Running:
        """Start `stepfence local run`."""
        words = (sys.executable, "-m", "stepfence.cli", "local", "--state", str(self.state), "run", "-o", "json", *map(str, words))
        process = await asyncio.create_subprocess_exec(*words, cwd=self.folder, env=self.environ, stdout=asyncio.subprocess.PIPE)
        self.running.append(Running(process))
        return self.running[-1]

    async def local(self, *words: str) -> tuple[int, str]:
        """Run another command and return its exit code and all that it printed."""
        return await self.shell([sys.executable, "-m", "stepfence.cli", "local", "--state", str(self.state), *words])

    async def shell(self, words: list[str]) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *words, cwd=self.folder, env=self.environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
        return process.returncode or 0, output.decode()

    async def document(self, name: str = "refund-4711") -> dict[str, Any]:
        code, output = await self.local("-n", "support", "get", name)
        assert code == 0, output
        document: dict[str, Any] = yaml.safe_load(output)
        return document

    async def effects(self) -> list[str]:
        return [entry.route for entry in (await self.control.log()).entries if entry.happening is Happening.EFFECT]

    async def close(self) -> None:
        """End what a test left: runners first, then whatever they have started."""
        for running in self.running:
            with contextlib.suppress(ProcessLookupError):
                running.process.kill()
            await running.process.communicate()
        if self.state.exists():
            # A keeper on its way, whose environment cannot be read yet, finds no row and starts nothing.
            with contextlib.closing(sqlite3.connect(self.state, isolation_level=None)) as connection, contextlib.suppress(sqlite3.Error):
                connection.execute("DELETE FROM workers WHERE keeper_pid IS NULL")
        await holds(lambda: not self.killed(f"HOME={self.folder}"))

    @staticmethod
    def killed(mark: str) -> list[int]:
        """Kill every process that has that in its environment, and return them."""
        found = with_environ(mark)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    def processes(self) -> list[int]:
        """Every process that was started by a runner of this folder."""
        return with_environ(f"STEPFENCE_STATE_DIR={self.state}.workers/", whole=False)


def with_environ(word: str, *, whole: bool = True) -> list[int]:
    """Every process that has that variable; not `whole`: one whose value begins so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if any(each == word.encode() if whole else each.startswith(word.encode()) for each in words):
                found.append(int(path.parent.name))
    return found


async def holds(fact: Callable[[], bool], *, seconds: float = SECONDS) -> None:
    """Wait for a fact that nobody announces."""
    async with asyncio.timeout(seconds):
        while not fact():
            await asyncio.wait({asyncio.ensure_future(asyncio.to_thread(os.sched_yield))}, timeout=0.02)
