"""What tests of real pods get: the world that all share, and a namespace of their own with a reckoning at its end."""

import itertools
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e import install
from e2e.choice import Source, Target
from e2e.pods.api import RUNS, Api, proxied, service_url
from e2e.pods.outside import Outside
from e2e.pods.runs import AGENTS
from e2e.pods.watch import Watcher
from e2e.pods.world import Space, World

OVERLAY = Path(__file__).parent / "overlay"
AGENT_FOLDER = Path(__file__).parent.parent / "agents"
PROVIDER_NAMESPACE = "stepfence-provider"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def world(target: Target) -> Iterator[World]:
    """Stepfence installed with short times, the shared provider, and the watcher that sees every write of every run."""
    with ExitStack() as cleanup:
        if target.source is Source.NAMED and not install.installed(target):
            cleanup.callback(install.uninstall, target, OVERLAY)
        install.install(target, OVERLAY)
        api = Api(cleanup.enter_context(proxied(target)))
        cleanup.callback(api.close)
        nodes = sorted(node["metadata"]["name"] for node in api.items("/api/v1/nodes"))
        _make_namespace(api, PROVIDER_NAMESPACE)
        install.apply_provider(target, PROVIDER_NAMESPACE, node=nodes[0])
        provider = Outside(service_url(api, PROVIDER_NAMESPACE))
        watcher = Watcher(api.url)
        watcher.start()
        yield World(target, api, watcher, provider, f"http://provider.{PROVIDER_NAMESPACE}:8080", nodes)
        provider.close()
        watcher.ask_to_stop()
        _settle(watcher)
        api.delete(f"/api/v1/namespaces/{PROVIDER_NAMESPACE}")


def _settle(watcher: Watcher) -> None:
    if watcher.broken or not watcher.alive:
        pytest.fail(f"invariants were broken, or nobody watched them ({watcher.failure!r}):\n" + "\n".join(watcher.broken))


def _make_namespace(api: Api, name: str) -> None:
    # Workers, the provider and whatever else we start pass the strictest Pod Security level.
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    path = f"/api/v1/namespaces/{name}"
    if api.get(path) is None:
        api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})


@pytest.fixture
def space(world: World, request: pytest.FixtureRequest) -> Iterator[Space]:
    """A namespace of the test's own. At its end no step has had more effects than it may, and no invariant was broken."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:40].strip("-")
    namespace = f"t{next(_numbers)}-{os.getpid() % 10000}-{words}"
    _make_namespace(world.api, namespace)
    data = {path.name: path.read_text() for path in sorted(AGENT_FOLDER.glob("*.py"))}
    agents = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": AGENTS}, "data": data}
    world.api.create(f"/api/v1/namespaces/{namespace}/configmaps", agents)
    space = Space(world, namespace)
    try:
        yield space
        _reckon(space)
    finally:
        space.close()
        _forget(world, namespace)


def _forget(world: World, namespace: str) -> None:
    """Delete the test's runs. On a cluster of our own the empty namespace goes with the cluster, which is cheaper."""
    world.api.delete(f"{RUNS}/namespaces/{namespace}/agentruns")
    if world.target.source is Source.NAMED:
        world.api.delete(f"/api/v1/namespaces/{namespace}")


def _reckon(space: Space) -> None:
    """Hold the provider's own log, and all that the watcher saw, against what may be."""
    for run in space.world.api.items(f"{RUNS}/namespaces/{space.namespace}/agentruns"):
        space.until_seen(run["metadata"]["name"], run.get("status", {}).get("version", 0))
    assert space.world.watcher.alive, f"the watcher ended: {space.world.watcher.failure!r}"
    mine = [broken for broken in space.world.watcher.broken if broken.startswith(f"{space.namespace}/")]
    assert mine == []
    assert space.repeated_effects() == []
