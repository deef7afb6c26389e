"""Each worker route answers as the page of the wire says."""

from typing import Any

import pytest

from tests.gateway.support import PLAN, Gateway, Pod, code, gateway


async def begin(pod: Pod, step: str = "lookup", payload: Any = None, **more: Any) -> dict[str, Any]:
    answer = await pod.post(f"/steps/{step}/begin", payload=payload, **more)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_a_claim_brings_all_that_a_worker_needs_to_replay() -> None:
    async with gateway() as world:
        pod = await world.pod(await world.run(input={"order": "4711"}))
        claimed = await pod.claim()
    assert claimed["token"] == 1
    assert claimed["input"] == {"order": "4711"}
    assert claimed["runID"] == f"support/refund/{claimed['uid']}"
    assert [step["id"] for step in claimed["plan"]["steps"]] == ["lookup", "refund"]
    assert claimed["plan"]["steps"][1]["recovery"] == "Halt"
    assert (claimed["phase"], claimed["ledger"], claimed["stop"]) == ("Running", {}, None)
    assert (claimed["leaseSeconds"], claimed["marginSeconds"]) == (60, 10)
    assert claimed["remaining"]["steps"] == 254
    assert 0 < claimed["remaining"]["bytes"] < 128 * 1024


async def test_a_repeated_claim_gets_the_recorded_one_and_another_one_the_next_token() -> None:
    async with gateway() as world:
        pod = await world.pod(await world.run())
        tokens = [(await pod.post("/claim", requestID=request)).json()["token"] for request in ("a", "a", "b")]
    assert tokens == [1, 1, 2]


async def test_a_step_goes_from_begin_to_done_and_is_replayed() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        go = await begin(pod, payload={"order": "4711"})
        assert (go["outcome"], go["attempt"], go["payload"]) == ("Go", 1, {"order": "4711"})
        assert go["key"].startswith("sf1")
        assert (go["timeLeftSeconds"], go["timeoutSeconds"], go["payloadChanged"]) == (60, 60, False)
        done = (await pod.post("/steps/lookup/complete", attempt=1, result={"paid": 1.5})).json()
        assert (done["outcome"], done["state"], done["result"]) == ("Done", "Done", {"paid": 1.5})
        replay = await begin(pod, payload={"order": "4711"})
        assert (replay["outcome"], replay["result"], replay["resultStored"]) == ("Done", {"paid": 1.5}, True)
        assert 'stepfence_replays_total{image="agent:1"} 1.0' in world.cluster.app.state.metrics.text().decode()


async def test_a_large_result_is_read_back_from_its_record() -> None:
    large = {"text": "x" * 5000}
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod)
        await pod.post("/steps/lookup/complete", attempt=1, result=large)
        answer = await pod.get("/steps/lookup/result")
        assert answer.json()["result"] == large
        assert answer.json()["resultBytes"] == len('{"text":""}') + 5000
        missing = await pod.get("/steps/refund/result")
        assert code(missing) == "not-found"


@pytest.mark.parametrize(
    ("verb", "more", "outcome"),
    [
        ("fail", {"reason": "Declined", "message": "no", "final": True}, "Failed"),
        ("fail", {"reason": "Declined", "retryAfterSeconds": 3}, "Failed"),
        ("lose", {"reason": "TimedOut"}, "Unknown"),
    ],
)
async def test_a_report_says_what_became_of_the_attempt(verb: str, more: dict[str, Any], outcome: str) -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod, "refund")
        answer = await pod.post(f"/steps/refund/{verb}", attempt=1, **more)
        assert (answer.status_code, answer.json()["outcome"]) == (200, outcome)
        assert answer.json()["reason"] == more["reason"]


async def test_a_long_text_is_cut_and_the_report_is_heard() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod)
        answer = await pod.post("/steps/lookup/fail", attempt=1, reason="R" * 500, message="m" * 5000)
        assert answer.status_code == 200
        assert (len(answer.json()["reason"]), len(answer.json()["message"])) == (128, 1024)


async def test_a_text_that_is_no_unicode_is_mended_and_the_report_is_heard() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod)
        body = rb'{"requestID": "a", "token": 1, "attempt": 1, "reason": "R\udce9", "message": "m\udce9"}'
        headers = {"Authorization": f"Bearer {pod.bearer}", "Content-Type": "application/json"}
        answer = await pod.client.post(pod.base + "/steps/lookup/lose", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["reason"], answer.json()["message"]) == ("R?", "m?")


async def test_a_failed_step_is_waited_for_then_raised_again() -> None:
    async with gateway() as world:
        pod = await world.claimed(plan=[{"id": "lookup", "action": "Read", "attempts": 2}])
        await begin(pod)
        await pod.post("/steps/lookup/fail", attempt=1, reason="Refused", retryAfterSeconds=30)
        waiting = await begin(pod)
        assert (waiting["outcome"], waiting["retryAfterSeconds"]) == ("Wait", 30)
        world.clock.advance(30)
        assert (await begin(pod))["attempt"] == 2
        await pod.post("/steps/lookup/fail", attempt=2, reason="Refused", message="again")
        failed = await begin(pod)
        assert failed == {"outcome": "Failed", "reason": "Refused", "message": "again", "attempt": 2}


async def test_a_probe_waits_for_its_time_and_then_settles_the_step() -> None:
    async with gateway() as world:
        plan = [{"id": "refund", "action": "Payment", "probe": {"giveUpAfterSeconds": 300}}]
        pod = await world.claimed(plan=plan)
        await begin(pod, "refund", {"amount": 5})
        await pod.post("/steps/refund/lose", attempt=1, reason="TimedOut")
        asked = await begin(pod, "refund", {"amount": 5})
        assert (asked["outcome"], asked["payload"], asked["retryAfterSeconds"]) == ("Probe", {"amount": 5}, 70)
        early = (await pod.post("/steps/refund/probe", attempt=1)).json()
        assert early == {"outcome": "Wait", "retryAfterSeconds": 70}
        world.clock.advance(70)
        leave = (await pod.post("/steps/refund/probe", attempt=1)).json()
        assert leave == {"outcome": "Go", "asOf": "2026-01-02T03:05:15.000Z", "retryAfterSeconds": 0.0}
        unsure = await pod.post("/steps/refund/probe", attempt=1, asOf=leave["asOf"], verdict="CannotTell")
        assert unsure.json()["outcome"] == "Unknown"
        found = await pod.post("/steps/refund/probe", attempt=1, asOf=leave["asOf"], verdict="Happened", result={"id": "re_9"})
        assert (found.json()["outcome"], found.json()["result"]) == ("Done", {"id": "re_9"})


async def test_a_worker_submits_a_plan_once_and_appends_to_it() -> None:
    async with gateway() as world:
        pod = await world.claimed(plan=None)
        first = (await pod.post("/plan", steps=PLAN)).json()
        assert [step["id"] for step in first["plan"]["steps"]] == ["lookup", "refund"]
        assert (await pod.post("/plan", steps=PLAN)).json() == first
        longer = (await pod.post("/plan", steps=[*PLAN, {"id": "notify"}])).json()
        assert longer["plan"]["initialSteps"] == 2
        assert [step["action"] for step in longer["plan"]["steps"]] == ["Read", "Payment", "Create"]
        changed = await pod.post("/plan", steps=[{"id": "other"}])
        assert code(changed) == "plan-changed"


async def test_renew_drain_release_go_on_and_let_go() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        assert (await pod.post("/renew")).json() == {"leaseSeconds": 60, "stop": None}
        assert (await pod.post("/drain")).json() == {"draining": True}
        told = (await pod.post("/renew")).json()["stop"]
        assert told["code"] == "draining"
        assert code(await pod.post("/steps/lookup/begin", payload=None)) == "draining"
        assert (await pod.post("/release", reason="Drained")).json() == {"released": True}
        assert code(await pod.post("/renew")) == "fenced"


async def test_finish_is_refused_while_a_step_is_open_and_then_recorded() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod)
        assert code(await pod.post("/finish", result=1)) == "not-settled"
        await pod.post("/steps/lookup/complete", attempt=1, result=None)
        assert (await pod.post("/finish", result={"ok": True})).json() == {"outcome": "Succeeded"}
        assert pod.run.result == {"ok": True}


async def test_fail_ends_the_run_once_nothing_is_open() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        await begin(pod, "refund")
        assert (await pod.post("/fail", reason="Rejected", message="no such order")).json() == {"outcome": None, "ending": "Failed"}
        await pod.post("/steps/refund/complete", attempt=1, result=None)
        assert (await pod.post("/fail", reason="Rejected")).json() == {"outcome": "Failed", "ending": None}


async def test_halt_opens_a_question_with_the_command_that_answers_it() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        halted = (await pod.post("/halt", reason="Odd", message="the order has two owners")).json()
        assert halted["question"].startswith("run.")
        assert halted["patch"].startswith("kubectl -n support patch agentruns.stepfence.dev refund ")
        refused = await pod.post("/steps/lookup/begin", payload=None)
        assert (code(refused), refused.json()["question"], refused.json()["patch"]) == ("held", halted["question"], halted["patch"])


async def test_an_approval_is_waited_for_by_a_person_not_by_a_call() -> None:
    async with gateway() as world:
        pod = await world.claimed(plan=[{"id": "remove", "action": "Delete"}])
        refused = await pod.post("/steps/remove/begin", payload={"id": 1})
        assert (code(refused), refused.json()["phase"]) == ("awaiting-approval", "AwaitingApproval")
        question = refused.json()["question"]
        assert question in refused.json()["patch"]
        await pod.run.answer(question, "Deny")
        assert (await begin(pod, "remove", {"id": 1}))["outcome"] == "Denied"


async def test_a_begin_that_names_another_digest_than_its_payload_has_is_refused() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        refused = await pod.post("/steps/lookup/begin", payload={"a": 1}, payloadDigest="sha256:" + "0" * 64)
        assert (code(refused), refused.json()["field"]) == ("bad-request", "payloadDigest")


async def test_fields_that_are_not_known_are_passed_over() -> None:
    async with gateway() as world:
        pod = await world.claimed()
        assert (await begin(pod, ofANewerWorker={"x": 1}))["outcome"] == "Go"


async def stale(world: Gateway) -> tuple[Pod, Pod]:
    """A pod that has begun `lookup` and lost the run to a second claim, and the pod that has it now."""
    first = await world.claimed()
    await begin(first, "lookup", {"order": 1})
    old = world.cluster.gate.pods[first.bearer]
    old.terminated = True
    second = await world.pod(first.run)
    await second.claim()
    # It was not dead after all: a paused process that wakes up.
    old.terminated = False
    return first, second


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


@pytest.mark.parametrize(("path", "body"), STALE, ids=[path for path, _ in STALE])
async def test_a_stale_token_is_refused_and_told_the_current_one(path: str, body: dict[str, Any]) -> None:
    async with gateway() as world:
        first, second = await stale(world)
        before = first.run.status
        refused = await first.post(path, **body)
        assert (refused.status_code, code(refused)) == (409, "fenced")
        assert (refused.json()["token"], refused.json()["phase"]) == (second.token, "Running")
        assert first.run.status == before


async def test_the_truth_of_a_recorded_attempt_is_heard_under_a_stale_token() -> None:
    async with gateway() as world:
        first, second = await stale(world)
        done = await first.post("/steps/lookup/complete", attempt=1, result={"id": "re_9"})
        assert (done.status_code, done.json()["outcome"]) == (200, "Done")
        assert (await begin(second, "lookup", {"order": 1}))["result"] == {"id": "re_9"}


async def test_a_repeated_lose_under_a_stale_token_is_answered_with_the_record() -> None:
    async with gateway() as world:
        first, _ = await stale(world)
        before = first.run.status
        lost = await first.post("/steps/lookup/lose", attempt=1, reason="TimedOut")
        assert (lost.status_code, lost.json()["outcome"]) == (200, "Unknown")
        assert first.run.status == before
