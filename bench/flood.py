"""A run's steps while another address opens 2,000 idle TLS connections and sends 5,000 wrong tokens, against the same steps without that.

A real API server and the gateway as it is shipped, in a process of its own, with the rights of the manifests. The flood comes from a third
process, under another source address. Target: the p95 of a step at most doubles, and every step of the run is done.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.report import install_crds, p50, p95, say
from e2e.cluster import Cluster
from e2e.contract.gateways import GatewayProcess, allow_gateways
from e2e.contract.kube import client_of
from e2e.contract.workers import Workers
from stepfence.core.words import Action
from stepfence.sdk import Options, Settings, connect
from stepfence.sdk.run import Run

__all__ = ["main"]

CONNECTIONS, TOKENS = 2000, 5000
STEPS, ROUNDS = 60, 6
_NAMESPACE = "support"


async def main() -> None:
    """Print the latency of steps without and with the flood, and what the flood cost the API server."""
    say(f"flood: rounds of {STEPS} steps, first without, then with {CONNECTIONS} idle connections and {TOKENS} wrong tokens")
    with Cluster("bench-flood", nodes=0) as cluster, tempfile.TemporaryDirectory() as made:
        install_crds(cluster)
        folder = Path(made)
        kubeconfig = allow_gateways(cluster, folder)
        async with client_of(cluster, manager="bench") as client:
            workers = Workers(client, _NAMESPACE)
            await workers.prepare()
            with GatewayProcess("gateway", folder, kubeconfig) as gateway:
                gateway.wait_ready()
                await _measure(workers, gateway, folder)


async def _measure(workers: Workers, gateway: GatewayProcess, folder: Path) -> None:
    quiet: list[float] = []
    flooded: list[float] = []
    await _round(workers, gateway, folder)  # warms both sides up
    for _ in range(ROUNDS):
        quiet += await _round(workers, gateway, folder)
    before = _figures(gateway)
    flood = await _start_flood(gateway, folder)
    began = time.perf_counter()
    while flood.poll() is None:
        flooded += await _round(workers, gateway, folder)
    lasted = time.perf_counter() - began
    after = _figures(gateway)
    told = (flood.stdout.read() if flood.stdout else b"").decode().strip()
    say(f"  steps without the flood: p50 {p50(quiet):.1f} ms, p95 {p95(quiet):.1f} ms ({len(quiet)} steps)")
    say(f"  steps with the flood:    p50 {p50(flooded):.1f} ms, p95 {p95(flooded):.1f} ms ({len(flooded)} steps)")
    say(f"  ratio of p95: {p95(flooded) / p95(quiet):.2f} (target: 2 or less); all steps were done")
    say(f"  the flood, {lasted:.0f} s: {told}")
    gained = {name: int(after.get(name, 0) - before.get(name, 0)) for name in after}
    say(f"  the gateway: {gained}; {_resident(gateway.process.pid):.0f} MB resident")


async def _round(workers: Workers, gateway: GatewayProcess, folder: Path) -> list[float]:
    """Do one run of that many steps; return how long each took."""
    plan = {"steps": [{"id": f"step-{number}", "action": "Create"} for number in range(STEPS)]}
    key = await workers.new_run(plan=plan)
    job = (await workers.run(key))["status"]["worker"]["job"]
    pod = await workers.pod(job, f"{job}-pod")
    token = folder / key.name
    token.write_text(await workers.token(pod))
    url = f"https://127.0.0.1:{gateway.https_port}"
    settings = Settings(url, key.namespace, key.name, token, ca_file=folder / "tls" / "ca.crt")
    async with connect(settings=settings, options=Options(exit_on_stop=False, handle_sigterm=False)) as run:
        times = [await _step(run, number) for number in range(STEPS)]
        await run.finish(None)
    return times


async def _step(run: Run, number: int) -> float:
    began = time.perf_counter()
    await run.step(f"step-{number}", Action.CREATE, {"n": number}, _nothing)
    return time.perf_counter() - began


async def _nothing(payload: Any, _step: Any) -> Any:
    return payload


async def _start_flood(gateway: GatewayProcess, folder: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "e2e.contract.flooding", str(gateway.https_port), str(CONNECTIONS), str(TOKENS)]
    return await asyncio.to_thread(subprocess.Popen, words, stdout=subprocess.PIPE)


def _figures(gateway: GatewayProcess) -> dict[str, float]:
    wanted = r"^(stepfence_(?:token_reviews\w*|gateway_connections\w*(?:\{[^}]*\})?)) (\S+)$"
    return {name: float(value) for name, value in re.findall(wanted, gateway.metrics(), re.MULTILINE) if "_created" not in name}


def _resident(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
