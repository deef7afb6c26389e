"""One address floods a gateway with idle connections and wrong tokens while a run of another goes on: what that costs, in counts."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from pathlib import Path

from e2e.cluster import Cluster, eventually
from e2e.contract.gateways import GatewayProcess, allow_gateways
from e2e.contract.kube import client_of, crd, install_crds
from e2e.contract.workers import WorkerPod, Workers

CONNECTIONS, TOKENS = 2000, 5000
PER_ADDRESS = 500
REVIEWS = 10  # a second, for one address; five times as many at once
STEPS = 200


def figures(gateway: GatewayProcess) -> dict[str, float]:
    line = r"^(stepfence_(?:token_reviews|gateway_connections)\w*)(?:\{reason=\"([^\"]*)\"\})? (\S+)$"
    found = re.findall(line, gateway.metrics(), re.MULTILINE)
    return {f"{name} {reason}".strip(): float(value) for name, reason, value in found if "_created" not in name}


async def step(worker: WorkerPod, name: str) -> None:
    """Every call of the run is answered, and never with a request to come back."""
    begun = await worker.post(f"/steps/{name}/begin", payload={"step": name})
    assert (begun.status_code, begun.json()["outcome"]) == (200, "Go"), begun.text
    done = await worker.post(f"/steps/{name}/complete", attempt=1, result={"step": name})
    assert (done.status_code, done.json()["outcome"]) == (200, "Done"), done.text


async def test_a_flood_of_idle_connections_and_wrong_tokens_stays_within_its_bounds_and_every_call_of_a_run_is_answered(
    tmp_path: Path,
) -> None:
    with Cluster("contract-flood", nodes=0) as cluster:
        install_crds(cluster, crd("agentruns"), crd("agentrunrecords"))
        settings = {"max_connections_per_address": str(PER_ADDRESS), "new_connections_per_address": "400", "head_seconds": "60"}
        with GatewayProcess("gateway", tmp_path, allow_gateways(cluster, tmp_path), **settings) as gateway:
            gateway.wait_ready()
            async with client_of(cluster, manager="others") as client, gateway.client() as https:
                workers = Workers(client, "support")
                await workers.prepare()
                key = await workers.new_run(plan={"steps": [{"id": f"step-{number}", "action": "Create"} for number in range(STEPS)]})
                job = (await workers.run(key))["status"]["worker"]["job"]
                worker = await workers.worker(key, job, "pod-1", https)
                await worker.claim()
                await flooded(worker, gateway)


async def flooded(worker: WorkerPod, gateway: GatewayProcess) -> None:
    began, before = time.monotonic(), figures(gateway)
    words = ("-m", "e2e.contract.flooding", str(gateway.https_port), str(CONNECTIONS), str(TOKENS))
    flood = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    try:
        ends, done, most = asyncio.create_task(flood.communicate()), 0, 0.0
        while not ends.done() and done < STEPS:
            await step(worker, f"step-{done}")
            done += 1
            most = max(most, figures(gateway)["stepfence_gateway_connections"])
        told = (await ends)[0].decode()
    finally:
        if flood.returncode is None:
            flood.kill()
    gained = {name: value - before.get(name, 0) for name, value in figures(gateway).items()}
    evidence = f"{told}{gained}, at most {most} connections, {done} steps"
    assert done > 0, evidence
    # Its own, and one of the worker.
    assert most <= PER_ADDRESS + 1, evidence
    assert gained.get("stepfence_gateway_connections_closed_total gave-way", 0) >= CONNECTIONS - PER_ADDRESS, evidence
    assert gained["stepfence_token_reviews_total"] <= REVIEWS * (time.monotonic() - began + 5) + 1, evidence
    assert gained["stepfence_token_reviews_limited_total"] >= TOKENS / 2, evidence
    eventually("the flood's places to be free", lambda: figures(gateway)["stepfence_gateway_connections"] <= 1, seconds=30)
