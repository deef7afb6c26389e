"""Everything in this process's memory: the store for tests and for `stepfence.testing`, as strict as the real ones."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from stepfence.core.errors import Code, Conflict, Refused
from stepfence.core.model import Run
from stepfence.core.words import Settings
from stepfence.ports import BodyRecord, RunKey, Stored, Write
from stepfence.schema import decode, identity_record_name, record_name
from stepfence.stores.age import is_young
from stepfence.stores.merge import merge

__all__ = ["MemoryRecordStore", "MemoryRunStore"]


class MemoryRunStore:
    """Holds whole AgentRun documents, so that every read and write goes through the schema as on the real store."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._objects: dict[RunKey, dict[str, Any]] = {}
        self._revisions = itertools.count(1)

    def create(self, manifest: Mapping[str, Any]) -> Stored:
        """Store a new AgentRun as the API server would: uid, generation, default status. Raises `Conflict` when the name is taken."""
        document = copy.deepcopy(dict(manifest))
        metadata = document.setdefault("metadata", {})
        key = RunKey(metadata.setdefault("namespace", "default"), metadata["name"])
        if key in self._objects:
            raise Conflict(f"{key} exists")
        revision = next(self._revisions)
        metadata.setdefault("uid", f"00000000-0000-4000-8000-{revision:012d}")
        metadata |= {"generation": 1, "resourceVersion": str(revision)}
        document["status"] = {"observedGeneration": -1}
        self._objects[key] = document
        return self._stored(key)

    def patch_spec(self, key: RunKey, changes: Mapping[str, Any]) -> Stored:
        """Merge-patch `spec`, as a person does with kubectl. Raises `Refused(NOT_FOUND)`."""
        document = self._document(key)
        document["spec"] = merge(document.get("spec", {}), changes)
        document["metadata"]["generation"] += 1
        document["metadata"]["resourceVersion"] = str(next(self._revisions))
        return self._stored(key)

    def delete(self, key: RunKey) -> None:
        """Remove a run. Raises `Refused(NOT_FOUND)`."""
        self._document(key)
        del self._objects[key]

    def document(self, key: RunKey) -> dict[str, Any]:
        """Return a copy of the whole object, as `kubectl get -o json` shows it. Raises `Refused(NOT_FOUND)`."""
        return copy.deepcopy(self._document(key))

    async def load(self, key: RunKey) -> Stored:
        """See `RunStore.load`."""
        return self._stored(key)

    async def save(self, write: Write) -> Stored:
        """See `RunStore.save`."""
        key = write.before.key
        document = self._document(key)
        if document["metadata"]["uid"] != write.before.run.uid:
            raise Refused(Code.NOT_FOUND, f"AgentRun {key.namespace}/{key.name} is another one now")
        stored_token = document["status"].get("fencingToken", 0)
        if document["metadata"]["resourceVersion"] != write.before.revision or stored_token != write.before.run.token:
            raise Conflict(f"{key} moved on")
        document["status"] = json.loads(json.dumps(write.status))
        document["metadata"]["resourceVersion"] = str(next(self._revisions))
        return self._stored(key)

    def _document(self, key: RunKey) -> dict[str, Any]:
        try:
            return self._objects[key]
        except KeyError:
            raise Refused(Code.NOT_FOUND, f"there is no AgentRun {key.namespace}/{key.name}") from None

    def _stored(self, key: RunKey) -> Stored:
        document = copy.deepcopy(self._document(key))
        status = document.pop("status")
        run = decode({**document, "status": status}, self._settings)
        return Stored(key, run, document["metadata"]["resourceVersion"], status, len(json.dumps(document)))


@dataclass(frozen=True, slots=True)
class _Body:
    key: RunKey
    run_uid: str
    text: str
    put_at: datetime
    mark: str


class MemoryRecordStore:
    """Write-once bodies and spent identities in this process's memory."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._bodies: dict[tuple[str, str], _Body] = {}
        self._identities: dict[tuple[str, str], str] = {}
        self._marks = itertools.count(1)

    async def put(self, run: Run, kind: str, text: str, digest: str) -> str:  # noqa: ARG002  (the kind matters only where people look)
        """See `RecordStore.put`."""
        name = record_name(run.uid, digest)
        stored = self._bodies.get((run.namespace, name))
        if stored is not None and stored.text != text:
            raise Refused(Code.STORE_CONFLICT, f"record {name} already holds another body")
        body = _Body(RunKey(run.namespace, run.name), run.uid, text, self._now(), str(next(self._marks)))
        self._bodies[run.namespace, name] = body
        return name

    async def keep(self, run: Run, name: str) -> bool:
        """See `RecordStore.keep`."""
        body = self._bodies.get((run.namespace, name))
        return body is not None and is_young(body.put_at, self._now())

    async def get(self, run: Run, name: str) -> str:
        """See `RecordStore.get`."""
        body = self._bodies.get((run.namespace, name))
        if body is None or body.run_uid != run.uid:
            raise Refused(Code.NOT_FOUND, f"there is no record {name} of this run")
        return body.text

    async def spend(self, run: Run) -> str:
        """See `RecordStore.spend`."""
        return self._identities.setdefault((run.namespace, identity_record_name(run.identity)), run.uid)

    async def bodies(self) -> AsyncIterator[BodyRecord]:
        """See `SweepStore.bodies`."""
        for (_, name), body in sorted(self._bodies.items(), key=lambda item: item[0]):
            yield BodyRecord(body.key, body.run_uid, name, body.put_at, body.mark)

    async def remove(self, record: BodyRecord) -> bool:
        """See `SweepStore.remove`."""
        where = (record.key.namespace, record.name)
        body = self._bodies.get(where)
        if body is None or body.mark != record.mark:
            return False
        del self._bodies[where]
        return True
