"""What 1,000 idle runs cost: the controller's memory, and its writes in a minute. Target: under 300 MB, no write.

A real API server and the controller in a process of its own. The runs are suspended, each with a plan of 20 steps.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from bench.report import install_crds, say
from e2e.cluster import Cluster
from stepfence.stores.kube_client import KubeClient, connect, kube_path

__all__ = ["main"]

RUNS = 1000
WATCHED = ("agentruns", "jobs", "pods", "agentrunrecords", "events", "leases")
GROUP = "stepfence.dev/v1alpha1"
_WRITES = re.compile(r"^apiserver_request_total\{(?P<labels>[^}]*)\} (?P<count>\S+)$", re.MULTILINE)


async def main() -> None:
    """Print memory and writes."""
    say(f"idle: {RUNS} runs that wait for people")
    with Cluster("bench-idle", nodes=0) as cluster:
        install_crds(cluster)
        cluster.kubectl("create", "namespace", "stepfence-system")
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
        client = await connect("stepfence-bench")
        try:
            await _create(client)
            await _measure(cluster, client)
        finally:
            await client.close()


async def _create(client: KubeClient) -> None:
    slots = asyncio.Semaphore(16)

    async def one(number: int) -> None:
        plan = [{"id": f"step-{step}", "action": "Create"} for step in range(20)]
        template = {"spec": {"containers": [{"name": "worker", "image": "none"}]}}
        spec = {"suspend": True, "template": template, "plan": {"steps": plan}}
        body = {"apiVersion": GROUP, "kind": "AgentRun", "metadata": {"name": f"idle-{number}", "namespace": "default"}, "spec": spec}
        async with slots:
            created = await client.post(kube_path(GROUP, "agentruns", "default"), body)
        assert created.ok, created.message

    await asyncio.gather(*(one(number) for number in range(RUNS)))


async def _measure(cluster: Cluster, client: KubeClient) -> None:
    environ = {**os.environ, "STEPFENCE_POD_NAMESPACE": "stepfence-system", "STEPFENCE_HEALTH_PORT": "18080"}
    began = time.monotonic()
    controller = subprocess.Popen([sys.executable, "-m", "stepfence.controller"], env=environ, stdout=subprocess.DEVNULL)
    try:
        await _until_all_held(client)
        say(f"  start to all accepted: {time.monotonic() - began:.1f} s")
        await asyncio.sleep(20)  # events and leases of the start come to rest
        before = await _writes(cluster)
        await asyncio.sleep(60)
        after = await _writes(cluster)
        memory = _resident(controller.pid)
    finally:
        controller.terminate()
        controller.wait(30)
    changed = {name: int(after[name] - before[name]) for name in WATCHED}
    say(f"  controller: {memory:.0f} MB resident (target: under 300)")
    say(f"  writes in one minute: {changed} (target: 0 to agentruns, jobs and pods; its own Lease is renewed)")


async def _until_all_held(client: KubeClient) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        listed = await client.get(kube_path(GROUP, "agentruns", "default"), query={"fieldSelector": "status.phase=Held"}, seconds=60)
        if len(listed.body["items"]) >= RUNS:
            return
        await asyncio.sleep(2)
    raise TimeoutError("not all runs were accepted within 300 s")


async def _writes(cluster: Cluster) -> dict[str, float]:
    text = await asyncio.to_thread(cluster.kubectl, "get", "--raw", "/metrics")
    counts = dict.fromkeys(WATCHED, 0.0)
    for match in _WRITES.finditer(text):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
        if labels.get("verb") in ("POST", "PUT", "PATCH", "DELETE", "APPLY") and labels.get("resource") in counts:
            counts[labels["resource"]] += float(match["count"])
    return counts


def _resident(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
