"""A body is stored only when the decision refers to it: whoever is refused, repeats or brings too much leaves no record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from stepfence.app import WorkerCalls
from stepfence.app.worker_calls import Call
from stepfence.core.canonical import Json
from stepfence.core.errors import Code, Refused
from stepfence.core.words import Outcome, State, Verdict
from stepfence.testing.builders import seconds
from tests.app.desk import KEY, Desk, large

Said = Callable[[WorkerCalls, Call, str, int, Json], Awaitable[object]]


async def begin(calls: WorkerCalls, call: Call, step: str, attempt: int, body: Json) -> object:
    return await calls.begin(call, step, f"begin-{attempt}", body)


async def complete(calls: WorkerCalls, call: Call, step: str, attempt: int, body: Json) -> object:
    return await calls.complete(call, step, attempt, body)


async def probe(calls: WorkerCalls, call: Call, step: str, attempt: int, body: Json) -> object:
    return await calls.probe(call, step, attempt, Verdict.HAPPENED, body, as_of=seconds(0), give_up=False)


async def finish(calls: WorkerCalls, call: Call, step: str, attempt: int, body: Json) -> object:
    return await calls.finish(call, body)


ROUTES: dict[str, Said] = {"begin": begin, "complete": complete, "probe": probe, "finish": finish}


@pytest.fixture
async def desk() -> Desk:
    desk = Desk()
    await desk.open()
    return desk


async def refused(desk: Desk, said: Said, call: Call, step: str = "pay", attempt: int = 1) -> Code:
    """Say it and expect a refusal that leaves nothing; return its code."""
    before = desk.store.document(KEY)["status"]
    with pytest.raises(Refused) as error:
        await said(desk.calls, call, step, attempt, large())
    assert desk.records.puts == []
    assert desk.store.document(KEY)["status"] == before
    return error.value.code


class TestRefusedRoutesStoreNothing:
    @pytest.mark.parametrize("route", ["begin", "probe", "finish"])
    async def test_a_stale_token(self, route: str, desk: Desk) -> None:
        old = await desk.claim("pod-1")
        await desk.calls.begin(old, "pay", "begin-1", {})
        await desk.claim("pod-2")
        assert await refused(desk, ROUTES[route], old) is Code.FENCED

    async def test_a_stale_token_of_a_pod_that_did_not_begin_the_attempt(self, desk: Desk) -> None:
        old, new = await desk.claim("pod-1"), await desk.claim("pod-2")
        await desk.calls.begin(new, "pay", "begin-1", {})
        assert await refused(desk, complete, old) is Code.FENCED

    @pytest.mark.parametrize("route", ["begin", "complete", "probe"])
    async def test_an_unknown_step(self, route: str, desk: Desk) -> None:
        assert await refused(desk, ROUTES[route], await desk.claim("pod-1"), "nonsense") is Code.UNKNOWN_STEP

    @pytest.mark.parametrize("route", ROUTES)
    async def test_a_run_that_has_ended(self, route: str, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        await desk.calls.fail_run(call, "NoGo", "")
        assert (await desk.run()).outcome is Outcome.FAILED
        expected = {"begin": Code.TERMINAL, "complete": Code.ATTEMPT_MISMATCH, "probe": Code.ATTEMPT_MISMATCH, "finish": Code.TERMINAL}
        assert await refused(desk, ROUTES[route], call) is expected[route]

    @pytest.mark.parametrize("route", ["complete", "probe"])
    async def test_another_attempt(self, route: str, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        await desk.calls.begin(call, "pay", "begin-1", {})
        assert await refused(desk, ROUTES[route], call, attempt=7) is Code.ATTEMPT_MISMATCH

    async def test_a_step_that_is_in_flight(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        await desk.calls.begin(call, "pay", "begin-1", {})
        assert await refused(desk, begin, call, attempt=2) is Code.BUSY

    async def test_a_run_with_open_steps_does_not_finish(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        await desk.calls.begin(call, "pay", "begin-1", {})
        assert await refused(desk, finish, call) is Code.NOT_SETTLED

    @pytest.mark.parametrize("route", ROUTES)
    async def test_a_pod_of_a_run_of_that_name_that_is_gone(self, route: str, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        desk.store.delete(KEY)
        await desk.open()
        desk.records.puts.clear()
        assert await refused(desk, ROUTES[route], call) is Code.NOT_FOUND

    @pytest.mark.parametrize("route", ROUTES)
    async def test_a_replica_that_remembers_an_older_version_looks_again_before_it_stores(self, route: str, desk: Desk) -> None:
        """There the fenced worker is still the holder."""
        applier, behind = desk.gateway("two")
        old = await desk.claim("pod-1")
        await desk.calls.begin(old, "mail", "begin-0", {})
        await desk.calls.complete(old, "mail", 1, {})
        if route in ("complete", "probe"):
            await desk.calls.begin(old, "pay", "begin-1", {})
        if route == "probe":
            await desk.calls.lose(old, "pay", 1, "Lost", "")
        await applier.read(KEY)
        new = await desk.claim("pod-2")
        if route == "complete":
            await desk.calls.complete(Call(old.caller, KEY, old.token), "pay", 1, {"first": True})
        with pytest.raises(Refused) if route != "complete" else _answered():
            await ROUTES[route](behind, old, "pay", 1, large())
        assert desk.records.puts == []
        assert new.token == old.token + 1


class _answered:  # noqa: N801  (reads as a sentence where it is used)
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class TestRepeats:
    async def test_a_report_of_what_is_done_stores_nothing(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        await desk.calls.begin(call, "pay", "begin-1", {})
        await desk.calls.complete(call, "pay", 1, {"refund": "re_9"})
        for said in (complete, probe):
            await said(desk.calls, call, "pay", 1, large("late"))
        assert desk.records.puts == []
        assert (await desk.calls.complete(call, "pay", 1, large())).result == {"refund": "re_9"}

    async def test_a_begin_of_what_is_done_or_failed_for_good_stores_nothing(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        await desk.calls.begin(call, "pay", "begin-1", {})
        await desk.calls.complete(call, "pay", 1, {})
        await desk.calls.begin(call, "mail", "begin-2", {})
        await desk.calls.fail(call, "mail", 1, "No", "", final=True)
        for step, outcome in (("pay", "Done"), ("mail", "Failed")):
            assert (await desk.calls.begin(call, step, "again", large())).outcome == outcome
        assert desk.records.puts == []

    async def test_the_same_begin_again_stores_once(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        views = [await desk.calls.begin(call, "pay", "begin-1", large()) for _ in range(2)]
        assert len(desk.records.puts) == 1
        assert [view.payload for view in views] == [large(), large()]

    async def test_another_payload_for_a_recorded_one_is_not_stored(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        await desk.calls.begin(call, "pay", "begin-1", large("a"))
        view = await desk.calls.begin(call, "pay", "begin-1", large("b"))
        assert (view.payload_changed, view.payload) == (True, large("a"))
        assert len(desk.records.puts) == 1

    async def test_a_run_that_succeeded_stores_no_second_result(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        assert await desk.calls.finish(call, large("a")) == "Succeeded"
        assert await desk.calls.finish(call, large("b")) == "Succeeded"
        assert len(desk.records.puts) == 1

    async def test_a_body_that_the_run_refers_to_already_is_not_stored_again(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        await desk.calls.begin(call, "pay", "begin-1", large())
        await desk.calls.begin(call, "mail", "begin-2", large())
        assert len(desk.records.puts) == 1
        await desk.calls.complete(call, "pay", 1, large())
        assert len(desk.records.puts) == 1

    @pytest.mark.parametrize("verdict", [None, Verdict.DID_NOT_HAPPEN])
    async def test_a_probe_that_found_nothing_stores_nothing(self, verdict: Verdict | None, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        await desk.calls.begin(call, "pay", "begin-1", {})
        await desk.calls.lose(call, "pay", 1, "Lost", "")
        desk.clock.advance(120)
        await desk.calls.probe(call, "pay", 1, verdict, large(), as_of=desk.clock.now(), give_up=False)
        assert desk.records.puts == []


class TestStored:
    async def test_each_route_stores_what_the_ledger_then_refers_to(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        await desk.calls.begin(call, "pay", "begin-1", large("a"))
        await desk.calls.lose(call, "pay", 1, "Lost", "")
        await desk.calls.probe(call, "pay", 1, Verdict.HAPPENED, large("b"), as_of=desk.clock.now(), give_up=False)
        await desk.calls.begin(call, "mail", "begin-2", large("c"))
        await desk.calls.complete(call, "mail", 1, large("d"))
        await desk.calls.finish(call, large("e"))
        run = await desk.run()
        kept = [run.ledger["pay"].result, run.ledger["mail"].result, run.result]
        assert [desk.records.puts[number] for number in (1, 3, 4)] == [body and body.record for body in kept]
        assert [await desk.records.get(run, name) for name in desk.records.puts] == [
            f'{{"text":"{letter * 200_000}"}}' for letter in "abcde"
        ]

    async def test_the_payload_of_a_step_that_waits_for_approval_is_stored(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        with pytest.raises(Refused) as asked:
            await desk.calls.begin(call, "drop", "begin-1", large())
        assert asked.value.code is Code.AWAITING_APPROVAL
        payload = (await desk.run()).ledger["drop"].payload
        assert payload is not None
        assert desk.records.puts == [payload.record]

    async def test_the_record_stands_before_the_ledger_refers_to_it(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        seen: list[bool] = []

        async def look() -> None:
            seen.append("pay" in (await desk.run()).ledger)

        desk.records.meanwhile = look
        await desk.calls.begin(call, "pay", "begin-1", large())
        assert seen == [False]

    async def test_who_is_fenced_while_the_body_is_stored_leaves_an_orphan_and_no_entry(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")

        async def fence() -> None:
            await desk.claim("pod-2")

        desk.records.meanwhile = fence
        with pytest.raises(Refused) as error:
            await desk.calls.begin(call, "pay", "begin-1", large())
        assert error.value.code is Code.FENCED
        assert "pay" not in (await desk.run()).ledger

    async def test_after_a_conflict_a_body_that_still_stands_is_not_stored_again(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        await desk.calls.begin(call, "pay", "begin-1", {})

        async def move() -> None:
            await desk.gateway("two")[1].begin(call, "mail", "begin-2", {})

        desk.records.meanwhile = move
        await desk.calls.complete(call, "pay", 1, large())
        assert len(desk.records.puts) == 1
        run = await desk.run()
        assert (run.ledger["pay"].state, run.ledger["mail"].state) == (State.DONE, State.IN_FLIGHT)

    async def test_after_a_conflict_a_body_that_is_gone_is_stored_again(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")
        await desk.calls.begin(call, "pay", "begin-1", {})

        async def sweep() -> None:
            await desk.gateway("two")[1].begin(call, "mail", "begin-2", {})
            for fact in [fact async for fact in desk.records.bodies()]:
                assert await desk.records.remove(fact)

        desk.records.meanwhile = sweep
        view = await desk.calls.complete(call, "pay", 1, large())
        assert len(desk.records.puts) == 2
        assert view.result == large()
        assert (await desk.calls.begin(call, "pay", "later", {})).step.result == large()

    async def test_the_deadline_of_an_attempt_counts_from_after_its_payload_was_stored(self, desk: Desk) -> None:
        call = await desk.claim("pod-1")

        async def slow() -> None:
            desk.clock.advance(15)

        desk.records.meanwhile = slow
        view = await desk.calls.begin(call, "pay", "begin-1", large())
        (attempt,) = view.step.entry.open
        assert (attempt.started_at, view.time_left_seconds) == (seconds(15), 60)
