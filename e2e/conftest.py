"""The cluster that every test of real pods shares: chosen once, with what is under test installed on it."""

import os
from collections.abc import Callable, Iterator

import pytest

from e2e.choice import Target, acquire

CLUSTER_NAME = os.environ.get("STEPFENCE_CLUSTER_NAME", "e2e")


@pytest.fixture(scope="session")
def target() -> Iterator[Target]:
    """A cluster with nodes: the one that is named, else kind, else our own. See `e2e.choice`."""
    with acquire(CLUSTER_NAME) as target:
        yield target


@pytest.fixture(autouse=True)
def _report_cluster(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Name in the report where the cluster of a test came from."""
    if "target" in request.fixturenames:
        found: Target = request.getfixturevalue("target")
        record_property("cluster", found.source.value)
