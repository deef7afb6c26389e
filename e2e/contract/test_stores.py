"""The store in the status of an AgentRun keeps the contract, on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.contract.kube import GROUP_VERSION, Objects, client_of, crd, good, install_crds, newer_crd
from e2e.contract.proxy import Proxy
from stepfence.core.canonical import canonical, digest
from stepfence.core.errors import Code, Conflict, Refused, Unknown
from stepfence.core.words import Token
from stepfence.ports import RecordKind, RunKey
from stepfence.schema import RECORD_PLURAL
from stepfence.stores.kube import KubeRunStore
from stepfence.stores.kube_client import KubeClient, connect, kube_path
from stepfence.stores.kube_records import KubeRecordStore
from tests.stores.contract import Driver, LostReplyContract, RunStoreContract, UnknownFieldsContract, claimed, new, write_of
from tests.stores.contract_records import RecordStoreContract


class KubeBackend:
    """The stores by way of a proxy that loses things; everybody else goes straight."""

    def __init__(self, store_client: KubeClient, others: KubeClient, proxy: Proxy) -> None:
        self._later = timedelta()
        self.store, self.records = KubeRunStore(store_client), KubeRecordStore(store_client, lambda: datetime.now(UTC) + self._later)
        self.objects, self.proxy = Objects(others), proxy

    def later(self, seconds: float) -> None:
        self._later += timedelta(seconds=seconds)

    async def create(self, name: str, **spec: Any) -> RunKey:
        return await self.objects.create_run(name, **spec)

    async def patch_spec(self, key: RunKey, changes: Mapping[str, Any]) -> None:
        await self.objects.merge_run(key, {"spec": changes})

    async def patch_status(self, key: RunKey, changes: Mapping[str, Any]) -> None:
        await self.objects.merge_run(key, {"status": changes}, "status")

    async def delete(self, key: RunKey) -> None:
        await self.objects.delete(GROUP_VERSION, "agentruns", key.name)

    async def document(self, key: RunKey) -> dict[str, Any]:
        return await self.objects.run(key)

    def lose_replies(self) -> None:
        self.proxy.replies = False

    def lose_calls(self) -> None:
        self.proxy.calls = False

    def heal(self) -> None:
        self.proxy.heal()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """An API server of our own: its CRD is one of a newer version, which would disturb others."""
    with Cluster("contract-stores", nodes=0) as cluster:
        install_crds(cluster, newer_crd(), crd("agentrunrecords"))
        yield cluster


@pytest.fixture
async def backend(cluster: Cluster) -> AsyncIterator[KubeBackend]:
    async with (
        Proxy(cluster.server) as proxy,
        # One connection, so that what is lost is the reply to the call and not a handshake.
        client_of(cluster, server=proxy.url, pool=1) as store_client,
        client_of(cluster, manager="others") as others,
    ):
        yield KubeBackend(store_client, others, proxy)


class TestRuns(RunStoreContract):
    pass


class TestLostReplies(LostReplyContract):
    pass


class TestUnknownFields(UnknownFieldsContract):
    pass


class TestRecords(RecordStoreContract):
    pass


class TestOfKubernetesAlone:
    async def test_the_api_server_refuses_what_breaks_an_invariant_and_says_why(self, backend: KubeBackend) -> None:
        stored = await claimed(backend, Driver(backend.store))
        with pytest.raises(Refused) as refused:
            await backend.store.save(write_of(stored, lambda run: replace(run, token=Token(0))))
        assert refused.value.code is Code.BAD_REQUEST
        assert "fencingToken" in refused.value.detail
        assert await backend.store.load(stored.key) == stored

    async def test_a_write_is_made_under_the_name_of_the_gateway(self, backend: KubeBackend) -> None:
        stored = await claimed(backend, Driver(backend.store))
        managers = (await backend.document(stored.key))["metadata"]["managedFields"]
        assert [(item["manager"], item["subresource"]) for item in managers if "subresource" in item] == [("stepfence-gateway", "status")]

    async def test_the_size_of_an_object_is_counted_without_its_status(self, backend: KubeBackend) -> None:
        small, large = await new(backend), await new(backend, input={"text": "x" * 5000})
        empty = [(await backend.store.load(key)).base_bytes for key in (small, large)]
        assert 5000 <= empty[1] - empty[0] < 5100
        begun = []
        for payload in ("", "p" * 900):
            driver = Driver(backend.store)
            stored = await claimed(backend, driver)
            begun.append(await driver.begin(stored.key, "refund", 1, payload=payload))
        assert len(str(begun[1].raw)) - len(str(begun[0].raw)) >= 900
        assert abs(begun[1].base_bytes - begun[0].base_bytes) < 50

    async def test_a_record_goes_with_its_run_and_an_identity_stays(self, backend: KubeBackend) -> None:
        run = (await backend.store.load(await new(backend, runID="kept"))).run
        text = canonical("body")
        name = await backend.records.put(run, RecordKind.RESULT, text, digest(text))
        record = await backend.objects.get(GROUP_VERSION, RECORD_PLURAL, name)
        assert [owner["uid"] for owner in record["metadata"]["ownerReferences"]] == [run.uid]
        assert record["metadata"]["labels"]["stepfence.dev/run"] == run.name
        await backend.records.spend(run)
        found = good(await backend.objects.client.get(kube_path(GROUP_VERSION, RECORD_PLURAL, "default")))
        identity = next(item for item in found["items"] if item["spec"].get("runID") == "default/kept")
        assert "ownerReferences" not in identity["metadata"]

    async def test_a_record_that_was_tampered_with_before_is_no_success(self, backend: KubeBackend) -> None:
        run = (await backend.store.load(await new(backend))).run
        text, other = canonical("body"), canonical("other")
        name = await backend.records.put(run, RecordKind.RESULT, other, digest(text)[:23] + digest(other)[23:])
        with pytest.raises(Refused) as refused:
            await backend.records.put(run, RecordKind.RESULT, text, digest(text))
        assert refused.value.code is Code.STORE_CONFLICT
        with pytest.raises(Refused) as refused:
            await backend.records.get(run, name)
        assert refused.value.code is Code.STORE_UNAVAILABLE

    async def test_a_reply_lost_once_is_unknown_or_a_conflict_and_never_a_second_write(self, backend: KubeBackend) -> None:
        stored = await backend.store.load(await new(backend))
        backend.lose_replies()
        saving = asyncio.create_task(backend.store.save(write_of(stored, phase="Running")))
        others = backend.objects

        async def written() -> None:
            while (await others.stored(stored.key)).run.version == 0:
                pass

        await asyncio.wait_for(written(), 20)
        backend.heal()
        # The HTTP client may send a PUT again by itself: the version that was read makes the second one a conflict.
        with pytest.raises((Unknown, Conflict)):
            await saving
        assert (await others.stored(stored.key)).run.version == 1

    async def test_a_frozen_api_server_is_unknown_within_the_deadline(self, cluster: Cluster, backend: KubeBackend) -> None:
        key = await new(backend)
        async with client_of(cluster, seconds=0.5) as client:
            store = KubeRunStore(client)
            stored = await store.load(key)
            with cluster.frozen("kube-apiserver"):
                for work in (store.load(key), store.save(write_of(stored))):
                    async with asyncio.timeout(5):
                        with pytest.raises(Unknown):
                            await work
            assert (await backend.store.load(key)).run.version in (0, 1)

    async def test_a_kind_that_is_not_served_is_an_unavailable_store_and_no_missing_run(self, backend: KubeBackend) -> None:
        reply = await backend.objects.client.get("/apis/stepfence.dev/v9/namespaces/default/agentruns/x")
        assert (reply.status, reply.object_missing) == (404, False)

    async def test_without_rights_the_store_is_unavailable(self, cluster: Cluster, backend: KubeBackend) -> None:
        key = await new(backend)
        cluster.kubectl("create", "serviceaccount", "nobody", "-n", "default")
        token = cluster.kubectl("create", "token", "nobody", "-n", "default").strip()
        async with client_of(cluster) as client:
            configuration = client._api.configuration
            configuration.api_key["BearerToken"] = f"Bearer {token}"
            configuration.cert_file = configuration.key_file = None
            bare = KubeClient(configuration, "stepfence-gateway")
            with pytest.raises(Refused) as refused:
                await KubeRunStore(bare).load(key)
            await bare.close()
        assert refused.value.code is Code.STORE_UNAVAILABLE

    async def test_it_connects_with_the_kubeconfig_that_is_named(
        self, cluster: Cluster, backend: KubeBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = await new(backend)
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        client = await connect("stepfence-gateway")
        try:
            assert (await KubeRunStore(client).load(key)).key == key
        finally:
            await client.close()

    def test_a_field_manager_that_gitops_tools_would_undo_is_refused(self) -> None:
        with pytest.raises(ValueError, match="kubectl"):
            KubeClient(None, "kubectl-stepfence")  # type: ignore[arg-type]
