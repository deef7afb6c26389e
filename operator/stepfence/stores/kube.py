"""The AgentRun itself as the store: its status under compare-and-swap. Nothing else to install.

One API write a transition: the answer to a write brings the next revision and the stored status, so that nothing is read in between.
`resourceVersion` changes with every write of the object, its spec included, so a write under the one that was read also holds the
fencing token that was read (I2): both stand in one object, and etcd compares them in one transaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stepfence.core.errors import Code, Conflict, Refused
from stepfence.core.words import Settings
from stepfence.ports import RunKey, Stored, Write
from stepfence.schema import GROUP, PLURAL, VERSION, decode
from stepfence.stores.kube_client import KubeClient, kube_path, refusal

__all__ = ["KubeRunStore"]

_GROUP_VERSION = f"{GROUP}/{VERSION}"


class KubeRunStore:
    """Runs in the status of their AgentRun. Give the client `stepfence-gateway` or `stepfence-controller` as field manager."""

    def __init__(self, client: KubeClient, settings: Settings | None = None) -> None:
        self._client = client
        self._settings = settings or Settings()

    async def load(self, key: RunKey) -> Stored:
        """See `RunStore.load`."""
        reply = await self._client.get(kube_path(_GROUP_VERSION, PLURAL, *key))
        if not reply.ok:
            raise refusal(reply, _what(key))
        return self.read(reply.body)

    async def save(self, write: Write) -> Stored:
        """See `RunStore.save`."""
        key = write.before.key
        document = {
            "apiVersion": _GROUP_VERSION,
            "kind": "AgentRun",
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                # The same name may have become another run: its status must not be touched.
                "uid": write.before.run.uid,
                "resourceVersion": write.before.revision,
            },
            "status": write.status,
        }
        reply = await self._client.put(kube_path(_GROUP_VERSION, PLURAL, *key, sub="status"), document)
        if reply.status == 409:
            if "UID in precondition" in reply.message:
                raise Refused(Code.NOT_FOUND, f"{_what(key)} is another one now")
            raise Conflict(f"{_what(key)} moved on")
        if not reply.ok:
            raise refusal(reply, _what(key))
        return self.read(reply.body)

    def read(self, document: Mapping[str, Any]) -> Stored:
        """Return what an AgentRun object says, for instance one from a watch. Raises `Unreadable`."""
        metadata = document["metadata"]
        rest = {name: value for name, value in document.items() if name != "status"}
        return Stored(
            key=RunKey(metadata["namespace"], metadata["name"]),
            run=decode(document, self._settings),
            revision=metadata["resourceVersion"],
            raw=document.get("status") or {},
            base_bytes=len(json.dumps(rest, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")),
        )


def _what(key: RunKey) -> str:
    return f"AgentRun {key.namespace}/{key.name}"
