"""Ready endpoints of a Service: how many servers share something."""

from __future__ import annotations

from stepfence.stores.kube_client import KubeClient, kube_path, refusal

__all__ = ["ready_endpoints"]

_SERVICE_LABEL = "kubernetes.io/service-name"


async def ready_endpoints(client: KubeClient, namespace: str, service: str) -> int:
    """Return how many pods behind a Service are ready. Raises `Refused`, `Unknown`."""
    path = kube_path("discovery.k8s.io/v1", "endpointslices", namespace)
    reply = await client.get(path, query={"labelSelector": f"{_SERVICE_LABEL}={service}"})
    if not reply.ok:
        raise refusal(reply, f"endpoints of Service {namespace}/{service}")
    # By pod: one that has an address of each IP family stands in two slices.
    ready = {
        (endpoint.get("targetRef") or {}).get("uid") or endpoint["addresses"][0]
        for item in reply.body.get("items") or ()
        for endpoint in item.get("endpoints") or ()
        # Absent means ready (the API says: unknown is to be taken as ready).
        if (endpoint.get("conditions") or {}).get("ready") is not False
    }
    return len(ready)
