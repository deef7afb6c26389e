"""From creating a run to its worker's claim on real pods, against the floor: from creating a bare Job to its running process.

Both pods start the same interpreter from the same image and import the SDK, in turn, in the same run.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.report import p50, say
from e2e.choice import Target, acquire, kubectl
from e2e.install import apply_provider, install
from stepfence.stores.kube_client import KubeClient, connect, kube_path

__all__ = ["main"]

ROUNDS = 8
NAMESPACE = "bench-claim"
GROUP = "stepfence.dev/v1alpha1"


async def main() -> None:
    """Print both medians and their ratio."""
    say(f"claim: {ROUNDS} runs and {ROUNDS} bare Jobs, in turn")
    with acquire("bench-claim") as target:
        await asyncio.to_thread(_prepare, target)
        os.environ["KUBECONFIG"] = str(target.kubeconfig)
        client = await connect("stepfence-bench")
        try:
            claims, floors = await _rounds(client)
        finally:
            await client.close()
            await asyncio.to_thread(kubectl, target, "delete", "namespace", NAMESPACE, "--wait=false")
    say(f"  bare Job to running process: p50 {p50(floors):.0f} ms")
    say(f"  run to claim:                p50 {p50(claims):.0f} ms")
    say(f"  ratio: {p50(claims) / p50(floors):.2f}")


def _prepare(target: Target) -> None:
    install(target, say=lambda text: say(f"  {text}"))
    kubectl(target, "create", "namespace", NAMESPACE)
    apply_provider(target, NAMESPACE)


async def _rounds(client: KubeClient) -> tuple[list[float], list[float]]:
    sample = yaml.safe_load(Path("manifests/samples/refund.yaml").read_text())
    sample["spec"].pop("runID", None)
    claims, floors = [], []
    for number in range(ROUNDS):
        floors.append(await _job(client, sample, f"bare-{number}"))
        claims.append(await _run(client, sample, f"run-{number}"))
    return claims[1:], floors[1:]  # the first of each warms the nodes up


async def _run(client: KubeClient, sample: Mapping[str, Any], name: str) -> float:
    manifest = {**sample, "metadata": {"name": name, "namespace": NAMESPACE}}
    path = kube_path(GROUP, "agentruns", NAMESPACE)
    return await _timed(client, path, manifest, lambda found: found.get("status", {}).get("fencingToken", 0) > 0)


async def _job(client: KubeClient, sample: Mapping[str, Any], name: str) -> float:
    template = json.loads(json.dumps(sample["spec"]["template"]))
    template["spec"]["restartPolicy"] = "Never"
    container = template["spec"]["containers"][0]
    container["command"] = ["python", "-c", "import stepfence.sdk, time; time.sleep(3)"]
    container["readinessProbe"] = None
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": NAMESPACE}}
    manifest = {**body, "spec": {"backoffLimit": 0, "template": template}}
    return await _timed(client, kube_path("batch/v1", "jobs", NAMESPACE), manifest, lambda job: job.get("status", {}).get("ready", 0) > 0)


async def _timed(client: KubeClient, path: str, manifest: Mapping[str, Any], there: Callable[[Mapping[str, Any]], bool]) -> float:
    began = time.perf_counter()
    created = await client.post(path, manifest)
    assert created.ok, created.message
    while time.perf_counter() - began < 120:
        found = await client.get(f"{path}/{manifest['metadata']['name']}")
        if there(found.body):
            return time.perf_counter() - began
        await asyncio.sleep(0.01)
    raise TimeoutError(f"{manifest['kind']} {manifest['metadata']['name']} did not get there within 120 s")
