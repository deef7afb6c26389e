"""The Secrets as the leader writes them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import pytest

from stepfence.controller.certificate_keeper import AUTHORITY_SECRET, SERVING_SECRET, CertificateKeeper
from stepfence.controller.certificates import decode_secret
from stepfence.core.errors import Conflict
from stepfence.gateway.proof_keys import KEYS_FILE
from stepfence.stores.kube_client import KubeClient, Reply
from stepfence.testing.clock import EPOCH


class Secrets:
    """Secrets of one namespace under compare-and-swap."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.writes = 0

    async def get(self, path: str) -> Reply:
        name = path.rpartition("/")[2]
        if name not in self.stored:
            return Reply(404, {"details": {"name": name}})
        return Reply(200, copy.deepcopy(self.stored[name]))

    async def post(self, _path: str, body: Mapping[str, Any]) -> Reply:
        return self._write(body, None)

    async def put(self, _path: str, body: Mapping[str, Any]) -> Reply:
        return self._write(body, body["metadata"]["resourceVersion"])

    def _write(self, body: Mapping[str, Any], revision: str | None) -> Reply:
        name = body["metadata"]["name"]
        known = self.stored.get(name, {}).get("metadata", {}).get("resourceVersion")
        if known != revision:
            return Reply(409, {})
        self.writes += 1
        self.stored[name] = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.writes)}}
        return Reply(201, {})

    def data(self, name: str) -> dict[str, bytes]:
        return decode_secret(self.stored[name]["data"])


def keeper(secrets: Secrets) -> CertificateKeeper:
    return CertificateKeeper(cast("KubeClient", secrets), "stepfence-system", ("stepfence-gateway",))


async def test_keys_of_token_proofs_stand_beside_the_certificate_and_stay_when_it_is_renewed() -> None:
    secrets = Secrets()
    await keeper(secrets).renew(EPOCH)
    first = secrets.data(SERVING_SECRET)
    assert set(first) == {"tls.crt", "tls.key", "ca.crt", KEYS_FILE}
    assert KEYS_FILE not in secrets.data(AUTHORITY_SECRET)
    await keeper(secrets).renew(EPOCH + timedelta(days=1))
    assert secrets.writes == 2, "nothing was due"
    await keeper(secrets).renew(EPOCH + timedelta(days=61))
    renewed = secrets.data(SERVING_SECRET)
    assert renewed["tls.crt"] != first["tls.crt"]
    assert renewed[KEYS_FILE] == first[KEYS_FILE]


async def test_a_key_that_was_taken_away_is_made_again_without_a_new_certificate() -> None:
    secrets = Secrets()
    await keeper(secrets).renew(EPOCH)
    first = secrets.data(SERVING_SECRET)
    del secrets.stored[SERVING_SECRET]["data"][KEYS_FILE]
    await keeper(secrets).renew(EPOCH)
    second = secrets.data(SERVING_SECRET)
    assert second["tls.crt"] == first["tls.crt"]
    assert second[KEYS_FILE] not in (b"", first[KEYS_FILE])


async def test_a_secret_that_another_replica_wrote_is_a_conflict() -> None:
    class Overtaken(Secrets):
        async def get(self, path: str) -> Reply:
            seen = await super().get(path)
            self.stored.setdefault(AUTHORITY_SECRET, {"metadata": {"resourceVersion": "other"}})
            return seen

    with pytest.raises(Conflict):
        await keeper(Overtaken()).renew(EPOCH)
