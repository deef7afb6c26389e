"""What holds for every test: its tier, named in the report, and its deadline."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent
TIER_MARKERS = ("contract", "pods", "cluster_choice", "gitops", "network_policy")
E2E_TIMEOUT_SECONDS = 900


def tier_of(item: pytest.Item) -> str:
    """Name the tier of a test: a tier marker of its own wins, else its folder tells."""
    for name in ("gitops", "network_policy", "cluster_choice", "contract", "pods"):
        if item.get_closest_marker(name):
            return name
    parts = item.path.relative_to(ROOT).parts
    if parts[0] != "e2e":
        return "unit"
    return "contract" if "contract" in parts else "pods"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write the tier into the JUnit report; give tests that may build a cluster first a longer deadline."""
    for item in items:
        tier = tier_of(item)
        item.user_properties.append(("tier", tier))
        if tier != "unit" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(E2E_TIMEOUT_SECONDS))
