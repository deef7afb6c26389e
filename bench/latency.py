"""One step through SDK, gateway and store, against the floor: one raw status write of the same object, in the same run.

A real API server with the CRDs and all their rules; the gateway in a process of its own over HTTP; begin and complete of a step with an
empty `perform`, so that what is measured is ours. Target: begin + complete within 2.5 times two raw writes at 20 steps.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from bench.report import install_crds, p50, p95, say
from e2e.cluster import Cluster
from stepfence.core.lifecycle import accept
from stepfence.core.model import Run, Worker
from stepfence.core.words import Action, At
from stepfence.ports import RunKey
from stepfence.sdk import Options, Settings, connect
from stepfence.stores.kube_client import KubeClient, kube_path
from stepfence.stores.kube_client import connect as connect_kube

__all__ = ["main"]

STEPS = 20
ROUNDS = 15
NAMESPACE = "default"
GROUP = "stepfence.dev/v1alpha1"


async def main() -> None:
    """Print the latency of a step and its ratio to two raw writes."""
    say(f"latency: {ROUNDS} runs of {STEPS} steps, and two raw status writes for each step of theirs")
    with Cluster("bench-latency", nodes=0) as cluster, tempfile.TemporaryDirectory() as folder:
        install_crds(cluster)
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        gateway = subprocess.Popen([sys.executable, "-m", "bench.bare_gateway", str(port)])
        client = await connect_kube("stepfence-bench")
        try:
            await _until_up(f"http://127.0.0.1:{port}/livez")
            steps, floors = await _rounds(client, port, Path(folder))
        finally:
            await client.close()
            gateway.terminate()
            gateway.wait(30)
    ratio = p50(steps) / (2 * p50(floors))
    say(f"  raw status write at {STEPS} steps: p50 {p50(floors):.1f} ms, p95 {p95(floors):.1f} ms")
    say(f"  begin + complete:              p50 {p50(steps):.1f} ms, p95 {p95(steps):.1f} ms")
    say(f"  ratio to two raw writes: {ratio:.2f} (target: 2.5 or less)")


async def _until_up(url: str) -> None:
    deadline = time.monotonic() + 30
    async with httpx.AsyncClient() as client:
        while time.monotonic() < deadline:
            try:
                if (await client.get(url)).is_success:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.1)
    raise TimeoutError(f"{url} did not answer within 30 s")


async def _rounds(client: KubeClient, port: int, folder: Path) -> tuple[list[float], list[float]]:
    steps: list[float] = []
    floors: list[float] = []
    for number in range(ROUNDS):
        name = f"bench-{number}"
        await _create(client, name)
        (folder / name).write_text(name)
        settings = Settings(f"http://127.0.0.1:{port}", NAMESPACE, name, folder / name)
        async with connect(settings=settings, options=Options(exit_on_stop=False, handle_sigterm=False)) as run:
            for step in range(STEPS):
                began = time.perf_counter()
                await run.step(f"step-{step}", Action.CREATE, {"n": step}, _nothing)
                if number:  # the first round warms both sides up
                    steps.append(time.perf_counter() - began)
                if number and step >= STEPS - 4:
                    floors += await _floor(client, name)
            await run.finish(None)
    return steps[STEPS - 4 :: STEPS] + steps[STEPS - 3 :: STEPS] + steps[STEPS - 2 :: STEPS] + steps[STEPS - 1 :: STEPS], floors


async def _nothing(payload: Any, _step: Any) -> Any:
    return payload


async def _create(client: KubeClient, name: str) -> None:
    plan = [{"id": f"step-{step}", "action": "Create"} for step in range(STEPS)]
    spec = {"template": {"spec": {"containers": [{"name": "worker", "image": "none"}]}}, "plan": {"steps": plan}}
    created = await client.post(
        kube_path(GROUP, "agentruns", NAMESPACE),
        {"apiVersion": GROUP, "kind": "AgentRun", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec},
    )
    assert created.ok, created.message


async def _floor(client: KubeClient, name: str) -> list[float]:
    """Time raw status writes of this object under another name, with the same spec and status, so that no rule or byte differs."""
    source = dict((await client.get(kube_path(GROUP, "agentruns", NAMESPACE, name))).body)
    floor = f"{name}-floor"
    path = kube_path(GROUP, "agentruns", NAMESPACE, floor)
    current = await client.get(path)
    if not current.ok:
        body = {**source, "metadata": {"name": floor, "namespace": NAMESPACE}}
        body.pop("status")
        current = await client.post(kube_path(GROUP, "agentruns", NAMESPACE), body)
    version = int(source["status"]["version"])
    times = []
    for extra in range(3):
        metadata = {"name": floor, "namespace": NAMESPACE, "resourceVersion": current.body["metadata"]["resourceVersion"]}
        status = {**source["status"], "version": version + extra}
        document = {"apiVersion": GROUP, "kind": "AgentRun", "metadata": metadata, "status": status}
        began = time.perf_counter()
        current = await client.put(f"{path}/status", json.loads(json.dumps(document)))
        times.append(time.perf_counter() - began)
        assert current.ok, current.message
    return times[1:]  # the first one brings a new status, the others change it as a transition does


def started(run: Run, at: At) -> tuple[Run, None]:
    """What a controller does before the first worker: used by the bare gateway."""
    from dataclasses import replace

    run = accept(run, at)
    return replace(run, worker=run.worker or Worker(1, f"{run.name}-job", "", at.now)), None


def key_of(name: str) -> RunKey:
    """Where the benchmark's runs are."""
    return RunKey(NAMESPACE, name)
