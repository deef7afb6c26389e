"""Killing what Kubernetes would rather end gently, and the verbs that only a cluster of our own has."""

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.cluster import Cluster
from e2e.pods.world import Space, World


def require_faults(world: World) -> Cluster:
    """The cluster's fault verbs; a test that needs them is skipped, with the reason, on a cluster that has none."""
    if world.target.faults is None:
        pytest.skip(f"a {world.target.source} cluster has no verbs to freeze its API server or to cut off a node")
    return world.target.faults


def of_pod(world: World, namespace: str, pod: str) -> list[int]:
    """This machine's ids of the processes in a pod, but for its sandbox's `pause`; empty where they cannot be seen from here."""
    found = world.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")
    assert found is not None, f"there is no pod {pod}"
    return [] if world.target.faults is None else _in_cgroup(str(found["metadata"]["uid"]))


def sigkill(world: World, namespace: str, pod: str) -> None:
    """SIGKILL to every process of a pod's containers, as the kernel's memory killer would; the kubelet starts them anew.

    Where the pods' processes cannot be seen from here, the pod is deleted without grace, which comes closest.
    """
    pids = of_pod(world, namespace, pod)
    if not pids:
        world.api.delete(f"/api/v1/namespaces/{namespace}/pods/{pod}", grace=0)
    kill(pids)


def kill(pids: Iterable[int]) -> None:
    """SIGKILL to processes of this machine."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _in_cgroup(uid: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and uid in (folder / "cgroup").read_text():
                command = (folder / "cmdline").read_bytes()
                if command and b"pause" not in command.split(b"\0")[0]:
                    found.append(int(folder.name))
        except OSError:
            continue  # it ended while we looked
    return found


@contextmanager
def frozen_api_server(space: Space) -> Iterator[None]:
    """The API server answers nobody for a while. Afterwards the nodes are Ready again and the provider is reached."""
    cluster = require_faults(space.world)
    with cluster.frozen("kube-apiserver"):
        yield
    for node in cluster.nodes:
        cluster.wait_node(node, ready=True)
    space.until("provider that is reached", space.provider.answers)


def let_pass(seconds: float) -> None:
    """Let time pass, where the passing of time is the fault itself."""
    threading.Event().wait(seconds)
