"""Write-once bodies and spent identities as AgentRunRecord objects."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from stepfence.core.canonical import digest as digest_of
from stepfence.core.errors import Code, Refused, Unknown
from stepfence.core.model import Run
from stepfence.ports import BodyRecord, RunKey
from stepfence.schema import (
    GROUP,
    PUT_AT_ANNOTATION,
    RECORD_PLURAL,
    RUN_LABEL,
    RUN_UID_LABEL,
    VERSION,
    identity_record_name,
    record_name,
)
from stepfence.schema.times import format_time, parse_time
from stepfence.stores.age import is_young
from stepfence.stores.kube_client import METADATA, METADATA_LIST, KubeClient, Reply, kube_path, refusal

__all__ = ["KubeRecordStore"]

Object = Mapping[str, Any]
_GROUP_VERSION = f"{GROUP}/{VERSION}"
_MANAGED = ("app.kubernetes.io/managed-by", "stepfence")
_PAGE = 500
_PUT_TRIES = 4


class KubeRecordStore:
    """Records in the run's namespace. A body is owned by its run and goes with it; a spent identity has no owner and stays.

    A body that is put while it stands, and is no longer young, gets a new time in an annotation: its spec never changes.
    """

    def __init__(self, client: KubeClient, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._client, self._now = client, now

    async def put(self, run: Run, kind: str, text: str, digest: str) -> str:
        """See `RecordStore.put`."""
        name = record_name(run.uid, digest)
        spec = {"type": kind, "run": run.name, "runUID": run.uid, "digest": digest, "bytes": len(text.encode()), "data": text}
        owner = {"apiVersion": _GROUP_VERSION, "kind": "AgentRun", "name": run.name, "uid": run.uid}
        for _ in range(_PUT_TRIES):
            if await self._create(run, name, spec, owner=owner) or await self._renewed(run, name, digest):
                return name
        raise Unknown(f"record {name} was there and gone {_PUT_TRIES} times")

    async def _renewed(self, run: Run, name: str, digest: str) -> bool:
        """Make sure that a standing record is young; False when it is gone."""
        path = kube_path(_GROUP_VERSION, RECORD_PLURAL, run.namespace, name)
        reply = await self._client.get(path)
        if reply.object_missing:
            return False
        if not reply.ok:
            raise refusal(reply, f"record {name}")
        metadata, spec = reply.body["metadata"], reply.body["spec"]
        if spec.get("digest") != digest or spec.get("runUID") != run.uid:
            raise Refused(Code.STORE_CONFLICT, f"record {name} already holds another body")
        now = self._now()
        if is_young(_put_at(metadata), now):
            return True
        patch = {"metadata": {"uid": metadata["uid"], "annotations": {PUT_AT_ANNOTATION: format_time(now)}}}
        return _found(await self._client.merge(path, patch), name)

    async def keep(self, run: Run, name: str) -> bool:
        """See `RecordStore.keep`."""
        reply = await self._client.get(kube_path(_GROUP_VERSION, RECORD_PLURAL, run.namespace, name), accept=METADATA)
        return _found(reply, name) and is_young(_put_at(reply.body["metadata"]), self._now())

    async def get(self, run: Run, name: str) -> str:
        """See `RecordStore.get`. Another run's record is not there; a body that does not have its digest is refused."""
        spec = await self._spec(run, name)
        text = spec.get("data")
        if not isinstance(text, str) or spec.get("runUID") != run.uid:
            raise Refused(Code.NOT_FOUND, f"there is no record {name} of this run")
        if digest_of(text) != spec.get("digest"):
            raise Refused(Code.STORE_UNAVAILABLE, f"record {name} does not hold what its digest says")
        return text

    async def spend(self, run: Run) -> str:
        """See `RecordStore.spend`."""
        name = identity_record_name(run.identity)
        spec = {"type": "Identity", "run": run.name, "runUID": run.uid, "runID": run.identity}
        if await self._create(run, name, spec):
            return run.uid
        stored = await self._spec(run, name)
        if stored.get("runID") != run.identity:
            raise Refused(Code.STORE_CONFLICT, f"record {name} keeps another identity")
        return str(stored["runUID"])

    async def bodies(self) -> AsyncIterator[BodyRecord]:
        """See `SweepStore.bodies`. One page at a time, of metadata alone."""
        query = {"labelSelector": "=".join(_MANAGED), "limit": str(_PAGE)}
        while True:
            reply = await self._client.get(kube_path(_GROUP_VERSION, RECORD_PLURAL), query=query, accept=METADATA_LIST)
            if not reply.ok:
                raise refusal(reply, RECORD_PLURAL)
            for item in reply.body.get("items") or ():
                body = _body(item["metadata"])
                if body is not None:
                    yield body
            following = (reply.body.get("metadata") or {}).get("continue")
            if not following:
                return
            query["continue"] = following

    async def remove(self, record: BodyRecord) -> bool:
        """See `SweepStore.remove`."""
        path = kube_path(_GROUP_VERSION, RECORD_PLURAL, record.key.namespace, record.name)
        uid, _, revision = record.mark.partition("/")
        return _found(await self._client.delete(path, uid, revision), record.name)

    async def _create(self, run: Run, name: str, spec: Object, *, owner: Object | None = None) -> bool:
        """Create a record; False when the name is taken."""
        labels = {RUN_LABEL: run.name, RUN_UID_LABEL: run.uid, **dict([_MANAGED])}
        metadata = {"name": name, "namespace": run.namespace, "labels": labels, **({"ownerReferences": [owner]} if owner else {})}
        document = {"apiVersion": _GROUP_VERSION, "kind": "AgentRunRecord", "metadata": metadata, "spec": spec}
        reply = await self._client.post(kube_path(_GROUP_VERSION, RECORD_PLURAL, run.namespace), document)
        if reply.status == 409 and reply.body.get("reason") == "AlreadyExists":
            return False
        if not reply.ok:
            raise refusal(reply, f"record {name}")
        return True

    async def _spec(self, run: Run, name: str) -> Object:
        reply = await self._client.get(kube_path(_GROUP_VERSION, RECORD_PLURAL, run.namespace, name))
        if not reply.ok:
            raise refusal(reply, f"record {name}")
        spec: Object = reply.body["spec"]
        return spec


def _found(reply: Reply, name: str) -> bool:
    """Whether a call found the record that it meant: one that is gone, or another one of that name, is not it."""
    if reply.object_missing or reply.status == 409:
        return False
    if not reply.ok:
        raise refusal(reply, f"record {name}")
    return True


def _put_at(metadata: Object) -> datetime:
    """Return when the body was put last: when the record was created, or what the annotation says if that is later."""
    created = parse_time(metadata["creationTimestamp"])
    again = (metadata.get("annotations") or {}).get(PUT_AT_ANNOTATION)
    try:
        return created if again is None else max(created, parse_time(again))
    except ValueError:
        return created


def _body(metadata: Object) -> BodyRecord | None:
    """Read what stands on a body's record. None for all else: it must bear a body's name, and be owned by the run that it names."""
    labels = metadata.get("labels") or {}
    run, uid = labels.get(RUN_LABEL), labels.get(RUN_UID_LABEL)
    if not run or not uid or not re.fullmatch(re.escape(uid) + "-[0-9a-f]{16}", metadata["name"]):
        return None
    if not any(owner["uid"] == uid for owner in metadata.get("ownerReferences") or ()):
        return None
    mark = f"{metadata['uid']}/{metadata['resourceVersion']}"
    return BodyRecord(RunKey(metadata["namespace"], run), uid, metadata["name"], _put_at(metadata), mark)
