"""Where a body goes when its record cannot be written, or the run refers to enough of them already."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfence.app.bodies import Bodies
from stepfence.app.worker_calls import Call
from stepfence.core.canonical import canonical, digest
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Body, Decision, Entry, Run
from stepfence.core.records import held, no_room
from stepfence.core.words import Outcome, Settings, State, Verdict
from stepfence.stores import MemoryRecordStore
from stepfence.testing.builders import begun, body, claimed, new_run, step, with_decision
from tests.app.desk import KEY, Desk, large

KIB = 1024


async def opened(settings: Settings | None = None, steps: int = 8) -> tuple[Desk, Call]:
    desk = Desk(settings)
    await desk.open(plan=[{"id": f"s{number}", "action": "Create"} for number in range(steps)])
    return desk, await desk.claim("pod-1")


class TestRefusedByTheStore:
    async def test_a_result_whose_record_is_refused_keeps_digest_and_size_so_that_done_is_not_lost(self) -> None:
        desk, call = await opened()
        await desk.calls.begin(call, "s0", "begin-0", {})
        desk.records.refuses = Code.STORE_UNAVAILABLE
        view = await desk.calls.complete(call, "s0", 1, "x" * 5000)
        assert view.entry.state is State.DONE
        assert view.entry.result == Body(digest(canonical("x" * 5000)), 5002)
        assert view.result is None

    async def test_a_result_of_the_run_is_no_reason_not_to_end(self) -> None:
        desk, call = await opened()
        desk.records.refuses = Code.STORE_CONFLICT
        assert await desk.calls.finish(call, large()) == "Succeeded"
        result = (await desk.run()).result
        assert result is not None
        assert not result.stored

    async def test_a_result_waits_for_the_byte_budget(self) -> None:
        desk, call = await opened()
        await desk.calls.begin(call, "s0", "begin-0", {})
        desk.records.refuses = Code.OVER_BUDGET
        with pytest.raises(Refused) as refused:
            await desk.calls.complete(call, "s0", 1, large())
        assert refused.value.code is Code.OVER_BUDGET
        assert (await desk.run()).ledger["s0"].state is State.IN_FLIGHT

    async def test_a_payload_whose_record_is_refused_is_never_begun(self) -> None:
        desk, call = await opened()
        desk.records.refuses = Code.STORE_UNAVAILABLE
        with pytest.raises(Refused):
            await desk.calls.begin(call, "s0", "begin-0", large())
        assert (await desk.run()).ledger == {}


class TestLimits:
    LIMITED = Settings(run_record_bytes=100 * KIB)

    async def test_a_payload_beyond_the_runs_bytes_is_refused_by_name_and_leaves_nothing(self) -> None:
        desk, call = await opened(self.LIMITED)
        await desk.calls.begin(call, "s0", "begin-0", large("a", 60 * KIB))
        with pytest.raises(Refused) as refused:
            await desk.calls.begin(call, "s1", "begin-1", large("b", 60 * KIB))
        assert (refused.value.code, refused.value.field) == (Code.NO_ROOM, "payload")
        assert "payload: the run's records would hold 122902 bytes, at most 102400" in refused.value.detail
        assert list((await desk.run()).ledger) == ["s0"]
        assert len(desk.records.puts) == 1

    async def test_a_result_beyond_the_runs_bytes_is_done_with_digest_and_size(self) -> None:
        desk, call = await opened(self.LIMITED)
        for step_id in ("s0", "s1"):
            await desk.calls.begin(call, step_id, f"begin-{step_id}", {})
        await desk.calls.complete(call, "s0", 1, large("0", 60 * KIB))
        view = await desk.calls.complete(call, "s1", 1, large("1", 60 * KIB))
        assert (view.entry.state, view.result) == (State.DONE, None)
        assert view.entry.result is not None
        assert view.entry.result.size == 60 * KIB + 11
        assert len(desk.records.puts) == 1
        assert await desk.calls.finish(call, large("r", 60 * KIB)) == "Succeeded"
        assert len(desk.records.puts) == 1

    async def test_the_payload_of_a_step_makes_room_for_its_result(self) -> None:
        desk, call = await opened(self.LIMITED)
        await desk.calls.begin(call, "s0", "begin-0", large("a", 60 * KIB))
        view = await desk.calls.complete(call, "s0", 1, large("b", 60 * KIB))
        assert view.result == large("b", 60 * KIB)
        await desk.calls.begin(call, "s1", "begin-1", large("c", 30 * KIB))

    async def test_small_bodies_never_count(self) -> None:
        desk, call = await opened(Settings(run_record_bytes=0, run_records=0))
        await desk.calls.begin(call, "s0", "begin-0", "x" * 500)
        assert (await desk.calls.complete(call, "s0", 1, "y" * 500)).result == "y" * 500

    async def test_a_repeat_of_what_is_recorded_is_answered_whatever_the_limit(self) -> None:
        desk, call = await opened()
        await desk.calls.begin(call, "s0", "begin-0", large())
        desk.settings = Settings(run_record_bytes=10)
        _, stricter = desk.gateway("two")
        assert (await stricter.begin(call, "s0", "begin-0", large())).outcome == "Go"
        assert (await stricter.begin(call, "s0", "begin-0", large("o"))).payload == large()

    async def test_a_run_beyond_a_limit_that_became_smaller_goes_on_with_what_needs_no_record(self) -> None:
        desk, call = await opened()
        await desk.calls.begin(call, "s0", "begin-0", large())
        desk.settings = Settings(run_record_bytes=10)
        _, stricter = desk.gateway("two")
        assert (await stricter.begin(call, "s1", "begin-1", {})).outcome == "Go"
        assert (await stricter.complete(call, "s0", 1, large("r"))).entry.state is State.DONE

    async def test_more_records_than_a_run_may_have_are_refused(self) -> None:
        desk, call = await opened(Settings(run_records=1))
        await desk.calls.begin(call, "s0", "begin-0", large("a", 2000))
        with pytest.raises(Refused) as refused:
            await desk.calls.begin(call, "s1", "begin-1", large("b", 2000))
        assert refused.value.detail == "payload: the run would hold 2 records, at most 1"

    async def test_the_limit_is_counted_from_the_ledger_so_a_new_process_knows_it(self) -> None:
        desk, call = await opened(self.LIMITED)
        await desk.calls.begin(call, "s0", "begin-0", large("a", 60 * KIB))
        _, other = desk.gateway("two")
        with pytest.raises(Refused) as refused:
            await other.begin(call, "s1", "begin-1", large("b", 60 * KIB))
        assert refused.value.code is Code.NO_ROOM

    def test_a_run_of_the_largest_plan_may_have_a_record_for_each_step_and_its_own(self) -> None:
        settings = Settings()
        assert settings.run_records == settings.max_steps + 1
        assert settings.run_record_bytes // settings.max_steps == 64 * KIB

    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 40)), max_size=12), st.booleans())
    def test_what_is_placed_is_never_beyond_the_limits(self, steps: list[tuple[bool, int, int]], ends: bool) -> None:
        """One body a step at most, so that the number of records follows from the plan, and never more bytes than allowed."""
        settings = Settings(inline_bytes=10, record_bytes=30, run_record_bytes=100, run_records=6)
        bodies = Bodies(MemoryRecordStore(), settings)
        run = new_run(*(step(f"s{number}") for number in range(len(steps))))
        for number, (done, payload, result) in enumerate(steps):
            name = f"s{number}"
            entry = Entry(State.IN_FLIGHT, key=name)
            brought = bodies.result(bodies.measure(f"p{number}" + "p" * payload, field="p"))
            kept = brought.on(run)
            after = replace(run, ledger={**run.ledger, name: replace(entry, payload=kept)})
            if done:
                answer = bodies.result(bodies.measure(f"r{number}" + "r" * result, field="r")).on(after, done=[name])
                after = replace(after, ledger={**after.ledger, name: replace(entry, state=State.DONE, result=answer)})
            run = after
            assert no_room(held(run), settings) is None
            assert len(held(run)) <= number + 1
        if ends:
            run = replace(run, result=bodies.result(bodies.measure("e" * 30, field="e")).on(run))
            assert no_room(held(run), settings) is None


def doubtful(*decisions: tuple[str, Decision]) -> Run:
    """A run with steps in doubt, each question answered."""
    run = claimed(new_run(*(step(name) for name, _ in decisions)))
    for name, _ in decisions:
        run, _ = begun(run, name=name)
    for name, decision in decisions:
        entry = replace(run.ledger[name], state=State.UNKNOWN, question=f"q{name}", payload=body({}))
        run = with_decision(replace(run, ledger={**run.ledger, name: entry}), f"{name}.q{name}", decision)
    return run


def happened(size: int) -> Decision:
    return Decision(Verdict.HAPPENED, json.dumps("x" * size))


class TestAnswers:
    def test_a_result_is_taken_on_for_each_question_that_is_asked_and_stored_by_nobody(self) -> None:
        store = MemoryRecordStore()
        run = with_decision(doubtful(("a", happened(5000)), ("b", happened(10))), "gone.question", happened(5000))
        placed = Bodies(store, Settings()).answers().on(run)
        assert {key: (body.record is not None, body.text) for key, body in placed.items()} == {
            "a.qa": (True, None),
            "b.qb": (False, json.dumps("x" * 10)),
        }
        assert store._bodies == {}

    def test_several_results_share_the_runs_room(self) -> None:
        run = doubtful(("a", happened(5000)), ("b", Decision(Verdict.HAPPENED, json.dumps("y" * 5000))))
        placed = Bodies(MemoryRecordStore(), Settings(run_record_bytes=8000)).answers().on(run)
        assert [body.stored for body in placed.values()] == [True, False]


async def test_the_limits_of_a_payload_hold_while_it_waits_for_approval() -> None:
    desk = Desk(Settings(run_record_bytes=1000))
    await desk.open()
    call = await desk.claim("pod-1")
    with pytest.raises(Refused) as refused:
        await desk.calls.begin(call, "drop", "begin-1", large("a", 2000))
    assert refused.value.code is Code.NO_ROOM
    assert (await desk.run(KEY)).ledger == {}


async def test_a_payload_larger_than_a_record_is_refused_before_anything_is_read() -> None:
    desk = Desk()
    await desk.open()
    call = await desk.claim("pod-1")
    desk.store.delete(KEY)
    with pytest.raises(Refused) as refused:
        await desk.calls.begin(call, "pay", "begin-1", large(size=300_000))
    assert (refused.value.code, refused.value.field) == (Code.TOO_LARGE, "payload")


async def test_a_result_larger_than_a_record_ends_the_run_all_the_same() -> None:
    desk, call = await opened()
    await desk.calls.finish(call, large(size=300_000))
    run = await desk.run()
    assert (run.outcome, run.result and run.result.stored) == (Outcome.SUCCEEDED, False)
    assert desk.records.puts == []
