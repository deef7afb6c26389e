"""What holds for every test: its tier, named in the report, and its deadline."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

ROOT = Path(__file__).parent
MARKED_TIERS = ("gitops", "network_policy", "cluster_choice", "contract", "pods")
# A file name says the tier of all its tests: `test_gitops_flux.py`.
NAMED_TIERS = {"test_gitops": "gitops", "test_network_polic": "network_policy", "test_cluster_choice": "cluster_choice"}
E2E_TIMEOUT_SECONDS = 900


def tier_of(item: pytest.Item) -> str:
    """Name the tier of a test: its own marker wins, then the name of its file, then the folder."""
    for marked in MARKED_TIERS:
        if item.get_closest_marker(marked):
            return marked
    for start, named in NAMED_TIERS.items():
        if item.path.name.startswith(start):
            return named
    parts = item.path.relative_to(ROOT).parts
    if parts[0] != "e2e":
        return "unit"
    return next((folder for folder in ("gitops", "contract", "local") if folder in parts), "pods")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write the tier into the JUnit report; give tests that may build a cluster first a longer deadline."""
    for item in items:
        tier = tier_of(item)
        item.user_properties.append(("tier", tier))
        if item.path.is_relative_to(ROOT / "e2e") and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(E2E_TIMEOUT_SECONDS))


@pytest.fixture(autouse=True)
def _logs_of_no_other_test() -> Iterator[None]:
    """A test that runs a whole command sets up its logs, on a stream that ends with it."""
    yield
    structlog.reset_defaults()
