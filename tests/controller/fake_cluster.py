"""A cluster in memory that does to Jobs and pods what the real one would, as far as the controller can see."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from stepfence.controller.cache import Cache
from stepfence.controller.cluster import Created, NotCreated
from stepfence.core.errors import Refused
from stepfence.ports import RunKey
from stepfence.schema import IDENTITY_ANNOTATION
from stepfence.schema.times import format_time
from stepfence.testing.clock import FakeClock
from tests.controller.harness_store import AnnotatedStore

Object = dict[str, Any]
_GRACE = 30


class Killed(Exception):
    """The controller is killed here."""


class FakeCluster:
    """Held to the `Cluster` protocol. `on_call` is asked before and after every call that changes something, and may raise `Killed`."""

    def __init__(self, store: AnnotatedStore, clock: FakeClock) -> None:
        self._store, self._clock = store, clock
        self._uids = itertools.count(1)
        self.jobs: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.events: list[Object] = []
        self.made: list[str] = []
        self.deleted: list[str] = []
        self.refuse_jobs: NotCreated | None = None
        self.refuse_pods: str | None = None
        self.renewed: datetime | None = None
        self.reads: list[str] = []
        self.on_call: Callable[[str], None] = lambda _: None
        self.watcher: Cache | None = None

    # --- the protocol -----------------------------------------------------------------------------------------------------------

    async def run_object(self, key: RunKey) -> Object | None:
        self.reads.append("run")
        try:
            return self._store.document(key)
        except Refused:
            return None

    async def mark(self, key: RunKey, uid: str) -> bool:
        self.on_call("before mark")
        self._store.annotate(key, IDENTITY_ANNOTATION, uid)
        self.on_call("after mark")
        return True

    async def job(self, namespace: str, name: str) -> Object | None:
        self.reads.append("job")
        return copy.deepcopy(self.jobs.get(name))

    async def create_job(self, job: Mapping[str, Any]) -> Created | NotCreated:
        self.on_call("before create")
        if self.refuse_jobs is not None:
            return self.refuse_jobs
        name = job["metadata"]["name"]
        if name in self.jobs:
            return Created(copy.deepcopy(self.jobs[name]), now=False)
        document = copy.deepcopy(dict(job))
        document["metadata"] |= {"uid": f"job-{next(self._uids)}", "creationTimestamp": format_time(self._clock.now())}
        document["status"] = {}
        self.jobs[name] = document
        self.made.append(name)
        self._tell("job", document)
        self.on_call("after create")
        if self.refuse_pods is None:
            self._start_pod(document)
        return Created(copy.deepcopy(document), now=True)

    async def pod(self, namespace: str, name: str) -> Object | None:
        self.reads.append("pod")
        return copy.deepcopy(self.pods.get(name))

    async def delete_pod(self, namespace: str, name: str, uid: str) -> bool:
        self.on_call("before delete pod")
        pod = self.pods.get(name)
        if pod is None or pod["metadata"]["uid"] != uid:
            return False
        self.deleted.append(name)
        pod["metadata"]["deletionTimestamp"] = format_time(self._clock.now() + timedelta(seconds=_GRACE))
        self._tell("pod", pod)
        self.on_call("after delete pod")
        return True

    async def delete_job(self, namespace: str, name: str, uid: str) -> bool:
        self.on_call("before delete job")
        job = self.jobs.get(name)
        if job is None or job["metadata"]["uid"] != uid:
            return False
        self.deleted.append(name)
        self._remove(name)
        self.on_call("after delete job")
        return True

    async def create_refused(self, namespace: str, job_uid: str) -> str | None:
        self.reads.append("events")
        return self.refuse_pods

    async def lease_renewed_at(self, namespace: str, job: str, pod_uid: str) -> datetime | None:
        self.reads.append("lease")
        return self.renewed

    async def post_event(self, event: Mapping[str, Any]) -> None:
        if all(event["metadata"]["name"] != other["metadata"]["name"] for other in self.events):
            self.events.append(dict(event))

    async def labelled(self, kind: str) -> frozenset[str]:
        found = self.jobs if kind == "jobs" else self.pods
        return frozenset(item["metadata"]["uid"] for item in found.values())

    # --- what happens in the cluster by itself ----------------------------------------------------------------------------------

    def listed_to(self, cache: Cache) -> None:
        """Let a new watcher see everything, as the first list of a watch does."""
        self.watcher = cache
        for job in self.jobs.values():
            cache.see_job(job)
        for pod in self.pods.values():
            cache.see_pod(pod)

    def pod_of(self, job: str) -> Object:
        """Return the pod of a Job."""
        return next(pod for pod in self.pods.values() if pod["metadata"]["ownerReferences"][0]["name"] == job)

    def end_pod(self, job: str, code: int) -> None:
        """The pod's container ends, the kubelet says so, and the Job follows."""
        pod = self.pod_of(job)
        ended = {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": format_time(self._clock.now())}}
        pod["status"] = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"name": "main", "state": ended}]}
        self._tell("pod", pod)
        document = self.jobs[job]
        document["status"] = {"failed": 1, "conditions": [{"type": "Failed" if code else "Complete", "status": "True"}]}
        self._tell("job", document)

    def vanish(self, job: str) -> None:
        """Somebody deletes a Job and its pods."""
        self._remove(job)

    def _start_pod(self, job: Object) -> None:
        name = f"{job['metadata']['name']}-x"
        template = copy.deepcopy(job["spec"]["template"])
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job["metadata"]["name"],
            "uid": job["metadata"]["uid"],
            "controller": True,
        }
        metadata = {
            **template["metadata"],
            "name": name,
            "namespace": job["metadata"]["namespace"],
            "uid": f"pod-{next(self._uids)}",
            "creationTimestamp": format_time(self._clock.now()),
            "ownerReferences": [owner],
        }
        running = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
        self.pods[name] = {"metadata": metadata, "spec": template["spec"], "status": running}
        job["status"] = {"active": 1, "startTime": format_time(self._clock.now())}
        self._tell("pod", self.pods[name])

    def _remove(self, job: str) -> None:
        gone = self.jobs.pop(job)
        self._tell("job", gone, deleted=True)
        for name in [name for name, pod in self.pods.items() if pod["metadata"]["ownerReferences"][0]["uid"] == gone["metadata"]["uid"]]:
            self._tell("pod", self.pods.pop(name), deleted=True)

    def _tell(self, kind: str, document: Object, *, deleted: bool = False) -> None:
        if self.watcher is not None:
            see = self.watcher.see_job if kind == "job" else self.watcher.see_pod
            see(copy.deepcopy(document), deleted=deleted)
