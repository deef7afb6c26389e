"""Whether a pod is over, as the kubelet alone can say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["end_reported"]


def end_reported(pod: Mapping[str, Any]) -> bool:
    """Whether the kubelet reported an end for every container, and none of the others (sidecars, debuggers) runs.

    A phase alone confirms nothing: pod garbage collection sets it for pods on nodes that it cannot reach. Nor does
    `ContainerStatusUnknown`, the kubelet's word for a container that it could not find.
    """
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    others = [*(status.get("initContainerStatuses") or ()), *(status.get("ephemeralContainerStatuses") or ())]
    ends = [(item.get("state") or {}).get("terminated") for item in containers]
    return (
        0 < len(ends) == len(pod["spec"]["containers"])
        and all(end is not None and end.get("reason") != "ContainerStatusUnknown" for end in ends)
        and not any("running" in (item.get("state") or {}) for item in others)
    )
