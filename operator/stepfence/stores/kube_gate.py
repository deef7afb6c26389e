"""Who calls, and whether a pod lives, as the API server vouches for it: owners by uid, ends by the kubelet's word, never by labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stepfence.core.errors import Code, Refused
from stepfence.core.fencing import HolderFact
from stepfence.core.model import Holder, Run
from stepfence.core.words import At, Settings
from stepfence.core.world import PodFact, lease_expired, pod_over
from stepfence.ports import Caller, Clock, WorkerIdentity
from stepfence.schema import GROUP, RUN_LABEL, RUN_UID_LABEL, TOKEN_AUDIENCE
from stepfence.schema.times import format_time, parse_time
from stepfence.stores.kube_client import KubeClient, Reply, kube_path, refusal
from stepfence.stores.kube_pods import end_reported
from stepfence.stores.reviews import ReviewLimits, Reviews
from stepfence.stores.ttl_cache import TtlCache

__all__ = ["KubeWorkerGate"]

_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_SERVICE_ACCOUNT = "system:serviceaccount:"
# The owners of a pod do not change; a pod without a worker's owners may still be adopted, so that is believed only for a moment.
_OWNER_SECONDS = 3600.0
_NO_OWNER_SECONDS = 10.0
_CACHED = 4096


@dataclass(frozen=True, slots=True)
class _Owned:
    """A pod's worker with the uid of its Job; `worker` is None for a pod that is none."""

    worker: WorkerIdentity | None
    job_uid: str = ""


class KubeWorkerGate:
    """Reviews tokens, follows owners, reads pods, renews Leases."""

    def __init__(self, client: KubeClient, clock: Clock, settings: Settings | None = None, limits: ReviewLimits | None = None) -> None:
        self._client, self._clock = client, clock
        self._settings = settings or Settings()
        self.reviews = Reviews(self._review, clock, limits)
        self._owners: TtlCache[str, _Owned] = TtlCache(_CACHED)

    async def identify(self, bearer: str, address: str = "") -> Caller:
        """See `WorkerGate.identify`. A review is believed for 60 s, a refusal for 5. Raises `Refused(OVER_BUDGET)` too."""
        return await self.reviews.caller(bearer, address)

    async def _review(self, bearer: str) -> Caller:
        path = kube_path("authentication.k8s.io/v1", "tokenreviews")
        spec = {"token": bearer, "audiences": [TOKEN_AUDIENCE]}
        reply = await self._client.post(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec})
        if not reply.ok:
            raise refusal(reply, "token review")
        status = reply.body.get("status") or {}
        # An API server that knows nothing of audiences leaves them out: such a token was made for something else.
        if not status.get("authenticated") or TOKEN_AUDIENCE not in (status.get("audiences") or ()):
            raise Refused(Code.UNAUTHENTICATED, f"the token is not valid for the audience {TOKEN_AUDIENCE!r}")
        return _caller(status.get("user") or {})

    async def worker_of(self, caller: Caller) -> WorkerIdentity | None:
        """See `WorkerGate.worker_of`."""
        return (await self._owned(caller)).worker

    async def _owned(self, caller: Caller) -> _Owned:
        owned = self._owners.get(caller.pod_uid, self._clock.monotonic())
        if owned is None:
            owned = await self._follow(caller)
            seconds = _OWNER_SECONDS if owned.worker is not None else _NO_OWNER_SECONDS
            self._owners.put(caller.pod_uid, owned, self._clock.monotonic() + seconds)
        return owned

    async def _follow(self, caller: Caller) -> _Owned:
        pod = await self._object("v1", "pods", caller.namespace, caller.pod)
        if pod is None or _uid(pod) != caller.pod_uid:
            return _Owned(None)
        job_ref = _controller(pod, "Job", "batch")
        if job_ref is None:
            return _Owned(None)
        job = await self._object("batch/v1", "jobs", caller.namespace, job_ref["name"])
        if job is None or _uid(job) != job_ref["uid"]:
            return _Owned(None)
        run_ref = _controller(job, "AgentRun", GROUP)
        if run_ref is None:
            return _Owned(None)
        return _Owned(WorkerIdentity(run=run_ref["name"], run_uid=run_ref["uid"], job=job_ref["name"]), _uid(job))

    async def holder(self, run: Run) -> HolderFact:
        """See `WorkerGate.holder`. Over: released, terminated as the kubelet reported it, gone, or lost beyond its lease and grace."""
        holder = run.holder
        if holder is None:
            return HolderFact.OVER
        pod = await self._object("v1", "pods", run.namespace, holder.pod)
        fact = _pod_fact(pod, holder)
        at = At(self._clock.now(), "", self._settings)
        renewed = None
        if pod is not None and fact.deletion_at is not None and lease_expired(holder, None, at.now):
            renewed = await self._renewed(run, pod, holder)
        return HolderFact.OVER if pod_over(fact, holder, renewed, at) else HolderFact.ALIVE

    async def _renewed(self, run: Run, pod: Mapping[str, Any], holder: Holder) -> datetime | None:
        """Return the last renewal of the Lease by the holder itself: another pod of the same Job may have renewed it since."""
        job_ref = _controller(pod, "Job", "batch")
        lease = job_ref and await self._object("coordination.k8s.io/v1", "leases", run.namespace, job_ref["name"])
        spec = (lease or {}).get("spec") or {}
        if spec.get("holderIdentity") != holder.pod_uid or "renewTime" not in spec:
            return None
        return parse_time(spec["renewTime"])

    async def renew(self, run: Run, caller: Caller) -> None:
        """See `WorkerGate.renew`. The Lease has the name of the worker's Job and goes with it. Raises `Refused(FORBIDDEN)` too."""
        owned = await self._owned(caller)
        if owned.worker is None:
            raise Refused(Code.FORBIDDEN, "this pod is no worker")
        name = owned.worker.job
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "namespace": caller.namespace,
                "labels": {RUN_LABEL: run.name, RUN_UID_LABEL: run.uid, "app.kubernetes.io/managed-by": "stepfence"},
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": owned.job_uid}],
            },
            "spec": {
                "holderIdentity": caller.pod_uid,
                "leaseDurationSeconds": run.holder.lease if run.holder else self._settings.lease,
                # MicroTime: six digits.
                "renewTime": format_time(self._clock.now()).replace("Z", "000Z"),
            },
        }
        reply = await self._client.apply(kube_path("coordination.k8s.io/v1", "leases", caller.namespace, name), lease)
        if not reply.ok:
            raise refusal(reply, f"Lease {caller.namespace}/{name}")

    async def _object(self, group_version: str, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        reply: Reply = await self._client.get(kube_path(group_version, resource, namespace, name))
        if reply.object_missing:
            return None
        if not reply.ok:
            raise refusal(reply, f"{resource} {namespace}/{name}")
        return reply.body


def _caller(user: Mapping[str, Any]) -> Caller:
    username, extra = str(user.get("username", "")), user.get("extra") or {}
    namespace = username.removeprefix(_SERVICE_ACCOUNT).split(":")[0]
    names: list[str] = extra.get(_POD_NAME) or []
    uids: list[str] = extra.get(_POD_UID) or []
    if not username.startswith(_SERVICE_ACCOUNT) or len(names) != 1 or len(uids) != 1:
        raise Refused(Code.UNAUTHENTICATED, "the token is not bound to a pod")
    return Caller(namespace=namespace, pod=names[0], pod_uid=uids[0])


def _uid(document: Mapping[str, Any]) -> str:
    return str(document["metadata"]["uid"])


def _controller(document: Mapping[str, Any], kind: str, group: str) -> Mapping[str, Any] | None:
    """Return the owner reference of the controlling object if it is of that kind and group."""
    for owner in document["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner["kind"] == kind and owner["apiVersion"].split("/")[0] == group:
            found: Mapping[str, Any] = owner
            return found
    return None


def _pod_fact(pod: Mapping[str, Any] | None, holder: Holder) -> PodFact:
    if pod is None or _uid(pod) != holder.pod_uid:
        return PodFact(name=holder.pod, uid=holder.pod_uid, gone=True)
    over = end_reported(pod)
    deletion = pod["metadata"].get("deletionTimestamp")
    return PodFact(
        name=holder.pod,
        uid=holder.pod_uid,
        terminal=over,
        confirmed=over,
        deletion_at=None if deletion is None else parse_time(deletion),
    )
