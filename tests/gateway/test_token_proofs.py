"""The proof of a token over HTTP: claims answer it, an older copy of the store is told by it, and without it nobody is believed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from stepfence.app import Applier, TokenProofs, WorkerCalls
from stepfence.gateway.app import create_app
from stepfence.gateway.proof_keys import KEYS_FILE, follow_keys, load_keys
from stepfence.testing import FakeIds
from tests.gateway.support import Gateway, Pod, code, gateway
from tests.gateway.test_auth import put_back
from tests.gateway.test_reports import said

OLD, NEW = b"o" * 32, b"n" * 32


@asynccontextmanager
async def replica(world: Gateway, pod: Pod, *keys: bytes) -> AsyncIterator[None]:
    """Send the pod's calls to a gateway that was started just now, with these keys: it remembers nothing of the run."""
    cluster, before = world.cluster, pod.client
    applier = Applier(cluster.store, world.clock, FakeIds(), cluster.settings)
    app = create_app(WorkerCalls(applier, cluster.records, cluster.gate, TokenProofs(keys)), cluster.gate)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        pod.client = client
        yield
        pod.client = before


async def claimed_and_put_back(world: Gateway) -> Pod:
    """A worker that holds the run under token 2, in a store that was then put back to token 1."""
    pod = await world.pod(await world.run())
    async with replica(world, pod, OLD):
        await pod.claim()
        older = world.cluster.store.document(pod.run.key)
        await pod.claim()
    assert pod.token == 2
    put_back(world, older)
    return pod


@pytest.mark.parametrize("keys", [(OLD,), (NEW, OLD)], ids=["the same key", "a newer key before it"])
async def test_an_older_copy_is_noticed_by_a_gateway_that_was_started_since(keys: tuple[bytes, ...]) -> None:
    async with gateway() as world:
        pod = await claimed_and_put_back(world)
        async with replica(world, pod, *keys):
            assert code(await pod.post("/steps/refund/begin", payload={})) == "held"
        assert pod.run.status["hold"]["reason"] == "LedgerBehind"
        assert pod.run.status["fencingToken"] == 1


async def test_an_idle_worker_notices_an_older_copy_when_it_renews_its_lease() -> None:
    async with gateway() as world:
        pod = await claimed_and_put_back(world)
        async with replica(world, pod, OLD):
            assert code(await pod.post("/renew")) == "held"
        assert pod.run.status["hold"]["reason"] == "LedgerBehind"


@pytest.mark.parametrize("keys", [(NEW,), ()], ids=["another key", "no key"])
async def test_a_proof_whose_key_is_lost_is_none_and_the_run_is_left_alone(keys: tuple[bytes, ...]) -> None:
    async with gateway() as world:
        pod = await claimed_and_put_back(world)
        before = pod.run.status
        async with replica(world, pod, *keys):
            for path in ("/steps/refund/begin", "/renew", "/finish"):
                assert code(await pod.post(path, payload={})) == "fenced"
        assert pod.run.status == before


async def test_a_worker_that_sends_no_proof_is_served_under_its_own_token_and_not_believed_under_another() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        pod.proof = None
        assert (await pod.post("/steps/lookup/begin", payload={})).json()["outcome"] == "Go"
        before = pod.run.status
        pod.token = 9
        refused = await pod.post("/steps/lookup/complete", attempt=1, result=None)
        assert (code(refused), refused.json()["token"]) == ("fenced", 1)
        assert pod.run.status == before


async def test_a_claim_at_a_gateway_without_keys_has_no_proof() -> None:
    async with gateway() as world:
        pod = await world.pod(await world.run())
        async with replica(world, pod):
            assert (await pod.claim())["tokenProof"] is None
            assert (await pod.post("/renew")).status_code == 200


@pytest.mark.parametrize("proof", [7, ["p1.x"], "x" * 1025], ids=["a number", "a list", "too long"])
async def test_a_proof_that_is_no_text_is_named(proof: object) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        refused = await pod.post("/renew", tokenProof=proof)
        assert (code(refused), refused.json()["field"]) == ("bad-request", "tokenProof")


@pytest.mark.parametrize(
    "proof", [7, ["p1.x"], "x" * 1025, None, "\ud800", {}], ids=["number", "list", "long", "null", "half a character", "object"]
)
async def test_a_report_is_heard_whatever_its_proof_is_like(proof: object) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await pod.post("/steps/refund/begin", payload={})
        told = await said(pod, "/steps/refund/complete", result="re_1", tokenProof=proof)
        assert (told.status_code, told.json()["outcome"]) == (200, "Done")
        newer = await said(pod, "/steps/refund/complete", result="re_1", token=9, tokenProof=proof)
        assert code(newer) == "fenced"


def test_keys_are_read_from_the_secrets_file_the_newest_first(tmp_path: Path) -> None:
    (tmp_path / KEYS_FILE).write_text(f"{NEW.hex()}\n\n{OLD.hex()}\n")
    proofs = TokenProofs()
    load_keys(tmp_path, proofs)
    assert proofs.of("uid", 1) == TokenProofs((NEW,)).of("uid", 1)
    assert proofs.shown(TokenProofs((OLD,)).of("uid", 1), "uid", 1)


@pytest.mark.parametrize("line", ["no-hex", NEW.hex()[2:], NEW.hex() + "00"])
def test_a_line_that_is_no_key_is_named_by_its_number_alone(line: str, tmp_path: Path) -> None:
    (tmp_path / KEYS_FILE).write_text(f"{OLD.hex()}\n{line}\n")
    proofs = TokenProofs()
    with pytest.raises(ValueError, match="line 2 is no key") as wrong:
        load_keys(tmp_path, proofs)
    assert line not in str(wrong.value)
    assert proofs.known == 0


async def test_keys_are_waited_for_and_followed(tmp_path: Path) -> None:
    proofs = TokenProofs()
    following = asyncio.create_task(follow_keys(tmp_path, proofs, look_seconds=0.01))
    try:
        for number, text in enumerate((OLD.hex(), f"{NEW.hex()}\n{OLD.hex()}"), start=1):
            (tmp_path / "next").write_text(text)
            (tmp_path / "next").replace(tmp_path / KEYS_FILE)
            async with asyncio.timeout(20):
                while proofs.known < number:
                    await asyncio.to_thread(lambda: None)
    finally:
        following.cancel()
    assert proofs.of("uid", 1) == TokenProofs((NEW,)).of("uid", 1)
