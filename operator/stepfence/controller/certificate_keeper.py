"""Keeps the certificates in their Secrets, under compare-and-swap, and tells what workers are to trust."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import structlog

from stepfence.controller.certificates import Authority, Pair, Serving, decode_secret, encode_secret, next_authority, next_serving
from stepfence.core.errors import Conflict
from stepfence.stores.kube_client import KubeClient, kube_path, refusal

__all__ = ["AUTHORITY_SECRET", "SERVING_SECRET", "CertificateKeeper", "gateway_names"]

_PROOF_KEYS = "token-proof-keys"
AUTHORITY_SECRET, SERVING_SECRET = "stepfence-ca", "stepfence-gateway-tls"
_LOG = structlog.get_logger(__name__)


def gateway_names(namespace: str, more: str) -> tuple[str, ...]:
    """Return the DNS names that the gateway's certificate is for."""
    service = "stepfence-gateway"
    ours = (service, f"{service}.{namespace}", f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local")
    return (*ours, *(name.strip() for name in more.split(",") if name.strip()))


class CertificateKeeper:
    """The leader calls `renew` now and then; what is due is done, and everything else stays as it is."""

    def __init__(self, client: KubeClient, namespace: str, names: tuple[str, ...]) -> None:
        self._client, self._namespace, self._names = client, namespace, names
        self._bundle = b""

    @property
    def bundle(self) -> str:
        """What workers are to trust; empty before the first `renew`."""
        return self._bundle.decode()

    async def renew(self, now: datetime) -> None:
        """Bring both Secrets up to date. Raises `Conflict` when another replica wrote too, `Refused`, `Unknown`."""
        data, revision = await self._read(AUTHORITY_SECRET)
        stored = _authority(data)
        authority = next_authority(stored, now)
        if authority != stored:
            values = {"tls.crt": authority.current.certificate, "tls.key": authority.current.key}
            if authority.following is not None:
                values |= {"next.crt": authority.following.certificate, "next.key": authority.following.key}
            await self._write(AUTHORITY_SECRET, "Opaque", values, revision)
            _LOG.info("certificate authority renewed", announced=authority.following is not None)
        data, revision = await self._read(SERVING_SECRET)
        before = (
            Serving(Pair(data["tls.crt"], data["tls.key"]), data.get("ca.crt", b""), data.get(_PROOF_KEYS, b""))
            if "tls.crt" in data and "tls.key" in data
            else None
        )
        serving = next_serving(before, authority, self._names, now)
        if serving != before:
            pair = serving.pair
            values = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": serving.bundle, _PROOF_KEYS: serving.proof_keys}
            await self._write(SERVING_SECRET, "kubernetes.io/tls", values, revision)
            _LOG.info("gateway certificate renewed")
        self._bundle = authority.bundle

    async def _read(self, name: str) -> tuple[dict[str, bytes], str | None]:
        reply = await self._client.get(kube_path("v1", "secrets", self._namespace, name))
        if reply.object_missing:
            return {}, None
        if not reply.ok:
            raise refusal(reply, f"Secret {name}")
        return decode_secret(reply.body.get("data") or {}), str(reply.body["metadata"]["resourceVersion"])

    async def _write(self, name: str, kind: str, values: Mapping[str, bytes], revision: str | None) -> None:
        metadata: dict[str, Any] = {"name": name, "namespace": self._namespace, "labels": {"app.kubernetes.io/name": "stepfence"}}
        secret = {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": metadata, "data": encode_secret(values)}
        path = kube_path("v1", "secrets", self._namespace)
        if revision is None:
            reply = await self._client.post(path, secret)
        else:
            metadata["resourceVersion"] = revision
            reply = await self._client.put(f"{path}/{name}", secret)
        if reply.status == 409:
            raise Conflict(f"Secret {name} was written by another replica")
        if not reply.ok:
            raise refusal(reply, f"Secret {name}")


def _authority(data: Mapping[str, bytes]) -> Authority | None:
    if "tls.crt" not in data or "tls.key" not in data:
        return None
    following = Pair(data["next.crt"], data["next.key"]) if "next.crt" in data and "next.key" in data else None
    return Authority(Pair(data["tls.crt"], data["tls.key"]), following)
