"""Figures as people read them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

from e2e.cluster import Cluster, eventually

__all__ = ["install_crds", "p50", "p95", "say"]


def p50(seconds: Sequence[float]) -> float:
    """Return the median in milliseconds."""
    return statistics.median(seconds) * 1000


def p95(seconds: Sequence[float]) -> float:
    """Return the 95th percentile in milliseconds."""
    return statistics.quantiles(seconds, n=20)[-1] * 1000


def say(line: str) -> None:
    """Print at once, so that a long benchmark shows where it is."""
    print(line, flush=True)


def install_crds(cluster: Cluster) -> None:
    """Apply the CRDs and wait until they are served."""
    cluster.kubectl("apply", "--server-side", "-k", "crds")
    eventually("CRDs that are served", lambda: _served(cluster), seconds=60)


def _served(cluster: Cluster) -> bool:
    items = json.loads(cluster.kubectl("get", "crd", "-o", "json"))["items"]
    held = [each for item in items for each in item["status"]["conditions"] or () if each["type"] == "Established"]
    return [each["status"] for each in held] == ["True", "True"]
