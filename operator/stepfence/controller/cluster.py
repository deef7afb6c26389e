"""What the controller does to the cluster beside writing runs: Jobs, pods, identity marks, Events; each call says what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from stepfence.controller.jobs import MANAGED_BY
from stepfence.core.errors import Code, Refused
from stepfence.ports import RunKey
from stepfence.schema import GROUP, IDENTITY_ANNOTATION, PLURAL, VERSION
from stepfence.schema.times import parse_time
from stepfence.stores.kube_client import KubeClient, Reply, kube_path, refusal

__all__ = ["Cluster", "Created", "KubeCluster", "NotCreated"]

Object = Mapping[str, Any]
_RUNS = f"{GROUP}/{VERSION}"
_PAGE = 500


@dataclass(frozen=True, slots=True)
class Created:
    """The Job stands, made now or before. `job` is the object."""

    job: Object
    now: bool


@dataclass(frozen=True, slots=True)
class NotCreated:
    """The API server refused the Job. `invalid`: it would refuse the same again."""

    message: str
    invalid: bool


class Cluster(Protocol):
    """Every call raises `Unknown` when the API server does not answer, and `Refused` for what its caller cannot mend."""

    async def run_object(self, key: RunKey) -> Object | None:
        """Return the whole AgentRun; None when there is none."""
        ...

    async def mark(self, key: RunKey, uid: str) -> bool:
        """Write the run's own uid into its identity annotation; False when the run is gone."""
        ...

    async def job(self, namespace: str, name: str) -> Object | None:
        """Return a Job; None when there is none."""
        ...

    async def create_job(self, job: Object) -> Created | NotCreated:
        """Make a Job, or return the one that has its name."""
        ...

    async def pod(self, namespace: str, name: str) -> Object | None:
        """Return a pod; None when there is none."""
        ...

    async def delete_pod(self, namespace: str, name: str, uid: str) -> bool:
        """Delete a pod gracefully; False when it is not there."""
        ...

    async def delete_job(self, namespace: str, name: str, uid: str) -> bool:
        """Delete a Job with its pods; False when it is not there."""
        ...

    async def create_refused(self, namespace: str, job_uid: str) -> str | None:
        """Return the message of the newest FailedCreate Event of a Job."""
        ...

    async def lease_renewed_at(self, namespace: str, job: str, pod_uid: str) -> datetime | None:
        """Return when that pod renewed its worker's Lease last."""
        ...

    async def post_event(self, event: Object) -> None:
        """Create an Event; one that stands already is left."""
        ...

    async def labelled(self, kind: str) -> frozenset[str]:
        """Return the uids of all Jobs (`jobs`) or pods (`pods`) that carry our label."""
        ...


class KubeCluster:
    """The real one."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def run_object(self, key: RunKey) -> Object | None:
        """See `Cluster.run_object`."""
        return await self._object(kube_path(_RUNS, PLURAL, *key))

    async def mark(self, key: RunKey, uid: str) -> bool:
        """See `Cluster.mark`."""
        patch = {"metadata": {"uid": uid, "annotations": {IDENTITY_ANNOTATION: uid}}}
        reply = await self._client.merge(kube_path(_RUNS, PLURAL, *key), patch)
        return self._took_effect(reply, f"AgentRun {key.namespace}/{key.name}")

    async def job(self, namespace: str, name: str) -> Object | None:
        """See `Cluster.job`."""
        return await self._object(kube_path("batch/v1", "jobs", namespace, name))

    async def create_job(self, job: Object) -> Created | NotCreated:
        """See `Cluster.create_job`."""
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        reply = await self._client.post(kube_path("batch/v1", "jobs", namespace), job)
        if reply.ok:
            return Created(reply.body, now=True)
        if reply.status == 409 and reply.body.get("reason") == "AlreadyExists":
            standing = await self.job(namespace, name)
            return NotCreated(f"Job {name} was there and is gone", invalid=False) if standing is None else Created(standing, now=False)
        if reply.status in (400, 422):
            return NotCreated(reply.message, invalid=True)
        if reply.status in (403, 404):
            # A quota, a policy, a namespace that is being terminated: shown to people, and tried again.
            return NotCreated(reply.message, invalid=False)
        raise refusal(reply, f"Job {namespace}/{name}")

    async def pod(self, namespace: str, name: str) -> Object | None:
        """See `Cluster.pod`."""
        return await self._object(kube_path("v1", "pods", namespace, name))

    async def delete_pod(self, namespace: str, name: str, uid: str) -> bool:
        """See `Cluster.delete_pod`."""
        return self._took_effect(await self._client.delete(kube_path("v1", "pods", namespace, name), uid), f"pod {namespace}/{name}")

    async def delete_job(self, namespace: str, name: str, uid: str) -> bool:
        """See `Cluster.delete_job`."""
        return self._took_effect(await self._client.delete(kube_path("batch/v1", "jobs", namespace, name), uid), f"Job {namespace}/{name}")

    async def create_refused(self, namespace: str, job_uid: str) -> str | None:
        """See `Cluster.create_refused`."""
        query = {"fieldSelector": f"involvedObject.uid={job_uid},reason=FailedCreate"}
        reply = await self._client.get(kube_path("v1", "events", namespace), query=query)
        if not reply.ok:
            raise refusal(reply, f"Events in {namespace}")
        events = reply.body.get("items") or ()
        newest = max(events, key=lambda item: item.get("lastTimestamp") or item["metadata"]["creationTimestamp"], default=None)
        return None if newest is None else str(newest.get("message") or "the Job's pod is refused")

    async def lease_renewed_at(self, namespace: str, job: str, pod_uid: str) -> datetime | None:
        """See `Cluster.lease_renewed_at`."""
        lease = await self._object(kube_path("coordination.k8s.io/v1", "leases", namespace, job))
        spec = (lease or {}).get("spec") or {}
        return parse_time(spec["renewTime"]) if spec.get("holderIdentity") == pod_uid and spec.get("renewTime") else None

    async def post_event(self, event: Object) -> None:
        """See `Cluster.post_event`."""
        reply = await self._client.post(kube_path("events.k8s.io/v1", "events", event["metadata"]["namespace"]), event)
        if not reply.ok and reply.status != 409:
            raise refusal(reply, "Event")

    async def labelled(self, kind: str) -> frozenset[str]:
        """See `Cluster.labelled`."""
        path = kube_path("batch/v1" if kind == "jobs" else "v1", kind)
        query = {"labelSelector": "=".join(MANAGED_BY), "limit": str(_PAGE)}
        found: set[str] = set()
        while True:
            reply = await self._client.get(path, query=query)
            if not reply.ok:
                raise refusal(reply, kind)
            found.update(item["metadata"]["uid"] for item in reply.body.get("items") or ())
            following = (reply.body.get("metadata") or {}).get("continue")
            if not following:
                return frozenset(found)
            query["continue"] = following

    async def _object(self, path: str) -> Object | None:
        reply = await self._client.get(path)
        if reply.object_missing:
            return None
        if not reply.ok:
            raise refusal(reply, path)
        return reply.body

    @staticmethod
    def _took_effect(reply: Reply, what: str) -> bool:
        """Whether a call under a uid found its object: another one of the same name is as good as none."""
        if reply.ok:
            return True
        error = refusal(reply, what)
        if reply.status == 409 or (isinstance(error, Refused) and error.code is Code.NOT_FOUND):
            return False
        raise error
