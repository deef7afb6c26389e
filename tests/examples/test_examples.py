"""The example workers as real processes, against the gateway's own routes and the example provider, over real connections."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from e2e.provider.client import ProviderClient, matcher
from e2e.provider.server import running
from e2e.provider.wire import Fault, Happening, Route
from stepfence.testing import MemoryCluster, MemoryRun, MemoryWorker
from tests.sdk import web

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
PLAN: list[dict[str, Any]] = [
    {"id": "lookup-order", "action": "Read"},
    {"id": "refund", "action": "Payment"},
    {"id": "notify", "action": "Create"},
]
PYTHON = [sys.executable, "examples/refund.py"]
SHELL = ["/bin/sh", "examples/refund.sh"]


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@contextlib.asynccontextmanager
async def gateway(cluster: MemoryCluster) -> AsyncIterator[str]:
    """Serve the memory cluster's gateway on a loopback socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = _Server(uvicorn.Config(cluster.app, log_level="warning", access_log=False, lifespan="off"))
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait({serving}, timeout=SECONDS)


@dataclass
class World:
    cluster: MemoryCluster
    run: MemoryRun
    gateway: str
    provider: str
    control: ProviderClient
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    def environ(self, worker: MemoryWorker) -> dict[str, str]:
        given = worker.settings
        return {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "operator"),
            "PROVIDER_URL": self.provider,
            "STEPFENCE_GATEWAY": self.gateway,
            "STEPFENCE_NAMESPACE": given.namespace,
            "STEPFENCE_RUN": given.run,
            "STEPFENCE_RUN_UID": given.run_uid,
            "STEPFENCE_WORKER": given.worker,
            "STEPFENCE_TOKEN_FILE": str(given.token_file),
            "STEPFENCE_STATE_DIR": str(given.state_dir),
        }

    async def start(self, worker: MemoryWorker, argv: list[str]) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=ROOT,
            env=self.environ(worker),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    async def stop(self) -> None:
        """End what a failed test left."""
        for process in self.processes:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.communicate()

    async def effects(self) -> list[str]:
        return [entry.route for entry in (await self.control.log()).entries if entry.happening is Happening.EFFECT]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with MemoryCluster() as cluster, running() as provider, ProviderClient(provider) as control, gateway(cluster) as url:
        run = await cluster.create("refund-4711", plan=PLAN, input={"order": "4711"})
        made = World(cluster, run, url, provider, control)
        try:
            yield made
        finally:
            await made.stop()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    async with asyncio.timeout(SECONDS):
        output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.mark.parametrize("argv", [PYTHON, SHELL], ids=["python", "shell"])
async def test_the_example_refunds_once_and_succeeds(argv: list[str], world: World) -> None:
    worker = await world.run.worker()
    code, output = await ended(await world.start(worker, argv))
    assert code == 0, output
    await worker.ended(0)
    assert world.run.phase == "Succeeded"
    assert await world.effects() == [Route.CREATE_REFUND, Route.CREATE_NOTIFICATION]


async def test_killed_between_effect_and_record_it_asks_and_then_goes_on(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, after=Fault(hang=True))
    worker = await world.run.worker()
    process = await world.start(worker, PYTHON)
    await world.control.wait_for(matcher(Happening.HANG), seconds=SECONDS)
    os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    await worker.kill()
    await world.control.clear_rules()
    await ended(process)
    assert world.run.phase == "NeedsReconciliation"
    (question,) = world.run.questions
    await world.run.answer(question, "Happened", result={"id": "re_1", "amount": 4200})
    second = await world.run.worker()
    code, output = await ended(await world.start(second, PYTHON))
    assert code == 0, output
    assert world.run.phase == "Succeeded"
    assert await world.effects() == [Route.CREATE_REFUND, Route.CREATE_NOTIFICATION]


async def test_sigterm_in_the_middle_of_a_refund_drains_and_another_worker_goes_on(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, before=Fault(hang=True))
    worker = await world.run.worker()
    process = await world.start(worker, PYTHON)
    await world.control.wait_for(matcher(Happening.HANG), seconds=SECONDS)
    process.terminate()
    await world.control.release()
    code, output = await ended(process)
    assert code == 75, output
    assert "Traceback" not in output
    await worker.ended(75)
    assert world.run.status["ledger"]["refund"]["state"] == "Done"
    second = await world.run.worker()
    code, output = await ended(await world.start(second, PYTHON))
    assert code == 0, output
    assert await world.effects() == [Route.CREATE_REFUND, Route.CREATE_NOTIFICATION]


@pytest.mark.parametrize("argv", [PYTHON, SHELL], ids=["python", "shell"])
async def test_the_prestop_command_waits_for_the_step_and_for_the_release(argv: list[str], world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, before=Fault(hang=True))
    worker = await world.run.worker()
    process = await world.start(worker, argv)
    await world.control.wait_for(matcher(Happening.HANG), seconds=SECONDS)
    drain = await world.start(worker, [sys.executable, "-m", "stepfence.cli", "drain"])
    async with asyncio.timeout(SECONDS):
        while not world.run.status.get("holder", {}).get("draining"):
            await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=0.02)
    await world.control.release()
    code, output = await ended(drain)
    assert code == 0, output
    assert "holder" not in world.run.status
    code, output = await ended(process)
    assert code == 75, output
    assert world.run.status["ledger"]["refund"]["state"] == "Done"
    assert await world.effects() == [Route.CREATE_REFUND]


@pytest.mark.parametrize(
    ("scene", "code"),
    [
        (web.answers(402), 65),
        (web.answers(409), 1),
        (web.answers(413), 1),
        (web.answers(303, applies=True, Location="/receipts/1"), 1),
        (web.answers(503, applies=True), 1),
        (web.applies_and_hangs_up, 1),
    ],
)
async def test_a_call_for_a_script_says_no_only_by_an_answer_that_means_it(scene: web.Scene, code: int) -> None:
    with web.provider(scene) as provider:
        assert await call(provider.port) == code


async def test_a_call_for_a_script_says_no_when_nothing_listens() -> None:
    assert await call(9) == 65


async def call(port: int) -> int:
    """Run `examples/call.py` against that port; its exit code."""
    environ = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT / "operator"),
        "PROVIDER_URL": f"http://127.0.0.1:{port}",
        "STEPFENCE_KEY": "sf1-refund",
        "STEPFENCE_PAYLOAD": "{}",
        "STEPFENCE_NAMESPACE": "support",
        "STEPFENCE_RUN": "refund-4711",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "examples/call.py", "POST", "/refunds", cwd=ROOT, env=environ, stderr=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(SECONDS):
        return await process.wait()


async def test_a_refused_refund_fails_the_step_and_nobody_is_asked(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, before=Fault(status=402))
    worker = await world.run.worker()
    code, output = await ended(await world.start(worker, PYTHON))
    assert code == 1
    assert "StepFailed" in output
    assert world.run.questions == {}
    assert await world.effects() == []
