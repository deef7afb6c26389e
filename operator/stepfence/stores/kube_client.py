"""The Kubernetes API as raw JSON: configuration, login, TLS and connections of the official client, without its models.

A status write that goes through generated models is built, validated and copied field by field on the way out and on the way in; the
stores hand over a document and read one. What is left to us is which answers mean what.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from stepfence.core.errors import Code, Refused, Unknown
from stepfence.core.nesting import read

__all__ = ["APPLY", "JSON", "MERGE", "METADATA", "METADATA_LIST", "KubeClient", "Reply", "connect", "kube_path", "refusal"]

JSON = "application/json"
# Server-side apply: creates or updates in one call.
APPLY = "application/apply-patch+yaml"
# RFC 7396. A uid in the patch makes the API server refuse another object of the same name.
MERGE = "application/merge-patch+json"
# What to accept so that an object, or each one of a list, comes without its spec and status.
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

_CONNECT_SECONDS = 5.0
_CALL_SECONDS = 10.0
_POOL = 64


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the API server; of a failure that was told by no JSON object, `body` has the start. `retry_after` in seconds."""

    status: int
    body: Mapping[str, Any] = field(repr=False)
    retry_after: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        """What the API server says of a failure."""
        return str(self.body.get("message") or f"HTTP {self.status}")

    @property
    def object_missing(self) -> bool:
        """Whether the named object is not there; a kind that is not served is another matter."""
        return self.status == 404 and bool((self.body.get("details") or {}).get("name"))


class KubeClient:
    """Calls to one API server, each with a deadline, over a bounded pool of connections."""

    def __init__(self, configuration: Configuration, field_manager: str, *, seconds: float = _CALL_SECONDS) -> None:
        if field_manager.startswith("kubectl"):
            raise ValueError(f"field manager {field_manager!r}: GitOps tools take over the fields of managers named kubectl*")
        self._field_manager, self._seconds = field_manager, seconds
        self._api = ApiClient(configuration)
        self._api.user_agent = field_manager

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def get(self, path: str, *, query: Mapping[str, str] | None = None, seconds: float | None = None, accept: str = JSON) -> Reply:
        """Read. Raises `Unknown` when no answer comes in time."""
        return await self._call("GET", path, query or {}, None, JSON, seconds, accept)

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Create. Raises `Unknown` when the answer was lost: it may have taken effect."""
        return await self._call("POST", path, self._writing(), body, JSON, None)

    async def put(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Replace. Raises `Unknown` when the answer was lost: it may have taken effect."""
        return await self._call("PUT", path, self._writing(), body, JSON, None)

    async def apply(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Create or update by server-side apply, taking over the fields that are named. Raises `Unknown`."""
        return await self._call("PATCH", path, {**self._writing(), "force": "true"}, body, APPLY, None)

    async def merge(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Patch by merge. Raises `Unknown` when the answer was lost: it may have taken effect."""
        return await self._call("PATCH", path, self._writing(), body, MERGE, None)

    async def delete(self, path: str, uid: str, revision: str | None = None) -> Reply:
        """Delete the object of that uid (and `resourceVersion`) gracefully, and what it owns in the background. Raises `Unknown`."""
        only = {"uid": uid, **({} if revision is None else {"resourceVersion": revision})}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": only, "propagationPolicy": "Background"}
        return await self._call("DELETE", path, {}, body, JSON, None)

    def _writing(self) -> dict[str, str]:
        return {"fieldManager": self._field_manager}

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        content_type: str,
        seconds: float | None,
        accept: str = JSON,
    ) -> Reply:
        total = self._seconds if seconds is None else seconds
        headers = {"Accept": accept, "Content-Type": content_type}
        # The whole call has one deadline, ours: two that pass at the same moment cancel the clean-up of each other.
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS)
        try:
            # `param_serialize` brings the address and the (rotating) token; the body is handed over as it is.
            method, url, signed, _, _ = await self._api.param_serialize(method, path, header_params=headers, auth_settings=["BearerToken"])
            full = f"{url}?{urlencode(query)}" if query else url
            async with asyncio.timeout(total):
                answer = await self._api.call_api(method, full, signed, body, _request_timeout=timeout)
                text = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unknown(f"{method} {path}: {type(error).__name__}: {error}") from error
        body = _document(text)
        if body is None and 200 <= answer.status < 300:
            raise Unknown(f"{method} {path}: HTTP {answer.status} with an answer that is no JSON object")
        # A proxy's page, or the API server's plain text.
        told = {"message": text[:200].decode(errors="replace")} if body is None else body
        return Reply(answer.status, told, _seconds(answer.headers.get("Retry-After")))


async def connect(field_manager: str, *, seconds: float = _CALL_SECONDS, pool: int = _POOL) -> KubeClient:
    """Connect with the kubeconfig that `KUBECONFIG` names, else as a pod; never with one that nobody named.

    Raises `kubernetes.aio.config.ConfigException` when there is neither.
    """
    configuration = Configuration()
    named = os.environ.get("KUBECONFIG")
    if named:
        await config.load_kube_config(config_file=named, client_configuration=configuration, persist_config=False)
    else:
        config.load_incluster_config(client_configuration=configuration)
    configuration.connection_pool_maxsize = pool
    return KubeClient(configuration, field_manager, seconds=seconds)


def kube_path(group_version: str, resource: str, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
    """Return the path of a resource: `kube_path("batch/v1", "jobs", "support", "refund-1")`. Names are quoted."""
    root = "/api/v1" if group_version == "v1" else f"/apis/{group_version}"
    parts = [root, *(["namespaces", quote(namespace, safe="")] if namespace else []), resource]
    parts += [quote(part, safe="") for part in (name, sub) if part]
    return "/".join(parts)


def refusal(reply: Reply, what: str) -> Refused | Unknown:
    """Return the error that a failed call means, apart from conflicts, which each store reads for itself.

    Nothing was written when it is a `Refused`. A 5xx may come after the write (a time-out inside the API server): `Unknown`.
    """
    if reply.object_missing:
        return Refused(Code.NOT_FOUND, f"there is no {what}")
    if reply.status in (400, 422):
        return Refused(Code.BAD_REQUEST, f"{what} was refused by the API server: {reply.message}")
    if reply.status == 413:
        return Refused(Code.TOO_LARGE, f"{what} is too large for the API server: {reply.message}")
    if reply.status == 429:
        return Refused(Code.OVER_BUDGET, "the API server asks for fewer calls", retry_after=reply.retry_after or 1.0)
    if 400 <= reply.status < 500:
        # No right, or the kind is not served: the operator must be mended, the caller can only try again.
        return Refused(Code.STORE_UNAVAILABLE, f"{what}: {reply.message}", retry_after=5.0)
    return Unknown(f"{what}: HTTP {reply.status}: {reply.message}")


def _document(text: bytes) -> Mapping[str, Any] | None:
    try:
        # One object that is nested too deep must not end the program that reads it: what is too deep of it is found so, by its field.
        body = read(text)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isdigit() else None
