"""A claim that cannot be answered changes nothing; and what cannot be read of what is recorded keeps nobody from claiming."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepfence.app.recorded import Recorded
from stepfence.core.canonical import canonical, digest
from stepfence.core.errors import Code, Refused, Unknown
from stepfence.core.model import Run
from stepfence.stores import MemoryRecordStore
from tests.gateway.support import Gateway, Pod, code, gateway

LARGE: Any = {"text": "x" * 5_000}
MARK = "\ue000whole:5"


async def done(world: Gateway, result: Any = LARGE) -> Pod:
    """A pod that has done `lookup` with a result, and holds the run."""
    pod = await world.claimed()
    await pod.post("/steps/lookup/begin", payload=None)
    assert (await pod.post("/steps/lookup/complete", attempt=1, result=result)).json()["outcome"] == "Done"
    return pod


def breaks(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def get(_self: object, _run: Run, _name: str) -> str:
        raise error

    monkeypatch.setattr(MemoryRecordStore, "get", get)


@pytest.mark.parametrize(
    "error",
    [
        Unknown("the store is away"),
        Refused(Code.STORE_UNAVAILABLE, "records: forbidden", retry_after=5.0),
        Refused(Code.OVER_BUDGET, "fewer calls", retry_after=1.0),
    ],
    ids=["the store is away", "a right is missing", "too many calls"],
)
async def test_a_claim_that_cannot_be_answered_yet_changes_nothing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async with gateway() as world:
        pod = await done(world)
        await pod.post("/steps/refund/begin", payload=None)
        before = pod.run.status
        with monkeypatch.context() as broken:
            breaks(broken, error)
            for _ in range(3):
                refused = await pod.post("/claim")
                assert code(refused) in ("store-unavailable", "over-budget")
        assert pod.run.status == before
        claimed = await pod.claim()
        assert (claimed["token"], claimed["ledger"]["lookup"]["result"]) == (2, LARGE)
        assert claimed["ledger"]["refund"]["state"] == "Unknown"


async def test_a_claim_that_was_written_and_could_not_be_answered_is_answered_under_the_same_token(monkeypatch: pytest.MonkeyPatch) -> None:
    gather, asked = Recorded.gather, 0

    async def later(self: Recorded, run: Run) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:  # a result that a late worker reported between the two is out of reach
            raise Unknown("the store is away")
        if asked > 2:
            await gather(self, run)

    async with gateway() as world:
        pod = await done(world)
        with monkeypatch.context() as broken:
            broken.setattr(Recorded, "gather", later)
            assert code(await pod.post("/claim", requestID="one")) == "store-unavailable"
            answers = [(await pod.post("/claim", requestID="one")).json() for _ in range(2)]
        assert [(answer["token"], answer["ledger"]["lookup"]["result"]) for answer in answers] == [(2, LARGE)] * 2


@pytest.mark.parametrize(
    "text",
    [None, '{"text":"another one"}', '{"text":', "[" * 100_000],
    ids=["it is gone", "it is another one", "it is cut", "it is deep"],
)
async def test_a_result_that_is_lost_is_told_as_not_stored_and_the_run_goes_on(text: str | None) -> None:
    async with gateway() as world:
        pod = await done(world)
        kept = world.cluster.records._bodies
        for name in list(kept):
            if text is None:
                del kept[name]
            else:
                kept[name] = replace(kept[name], text=text)
        claimed = await pod.claim()
        lookup = claimed["ledger"]["lookup"]
        assert (claimed["token"], lookup["state"], lookup["result"], lookup["resultStored"]) == (2, "Done", None, False)
        assert (lookup["resultDigest"], lookup["resultBytes"]) == (digest(canonical(LARGE)), len(canonical(LARGE)))
        assert (await pod.post("/steps/refund/begin", payload=None)).json()["outcome"] == "Go"


async def test_a_lost_result_is_told_as_not_stored_in_every_answer() -> None:
    async with gateway() as world:
        pod = await done(world)
        world.cluster.records._bodies.clear()
        for answer in (
            await pod.post("/steps/lookup/begin", payload=None),
            await pod.post("/steps/lookup/probe", attempt=1, verdict="Happened", asOf="2026-01-02T03:04:05Z", result=None),
        ):
            told = answer.json()
            assert (told["outcome"], told["result"], told["resultStored"]) == ("Done", None, False)
            assert told["resultDigest"] == digest(canonical(LARGE))
        assert code(await pod.get("/steps/lookup/result")) == "not-found"


async def test_a_result_that_comes_back_is_told_again() -> None:
    async with gateway() as world:
        pod = await done(world)
        kept = dict(world.cluster.records._bodies)
        world.cluster.records._bodies.clear()
        assert (await pod.claim())["ledger"]["lookup"]["resultStored"] is False
        world.cluster.records._bodies.update(kept)
        assert (await pod.claim())["ledger"]["lookup"]["result"] == LARGE


@pytest.mark.parametrize(
    "text",
    ['{"5":1152921504606846976}', f"{{{MARK}:5}}", "[" * 2_000 + "]" * 2_000],
    ids=["it is another one", "it is no JSON", "it is deep"],
)
async def test_a_result_in_the_run_that_is_no_json_keeps_nobody_from_claiming(text: str) -> None:
    async with gateway() as world:
        pod = await done(world, result={"n": 1})
        stored = world.cluster.store._objects[pod.run.key]["status"]["ledger"]["lookup"]
        stored["result"] = text
        if not text.startswith("{"):
            stored["resultDigest"] = digest(text)
        claimed = await pod.claim()
        assert (claimed["ledger"]["lookup"]["result"], claimed["ledger"]["lookup"]["resultStored"]) == (None, False)


async def test_a_result_is_what_it_was_whatever_its_names_are_like() -> None:
    odd = {MARK: 2**60, f'"{MARK}"': [f"{MARK}1", -(2**63)], "\uf8ff": "\ue000"}
    async with gateway() as world:
        pod = await world.claimed()
        assert (await pod.post("/steps/lookup/begin", payload=odd)).json()["payload"] == odd
        await pod.post("/steps/lookup/complete", attempt=1, result=odd)
        for token in (2, 3):
            claimed = await pod.claim()
            assert (claimed["token"], claimed["ledger"]["lookup"]["result"]) == (token, odd)


async def test_no_result_is_read_for_a_claim_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway() as world:
        pod = await done(world)
        await pod.post("/steps/refund/begin", payload=None)
        await pod.post("/steps/refund/lose", attempt=1, reason="TimedOut")
        breaks(monkeypatch, Unknown("nobody may ask"))
        assert code(await pod.post("/claim")) == "halted"


async def test_a_run_that_began_under_another_limit_of_depth_is_claimed_by_nobody() -> None:
    deep: Any = 1
    for _ in range(70):
        deep = [deep]
    async with gateway() as world:
        pod = await world.pod(await world.run(input={"order": "4711"}))
        world.cluster.store._objects[pod.run.key]["spec"]["input"] = {"order": deep}
        refused = await pod.post("/claim")
        assert (code(refused), "spec.input: nested deeper than 64 levels" in refused.json()["detail"]) == ("bad-request", True)
        assert pod.run.status.get("fencingToken", 0) == 0


async def test_a_begin_whose_recorded_payload_is_lost_is_held_and_says_how_to_answer() -> None:
    async with gateway() as world:
        pod = await world.claimed(plan=[{"id": "refund", "action": "Payment", "attempts": 3, "backoffSeconds": 0}])
        await pod.post("/steps/refund/begin", payload={**LARGE, "to": "alice"})
        await pod.post("/steps/refund/fail", attempt=1, reason="NotApplied")
        world.cluster.records._bodies.clear()
        refused = await pod.post("/steps/refund/begin", payload={**LARGE, "to": "bob"})
        told = refused.json()
        assert (refused.status_code, code(refused), told["phase"]) == (409, "held", "Held")
        assert told["question"] in told["patch"]
        assert "lost or damaged" in told["detail"]
        assert pod.run.status["questions"][told["question"]]["reason"] == "PayloadLost"
