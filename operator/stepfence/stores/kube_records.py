"""Write-once bodies and spent identities as AgentRunRecord objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepfence.core.canonical import digest as digest_of
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Run
from stepfence.schema import GROUP, RECORD_PLURAL, RUN_LABEL, RUN_UID_LABEL, VERSION, identity_record_name, record_name
from stepfence.stores.kube_client import KubeClient, kube_path, refusal

__all__ = ["KubeRecordStore"]

_GROUP_VERSION = f"{GROUP}/{VERSION}"


class KubeRecordStore:
    """Records in the run's namespace. A body is owned by its run and goes with it; a spent identity has no owner and stays."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def put(self, run: Run, kind: str, text: str, digest: str) -> str:
        """See `RecordStore.put`. Raises `Refused(STORE_CONFLICT)` when the name already holds another body."""
        name = record_name(run.uid, digest)
        spec = {"type": kind, "run": run.name, "runUID": run.uid, "digest": digest, "bytes": len(text.encode()), "data": text}
        owner = {"apiVersion": _GROUP_VERSION, "kind": "AgentRun", "name": run.name, "uid": run.uid}
        if not await self._create(run, name, spec, owner=owner):
            stored = await self._spec(run, name)
            if stored.get("digest") != digest or stored.get("runUID") != run.uid:
                raise Refused(Code.STORE_CONFLICT, f"record {name} already holds another body")
        return name

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

    async def _create(self, run: Run, name: str, spec: Mapping[str, Any], *, owner: Mapping[str, Any] | None = None) -> bool:
        """Create a record; False when the name is taken."""
        labels = {RUN_LABEL: run.name, RUN_UID_LABEL: run.uid, "app.kubernetes.io/managed-by": "stepfence"}
        metadata = {"name": name, "namespace": run.namespace, "labels": labels, **({"ownerReferences": [owner]} if owner else {})}
        document = {"apiVersion": _GROUP_VERSION, "kind": "AgentRunRecord", "metadata": metadata, "spec": spec}
        reply = await self._client.post(kube_path(_GROUP_VERSION, RECORD_PLURAL, run.namespace), document)
        if reply.status == 409 and reply.body.get("reason") == "AlreadyExists":
            return False
        if not reply.ok:
            raise refusal(reply, f"record {name}")
        return True

    async def _spec(self, run: Run, name: str) -> Mapping[str, Any]:
        reply = await self._client.get(kube_path(_GROUP_VERSION, RECORD_PLURAL, run.namespace, name))
        if not reply.ok:
            raise refusal(reply, f"record {name}")
        spec: Mapping[str, Any] = reply.body["spec"]
        return spec
