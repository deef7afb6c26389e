"""A step whose recorded payload is lost or damaged never performs another one: a person is asked, and nothing begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepfence.app.worker_calls import Call
from stepfence.core.answers import take_decisions
from stepfence.core.canonical import Json, canonical, digest
from stepfence.core.errors import Code, Refused, Unknown
from stepfence.core.model import Run
from stepfence.core.summary import questions_of
from stepfence.core.words import State
from tests.app.desk import KEY, PLAN, Desk, large

RECORDED, OTHER = large("a"), large("b")


@pytest.fixture
async def desk() -> Desk:
    desk = Desk()
    await desk.open(plan=[{**step, "attempts": 3} for step in PLAN])
    return desk


async def decide(desk: Desk, question: str, verdict: str) -> None:
    desk.store.patch_spec(KEY, {"decisions": {question: {"verdict": verdict}}})
    await desk.applier.read(KEY)
    await desk.applier.apply(KEY, lambda run, at: (take_decisions(run, {}, at)[0], None))


async def approved(desk: Desk) -> Call:
    """A Delete that a person approved with the recorded payload; a new worker holds the run."""
    with pytest.raises(Refused) as asked:
        await desk.calls.begin(await desk.claim("pod-1"), "drop", "begin-1", RECORDED)
    await decide(desk, asked.value.question or "", "Approve")
    return await desk.claim("pod-2")


async def failed(desk: Desk) -> Call:
    call = await desk.claim("pod-1")
    await desk.calls.begin(call, "mail", "begin-1", RECORDED)
    await desk.calls.fail(call, "mail", 1, "NotApplied", "")
    desk.clock.advance(3600)
    return await desk.claim("pod-2")


async def in_doubt(desk: Desk) -> Call:
    call = await desk.claim("pod-1")
    await desk.calls.begin(call, "pay", "begin-1", RECORDED)
    await desk.calls.lose(call, "pay", 1, "TimedOut", "")
    return await desk.claim("pod-2")


SCENES = {"drop": (approved, State.APPROVED, 0), "mail": (failed, State.FAILED, 1)}


def damage(desk: Desk, text: str | None = None) -> dict[tuple[str, str], Any]:
    """Lose every record, or let each hold another text; return what was there."""
    kept = desk.records._bodies
    before = dict(kept)
    for key in before:
        if text is None:
            del kept[key]
        else:
            kept[key] = replace(kept[key], text=text)
    return before


async def held(desk: Desk, call: Call, step: str, payload: Json = OTHER, request: str = "begin-2") -> Run:
    """Begin, and expect that the run is held for the lost payload."""
    puts = list(desk.records.puts)
    with pytest.raises(Refused) as refused:
        await desk.calls.begin(call, step, request, payload)
    run = await desk.run()
    assert run.hold is not None
    assert (refused.value.code, refused.value.question) == (Code.HELD, f"run.{run.hold.question}")
    assert run.hold.reason == "PayloadLost"
    for said in (f"step '{step}'", digest(canonical(RECORDED)), digest(canonical(OTHER)), "Resume", "Abandon"):
        assert said in run.hold.message
    assert desk.records.puts == puts
    return run


@pytest.mark.parametrize("step", SCENES)
@pytest.mark.parametrize("text", [None, canonical(OTHER), '{"text":'], ids=["it is gone", "it is another one", "it is cut"])
async def test_a_step_whose_payload_is_lost_is_not_begun_with_another_one_and_a_person_is_asked(
    desk: Desk, step: str, text: str | None
) -> None:
    scene, state, attempt = SCENES[step]
    call = await scene(desk)
    damage(desk, text)
    entry = (await held(desk, call, step)).ledger[step]
    assert (entry.state, entry.attempt) == (state, attempt)
    assert entry.payload is not None
    assert entry.payload.digest == digest(canonical(RECORDED))


async def test_the_question_has_a_command_that_answers_it(desk: Desk) -> None:
    call = await approved(desk)
    damage(desk)
    run = await held(desk, call, "drop")
    (question,) = questions_of(run, desk.applier.at())
    assert (question.reason, question.kind) == ("PayloadLost", "Hold")
    assert '"verdict":"Resume"' in question.patch


async def test_once_the_record_is_back_and_a_person_says_so_the_recorded_payload_is_performed(desk: Desk) -> None:
    call = await approved(desk)
    kept = damage(desk)
    run = await held(desk, call, "drop")
    assert run.hold is not None
    desk.records._bodies.update(kept)
    await decide(desk, f"run.{run.hold.question}", "Resume")
    view = await desk.calls.begin(call, "drop", "begin-3", OTHER)
    assert (view.outcome, view.payload, view.payload_changed) == ("Go", RECORDED, True)


async def test_a_resume_without_the_record_is_asked_again(desk: Desk) -> None:
    call = await approved(desk)
    damage(desk)
    run = await held(desk, call, "drop")
    assert run.hold is not None
    await decide(desk, f"run.{run.hold.question}", "Resume")
    again = await held(desk, call, "drop", request="begin-3")
    assert again.hold is not None
    assert again.hold.question != run.hold.question


@pytest.mark.parametrize("step", SCENES)
async def test_a_worker_that_brings_the_recorded_payload_needs_no_record(desk: Desk, step: str) -> None:
    call = await SCENES[step][0](desk)
    damage(desk)
    view = await desk.calls.begin(call, step, "begin-2", RECORDED)
    assert (view.outcome, view.payload, view.payload_changed) == ("Go", RECORDED, False)


async def test_a_probe_that_has_nothing_to_look_for_leaves_the_doubt_to_a_person(desk: Desk) -> None:
    call = await in_doubt(desk)
    damage(desk)
    with pytest.raises(Refused) as refused:
        await desk.calls.begin(call, "pay", "begin-2", OTHER)
    run = await desk.run()
    entry = run.ledger["pay"]
    assert (refused.value.code, refused.value.question) == (Code.HALTED, f"pay.{entry.question}")
    assert (entry.state, entry.attempt, entry.gave_up, run.hold) == (State.UNKNOWN, 1, True, None)
    assert digest(canonical(RECORDED)) in entry.message
    (question,) = questions_of(run, desk.applier.at())
    assert (question.step, question.kind) == ("pay", "Reconcile")


@pytest.mark.parametrize(
    "error",
    [Unknown("the store is away"), Refused(Code.STORE_UNAVAILABLE, "forbidden", retry_after=5.0)],
    ids=["the store is away", "a right is missing"],
)
@pytest.mark.parametrize("step", ["drop", "mail", "pay"])
async def test_a_payload_that_cannot_be_read_now_begins_nothing_yet(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    async def get(_self: object, _run: Run, _name: str) -> str:
        raise error

    call = await (in_doubt if step == "pay" else SCENES[step][0])(desk)
    before = desk.store.document(KEY)["status"]
    with monkeypatch.context() as broken:
        broken.setattr(type(desk.records), "get", get)
        with pytest.raises(type(error)):
            await desk.calls.begin(call, step, "begin-2", OTHER)
    assert desk.store.document(KEY)["status"] == before
    view = await desk.calls.begin(call, step, "begin-2", OTHER)
    assert (view.outcome, view.payload) == ("Probe" if step == "pay" else "Go", RECORDED)


async def test_an_answer_that_performs_nothing_needs_no_payload(desk: Desk) -> None:
    call = await desk.claim("pod-1")
    await desk.calls.begin(call, "mail", "begin-1", RECORDED)
    await desk.calls.fail(call, "mail", 1, "NotApplied", "", retry_after=600.0)
    damage(desk)
    assert (await desk.calls.begin(call, "mail", "begin-2", OTHER)).outcome == "Wait"
    with pytest.raises(Refused) as asked:
        await desk.calls.begin(call, "drop", "begin-3", RECORDED)
    await decide(desk, asked.value.question or "", "Deny")
    damage(desk)
    assert (await desk.calls.begin(call, "drop", "begin-4", OTHER)).outcome == "Denied"


async def test_a_replica_that_remembers_an_older_version_holds_nothing_for_a_payload_that_was_swept_since(desk: Desk) -> None:
    call = await failed(desk)
    other, calls = desk.gateway("two")
    await other.read(KEY)
    await desk.calls.begin(call, "mail", "begin-2", RECORDED)
    await desk.calls.complete(call, "mail", 2, {"sent": True})
    damage(desk)
    view = await calls.begin(call, "mail", "begin-3", OTHER)
    assert (view.outcome, (await desk.run()).hold) == ("Done", None)
