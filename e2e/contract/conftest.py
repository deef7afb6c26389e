"""An API server of our own for the contract tests: etcd and the API server alone, on loopback, up in seconds."""

import os
from collections.abc import Iterator

import pytest

from e2e.cluster import Cluster
from e2e.contract.crd_api import Api, crd_files


@pytest.fixture(scope="session")
def api_server() -> Iterator[Cluster]:
    """The API server, with nothing of ours on it; one for each process of a parallel run."""
    with Cluster("contract-crds" + os.environ.get("PYTEST_XDIST_WORKER", ""), nodes=0) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def api(api_server: Cluster) -> Iterator[Api]:
    """Its HTTP API, with the CRDs of the tree installed."""
    for path in crd_files():
        api_server.kubectl("apply", "--server-side", "-f", str(path))
    with Api(api_server.kubeconfig) as api:
        api.wait_served("stepfence.dev", "agentruns")
        api.wait_served("stepfence.dev", "agentrunrecords")
        yield api
