"""Two gateway processes over TLS on a real API server, with real tokens of pods and the rights of the manifests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.cluster import Cluster, eventually
from e2e.contract.gateways import NAMESPACE, PROOF_KEY, GatewayProcess, allow_gateways, two_gateways
from e2e.contract.kube import GROUP_VERSION, client_of, crd, good, install_crds
from e2e.contract.workers import PLAN, WorkerPod, Workers, signed_again
from stepfence.app import TokenProofs
from stepfence.ports import RunKey
from tests.gateway.support import code

Pair = tuple[GatewayProcess, GatewayProcess]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """An API server of our own: it is frozen here, which would disturb others."""
    with Cluster("contract-gateway", nodes=0) as cluster:
        install_crds(cluster, crd("agentruns"), crd("agentrunrecords"))
        yield cluster


@pytest.fixture(scope="module")
def pair(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("gateways")
    kubeconfig = allow_gateways(cluster, folder)
    with two_gateways(folder, kubeconfig, store_seconds="2", lease_seconds="60") as pair:
        yield pair


class World:
    """Workers, and a client of each gateway."""

    def __init__(self, workers: Workers, first: httpx.AsyncClient, second: httpx.AsyncClient) -> None:
        self.workers, self.first, self.second = workers, first, second

    async def worker(self, key: RunKey | None = None, name: str = "") -> WorkerPod:
        """A pod of the run's current worker, at the first gateway."""
        key = key or await self.workers.new_run()
        job = (await self.workers.run(key))["status"]["worker"]["job"]
        return await self.workers.worker(key, job, name or f"{job}-pod", self.first)

    async def stale(self) -> tuple[WorkerPod, WorkerPod]:
        """A pod that has begun `lookup` and lost the run to a second claim, and the pod that has it."""
        first = await self.worker()
        await first.claim()
        begun = await first.post("/steps/lookup/begin", payload={"order": 1})
        assert begun.json()["outcome"] == "Go"
        await self.workers.terminated(first.name)
        second = await self.worker(first.key, f"{first.name}-2")
        await second.claim()
        return first, second.through(self.second)


@pytest.fixture
async def world(cluster: Cluster, pair: Pair) -> AsyncIterator[World]:
    async with client_of(cluster, manager="others") as client, pair[0].client() as first, pair[1].client() as second:
        workers = Workers(client, "support")
        await workers.prepare()
        yield World(workers, first, second)


async def test_any_replica_serves_any_call(world: World) -> None:
    at_first = await world.worker()
    claimed = await at_first.claim()
    assert (claimed["token"], claimed["namespace"], [step["id"] for step in claimed["plan"]["steps"]]) == (
        1,
        "support",
        ["lookup", "refund"],
    )
    for number, step in enumerate(("lookup", "refund")):
        here, there = (at_first, at_first.through(world.second)) if number else (at_first.through(world.second), at_first)
        begun = await here.post(f"/steps/{step}/begin", payload={"step": step})
        assert begun.json()["outcome"] == "Go", begun.text
        done = await there.post(f"/steps/{step}/complete", attempt=1, result={"of": step})
        assert done.json()["outcome"] == "Done", done.text
        replay = await here.post(f"/steps/{step}/begin", payload={"step": step})
        assert replay.json()["result"] == {"of": step}
    assert (await at_first.post("/finish", result="all")).json() == {"outcome": "Succeeded"}
    status = (await world.workers.run(at_first.key))["status"]
    assert (status["phase"], status["progress"], status["result"]) == ("Succeeded", "2/2", '"all"')


async def test_what_a_lost_worker_did_is_heard_by_a_gateway_that_never_met_it_when_its_job_is_gone(world: World) -> None:
    """The controller deletes the Job of a worker on a lost node; the pod comes back while its object still stands."""
    lost = await world.worker()
    await lost.claim()
    assert (await lost.post("/steps/refund/begin", payload={"order": 1})).json()["outcome"] == "Go"
    job = lost.manifest["metadata"]["ownerReferences"][0]["name"]
    await world.workers.delete("batch/v1", "jobs", job)
    renewed = await lost.through(world.second).post("/renew")
    assert (renewed.status_code, renewed.json().get("stop")) == (200, None), renewed.text
    heard = await lost.through(world.second).post("/steps/refund/complete", attempt=1, result={"id": "re_1"})
    assert (heard.status_code, heard.json().get("outcome")) == (200, "Done"), heard.text
    stranger = await world.workers.pod(None, f"{lost.name}-stranger")
    bearer = await world.workers.token(stranger)
    refused = await lost.through(world.second).post("/steps/lookup/begin", bearer=bearer, payload={})
    assert (refused.status_code, code(refused)) == (403, "forbidden")


async def test_of_two_pods_that_claim_at_two_gateways_one_wins_and_the_other_has_no_effect(world: World) -> None:
    for _ in range(5):
        key = await world.workers.new_run()
        one = await world.worker(key, f"{key.name}-one")
        two = (await world.worker(key, f"{key.name}-two")).through(world.second)
        before = (await world.workers.run(key))["status"]["version"]
        answers = await asyncio.gather(one.post("/claim"), two.post("/claim"))
        assert sorted(answer.status_code for answer in answers) == [200, 409]
        winner, loser = (one, two) if answers[0].status_code == 200 else (two, one)
        lost = next(answer for answer in answers if answer.status_code == 409)
        assert code(lost) == "holder-alive"
        status = (await world.workers.run(key))["status"]
        assert (status["fencingToken"], status["version"] - before) == (1, 1)
        assert status["holder"]["podUID"] == winner.manifest["metadata"]["uid"]
        loser.token = 1
        assert code(await loser.post("/steps/refund/begin", payload=None)) == "fenced"
        winner.token = 1
        assert (await winner.post("/steps/refund/begin", payload=None)).json()["outcome"] == "Go"


async def test_a_process_that_claims_again_in_its_pod_fences_out_the_one_before(world: World) -> None:
    first = await world.worker()
    await first.claim()
    again = first.through(world.second)
    assert (await again.claim())["token"] == 2
    refused = await first.post("/steps/lookup/begin", payload=None)
    assert (code(refused), refused.json()["token"]) == ("fenced", 2)


STALE: list[tuple[str, dict[str, Any]]] = [
    ("/plan", {"steps": [*PLAN, {"id": "more"}]}),
    ("/steps/refund/begin", {"payload": None}),
    ("/steps/lookup/fail", {"attempt": 1, "reason": "Declined"}),
    ("/steps/lookup/probe", {"attempt": 1}),
    ("/renew", {}),
    ("/drain", {}),
    ("/release", {"reason": "Drained"}),
    ("/finish", {"result": None}),
    ("/fail", {"reason": "Odd"}),
    ("/halt", {"reason": "Odd"}),
]


async def test_a_stale_token_is_refused_on_every_write_route_with_a_visible_reason(world: World) -> None:
    first, second = await world.stale()
    before = await world.workers.run(first.key)
    for path, body in STALE:
        for gateway in (world.first, world.second):
            refused = await first.through(gateway).post(path, **body)
            assert (refused.status_code, code(refused)) == (409, "fenced"), f"{path}: {refused.text}"
            assert refused.json()["token"] == second.token == 2
            assert "token 1 is not the current one (2)" in refused.json()["detail"]
    # A claim is refused too: the pod that has the run is alive.
    assert code(await first.post("/claim")) == "holder-alive"
    # What is already recorded is answered, and changes nothing.
    assert (await first.post("/steps/lookup/lose", attempt=1, reason="Late")).json()["outcome"] == "Unknown"
    after = await world.workers.run(first.key)
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_a_token_that_was_never_given_changes_nothing_and_one_that_was_given_holds_a_run_that_does_not_know_it(world: World) -> None:
    worker = await world.worker()
    claimed = await worker.claim()
    proofs = TokenProofs((PROOF_KEY,))
    assert claimed["tokenProof"] == proofs.of(claimed["uid"], 1)
    before = await world.workers.run(worker.key)
    for forged in (None, claimed["tokenProof"]):
        refused = await worker.post("/steps/lookup/begin", payload={}, token=2, tokenProof=forged)
        assert code(refused) == "fenced"
    assert await world.workers.run(worker.key) == before
    # As from a store that went back: a gateway gave this token, the run does not know it.
    given = proofs.of(claimed["uid"], 2)
    assert code(await worker.through(world.second).post("/renew", token=2, tokenProof=given)) == "held"
    held = (await world.workers.run(worker.key))["status"]
    assert (held["hold"]["reason"], held["fencingToken"]) == ("LedgerBehind", 1)


async def test_the_truth_of_a_recorded_attempt_is_heard_under_a_stale_token(world: World) -> None:
    first, second = await world.stale()
    done = await first.post("/steps/lookup/complete", attempt=1, result={"found": True})
    assert (done.status_code, done.json()["outcome"]) == (200, "Done"), done.text
    assert (await second.post("/steps/lookup/begin", payload={"order": 1})).json()["result"] == {"found": True}


async def test_a_foreign_run_and_one_that_is_not_there_are_told_alike(world: World) -> None:
    pod, other = await world.worker(), await world.worker()
    answers = [await pod.post("/claim", run=run) for run in (other.key.name, "nowhere")]
    for answer in answers:
        assert (answer.status_code, code(answer)) == (403, "forbidden")
    first, second = [{name: value for name, value in answer.json().items() if name != "instance"} for answer in answers]
    assert first == second
    assert not {"token", "phase"} & set(first)


async def test_a_pod_that_no_run_owns_is_a_403_whatever_its_labels_say(world: World) -> None:
    victim = await world.worker()
    labels = {"stepfence.dev/run": victim.key.name, "job-name": victim.name.removesuffix("-pod")}
    stranger = await world.workers.pod(None, f"{victim.key.name}-stranger", labels=labels)
    bearer = await world.workers.token(stranger)
    assert code(await victim.post("/claim", bearer=bearer)) == "forbidden"


async def test_a_pod_whose_run_is_gone_gets_a_404(world: World) -> None:
    pod = await world.worker()
    await pod.claim()
    await world.workers.delete(GROUP_VERSION, "agentruns", pod.key.name)
    for path, body in [("/claim", {}), ("/steps/lookup/begin", {"payload": None}), ("/renew", {})]:
        assert code(await pod.post(path, **body)) == "not-found"
    # Made again under its name it is another run, of which this pod is no worker.
    await world.workers.create_run(pod.key.name, plan={"steps": PLAN})
    assert code(await pod.post("/claim")) == "forbidden"
    assert code(await pod.post("/steps/lookup/begin", payload=None)) == "not-found"


async def test_a_token_for_another_audience_or_of_no_pod_is_a_401(world: World) -> None:
    pod = await world.worker()
    api = "https://kubernetes.default.svc.cluster.local"
    for bearer in (await world.workers.token(pod.manifest, audience=api), await world.workers.token(None), "no.jwt.atall"):
        assert code(await pod.post("/claim", bearer=bearer)) == "unauthenticated"


async def test_an_expired_token_is_a_401(world: World, cluster: Cluster) -> None:
    pod = await world.worker()
    key = cluster.kubeconfig.parent / "service-accounts.key"
    live, over = (signed_again(pod.bearer, key, lives=seconds) for seconds in (600, -60))
    assert code(await pod.post("/claim", bearer=over)) == "unauthenticated"
    # Signed the same way but not expired, it is good: so it is the time alone that was refused.
    assert (await pod.post("/claim", bearer=live)).status_code == 200


async def test_the_token_of_a_pod_that_is_gone_is_a_401(world: World) -> None:
    pod = await world.worker()
    await world.workers.delete("v1", "pods", pod.name, gracePeriodSeconds=0)
    assert code(await pod.post("/claim")) == "unauthenticated"


async def test_the_next_worker_claims_once_the_one_before_is_over(world: World) -> None:
    first = await world.worker()
    await first.claim()
    await world.workers.next_worker(first.key)
    second = await world.worker(first.key)
    assert code(await second.post("/claim")) == "holder-alive"
    assert code(await first.post("/claim", requestID="anew")) == "forbidden"
    # Pod garbage collection gives a phase to pods on nodes that it cannot reach: that is no word of a kubelet.
    await world.workers.container(first.name, None, "Failed")
    assert code(await second.post("/claim")) == "holder-alive"
    await world.workers.terminated(first.name)
    assert (await second.claim())["token"] == 2


async def test_a_renewal_is_a_lease_of_the_workers_job_and_leaves_the_run_alone(world: World) -> None:
    pod = await world.worker()
    await pod.claim()
    before = await world.workers.run(pod.key)
    job = await world.workers.get("batch/v1", "jobs", before["status"]["worker"]["job"])
    renewals = []
    for gateway in (world.first, world.second):
        assert (await pod.through(gateway).post("/renew")).json() == {"leaseSeconds": 60, "stop": None}
        lease = await world.workers.get("coordination.k8s.io/v1", "leases", job["metadata"]["name"])
        assert lease["spec"]["holderIdentity"] == pod.manifest["metadata"]["uid"]
        assert [owner["uid"] for owner in lease["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
        renewals.append(lease["spec"]["renewTime"])
    assert renewals[0] < renewals[1]
    assert (await world.workers.run(pod.key))["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_large_bodies_go_into_records_and_come_back(world: World) -> None:
    pod = await world.worker()
    await pod.claim()
    payload, result = {"text": "p" * 20_000}, {"text": "r" * 100_000}
    begun = await pod.post("/steps/refund/begin", payload=payload)
    assert begun.json()["payload"] == payload
    done = await pod.post("/steps/refund/complete", attempt=1, result=result)
    assert done.json()["result"] == result
    entry = (await world.workers.run(pod.key))["status"]["ledger"]["refund"]
    assert "result" not in entry
    assert entry["resultRecord"].startswith((await world.workers.run(pod.key))["metadata"]["uid"])


async def test_an_api_server_that_does_not_answer_is_a_503_and_unreadiness_and_no_more(world: World, cluster: Cluster, pair: Pair) -> None:
    pod = await world.worker()
    await pod.claim()
    with cluster.frozen("kube-apiserver"):
        lost = await pod.post("/steps/refund/begin", requestID="same", payload=None)
        assert (lost.status_code, code(lost)) == (503, "store-unavailable")
        eventually("a gateway that is not ready", lambda: pair[0].health("readyz") == 503, seconds=30)
        assert pair[0].health("livez") == 200
    for gateway in pair:
        gateway.wait_ready()
    begun = await pod.post("/steps/refund/begin", requestID="same", payload=None)
    assert (begun.json()["outcome"], begun.json()["attempt"]) == ("Go", 1)


async def test_gateways_share_the_byte_budget(world: World, pair: Pair) -> None:
    endpoints = [
        {"addresses": [f"10.0.0.{number}"], "conditions": {"ready": number < 3}, "targetRef": {"kind": "Pod", "uid": f"uid-{number}"}}
        for number in range(1, 4)
    ]
    manifest = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "stepfence-gateway-1", "labels": {"kubernetes.io/service-name": "stepfence-gateway"}},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "https", "port": 8443}],
    }
    good(await world.workers.client.post(f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices", manifest))
    half = f"stepfence_budget_bytes_per_second {1024 * 1024 / 2}"
    for gateway in pair:
        eventually(f"{gateway.name} with half of the budget", partial(_shows, gateway, half), seconds=30)
        assert 'stepfence_budget_bytes_total{kind="settle"}' in gateway.metrics()


def _shows(gateway: GatewayProcess, line: str) -> bool:
    return line in gateway.metrics()


async def test_a_gateway_that_is_told_to_go_ends_well(pair: Pair, tmp_path: Path) -> None:
    with GatewayProcess("gateway-c", tmp_path, pair[0].kubeconfig) as third:
        third.wait_ready()
        assert third.terminate() == 0
    assert '"event": "gateway.stopped"' in third.log.read_text()


def test_no_token_and_no_payload_is_in_the_logs(pair: Pair) -> None:
    text = "".join(gateway.log.read_text() for gateway in pair)
    assert '"event": "gateway.serving"' in text
    assert "eyJ" not in text
    assert "p" * 100 not in text
