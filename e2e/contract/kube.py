"""Clients and objects of an API server without nodes, as the tests of stores and gateways need them."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

from e2e.cluster import Cluster, eventually
from stepfence.ports import RunKey, Stored
from stepfence.schema import GROUP, PLURAL, VERSION
from stepfence.stores.kube import KubeRunStore
from stepfence.stores.kube_client import KubeClient, Reply, kube_path

ROOT = Path(__file__).parents[2]
GROUP_VERSION = f"{GROUP}/{VERSION}"
TEMPLATE = {"spec": {"containers": [{"name": "agent", "image": "agent"}]}}


def crd(name: str) -> dict[str, Any]:
    """A CRD of the tree."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "crds" / f"{name}.yaml").read_text())
    return loaded


def newer_crd() -> dict[str, Any]:
    """The CRD of runs as a later version may have it: with a field more in the status, in an entry and in an attempt."""
    newer = copy.deepcopy(crd("agentruns"))
    (version,) = newer["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    entry = status["properties"]["ledger"]["additionalProperties"]
    for schema in (status, entry, entry["properties"]["open"]["items"]):
        schema["properties"]["futureField"] = {"type": "string", "maxLength": 32}
    return newer


def install_crds(cluster: Cluster, *definitions: Mapping[str, Any]) -> None:
    """Apply CRDs and wait until they are served."""
    for definition in definitions:
        name = definition["metadata"]["name"]
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(definition))
        eventually(f"{name} served", partial(_served, cluster, name), seconds=30)


def _served(cluster: Cluster, name: str) -> bool:
    return cluster.try_kubectl("get", name, "--all-namespaces").returncode == 0


@asynccontextmanager
async def client_of(
    cluster: Cluster, *, server: str | None = None, pool: int = 8, seconds: float = 10, manager: str = "stepfence-gateway"
) -> AsyncIterator[KubeClient]:
    """A client as the administrator, straight or by way of a proxy."""
    configuration = Configuration()
    await config.load_kube_config(config_file=str(cluster.kubeconfig), client_configuration=configuration, persist_config=False)
    if server is not None:
        configuration.host = server
    configuration.connection_pool_maxsize = pool
    client = KubeClient(configuration, manager, seconds=seconds)
    try:
        yield client
    finally:
        await client.close()


def good(reply: Reply) -> dict[str, Any]:
    """The object of a reply that must be a success."""
    assert reply.ok, f"{reply.status}: {reply.message}"
    return dict(reply.body)


class Objects:
    """What people, other controllers and kubelets do, through the API."""

    def __init__(self, client: KubeClient, namespace: str = "default") -> None:
        self.client, self.namespace = client, namespace

    async def create_run(self, name: str, **spec: Any) -> RunKey:
        manifest = {
            "apiVersion": GROUP_VERSION,
            "kind": "AgentRun",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"template": TEMPLATE, **spec},
        }
        good(await self.client.post(kube_path(GROUP_VERSION, PLURAL, self.namespace), manifest))
        return RunKey(self.namespace, name)

    async def get(self, group_version: str, resource: str, name: str) -> dict[str, Any]:
        return good(await self.client.get(kube_path(group_version, resource, self.namespace, name)))

    async def run(self, key: RunKey) -> dict[str, Any]:
        return await self.get(GROUP_VERSION, PLURAL, key.name)

    async def stored(self, key: RunKey) -> Stored:
        return KubeRunStore(self.client).read(await self.run(key))

    async def merge(self, path: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        return good(await self.client._call("PATCH", path, {}, changes, "application/merge-patch+json", None))

    async def merge_run(self, key: RunKey, changes: Mapping[str, Any], sub: str | None = None) -> None:
        await self.merge(kube_path(GROUP_VERSION, PLURAL, *key, sub=sub), changes)

    async def delete(self, group_version: str, resource: str, name: str, **options: Any) -> None:
        """Delete and wait until it is gone."""
        path = kube_path(group_version, resource, self.namespace, name)
        good(await self.client._call("DELETE", path, {}, {"propagationPolicy": "Background", **options}, "application/json", None))
        async with asyncio.timeout(20):
            while not (await self.client.get(path)).object_missing:
                pass
