"""The SDK against the real routes and core, in this process."""

# ruff: noqa: PT012  (leaving the block is part of the test)

import asyncio
from typing import Any

import pytest

import stepfence
from stepfence import Action, DidNotHappen, Happened, Options, Step
from stepfence.testing import FakeClock, MemoryCluster

PLAN: list[dict[str, Any]] = [
    {"id": "lookup-order", "action": "Read"},
    {"id": "refund", "action": "Payment", "attempts": 3, "backoffSeconds": 0},
    {"id": "notify", "action": "Create"},
]
QUIET = Options(exit_on_stop=False, handle_sigterm=False, backoff_base=0.01)


class Provider:
    """Counts effects."""

    def __init__(self) -> None:
        self.effects: list[tuple[str, str]] = []
        self.fails_with: list[BaseException] = []

    async def send(self, payload: Any, step: Step) -> Any:
        async with step.sending():
            if self.fails_with:
                raise self.fails_with.pop(0)
            self.effects.append((step.id, step.key))
        return {"id": f"{step.id}-{len(self.effects)}"}


async def program(run: stepfence.Run, provider: Provider) -> None:
    order = await run.step("lookup-order", Action.READ, {"order": "4711"}, provider.send)
    refund = await run.step("refund", Action.PAYMENT, {"order": order}, provider.send)
    await run.step("notify", Action.CREATE, {"refund": refund}, provider.send)
    await run.finish({"refund": refund["id"]})


async def test_a_run_goes_from_claim_to_finish() -> None:
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund-4711", plan=PLAN, input={"order": "4711"})
        provider = Provider()
        worker = await run.worker()
        async with worker.connect() as connected:
            assert connected.input == {"order": "4711"}
            await program(connected, provider)
        await worker.ended(0)
        assert run.phase == "Succeeded"
        assert run.result == {"refund": "refund-2"}
        assert [step for step, _key in provider.effects] == ["lookup-order", "refund", "notify"]


async def test_a_killed_worker_replays_and_asks_a_person_only_for_what_is_in_doubt() -> None:
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund-4711", plan=PLAN, input={})
        provider, in_flight = Provider(), asyncio.Event()

        async def hangs(payload: Any, step: Step) -> Any:
            async with step.sending():
                provider.effects.append((step.id, step.key))
                in_flight.set()
                await asyncio.Event().wait()

        first = await run.worker()

        async def killed() -> None:
            async with first.connect() as connected:
                await connected.step("lookup-order", Action.READ, {"order": "4711"}, provider.send)
                await connected.step("refund", Action.PAYMENT, {}, hangs)

        task = asyncio.create_task(killed())
        await in_flight.wait()
        await first.kill()
        assert run.phase == "NeedsReconciliation"
        (question,) = run.questions
        await run.answer(question, "Happened", result={"id": "re_by_hand"})
        second = await run.worker()
        async with second.connect() as connected:
            await program(connected, provider)
        await second.ended(0)
        assert run.phase == "Succeeded"
        assert run.result == {"refund": "re_by_hand"}
        assert [step for step, _key in provider.effects] == ["lookup-order", "refund", "notify"]
        # Its own task is a zombie now: it knows nothing of the end, and what it says is not believed.
        for step_task in asyncio.all_tasks():
            if step_task.get_name().startswith("stepfence:"):
                step_task.cancel()
        task.cancel()
        with pytest.raises((asyncio.CancelledError, stepfence.Stop)):
            await task


async def test_sure_failures_use_up_attempts_and_then_are_raised_on_each_replay() -> None:
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund-4711", plan=PLAN, input={})
        provider = Provider()
        provider.fails_with = [stepfence.NotApplied("declined", reason="Declined") for _ in range(3)]
        worker = await run.worker()
        async with worker.connect() as connected:
            for _ in range(2):
                with pytest.raises(stepfence.StepFailed, match="Declined"):
                    await connected.step("refund", Action.PAYMENT, {}, provider.send)
            await connected.finish()
        assert provider.fails_with == []
        assert provider.effects == []
        assert run.status["ledger"]["refund"]["attempt"] == 3


async def test_a_doubt_halts_and_leaves_the_reason_for_people() -> None:
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund-4711", plan=PLAN, input={})
        provider = Provider()
        provider.fails_with = [ConnectionResetError("broken?key=secret")]
        worker = await run.worker()
        with pytest.raises(stepfence.Halted) as halted:
            async with worker.connect() as connected:
                await connected.step("refund", Action.PAYMENT, {}, provider.send)
        (question,) = run.questions
        assert halted.value.question == question
        assert halted.value.patch is not None
        assert question in halted.value.patch
        entry = run.status["ledger"]["refund"]
        assert (entry["state"], entry["reason"], entry["message"]) == ("Unknown", "ConnectionResetError", "broken?…")
        assert "holder" not in run.status


@pytest.mark.parametrize(("finding", "effects"), [(Happened({"id": "found"}), 0), (DidNotHappen(), 1)])
async def test_a_probe_settles_a_doubt(finding: Any, effects: int) -> None:
    clock = FakeClock()
    plan: list[dict[str, Any]] = [{"id": "refund", "action": "Payment", "timeoutSeconds": 1, "probe": {"giveUpAfterSeconds": 300}}]
    async with MemoryCluster(clock=clock) as cluster:
        run = await cluster.create("refund-4711", plan=plan, input={})
        provider = Provider()
        provider.fails_with = [ConnectionResetError("broken")]

        async def find(payload: Any, step: Step) -> Any:
            return finding

        worker = await run.worker()
        with pytest.raises(ZeroDivisionError):
            async with worker.connect() as connected:
                task = asyncio.create_task(connected.step("refund", Action.PAYMENT, {}, provider.send, probe=find))
                async with asyncio.timeout(20):
                    while run.status.get("ledger", {}).get("refund", {}).get("state") != "Unknown":
                        await asyncio.wait({task}, timeout=0.01)
                with pytest.raises(stepfence.CallRefused, match="not-settled"):
                    await connected.finish()
                raise ZeroDivisionError
        with pytest.raises(asyncio.CancelledError):
            await task
        await worker.ended(1)
        clock.advance(60)
        second = await run.worker()
        async with second.connect() as connected:
            await connected.step("refund", Action.PAYMENT, {}, provider.send, probe=find)
            await connected.finish()
        assert len(provider.effects) == effects


async def test_two_claims_fence_the_first() -> None:
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund-4711", plan=PLAN, input={})
        provider = Provider()
        worker = await run.worker()
        with pytest.raises(stepfence.Fenced):
            async with worker.connect() as old:
                await old.step("lookup-order", Action.READ, {}, provider.send)
                async with worker.connect() as new:
                    await program(new, provider)
                await old.step("refund", Action.PAYMENT, {}, provider.send)
        assert [step for step, _key in provider.effects] == ["lookup-order", "refund", "notify"]


async def test_cancel_is_a_stop() -> None:
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund-4711", plan=PLAN, input={})
        worker = await run.worker()
        with pytest.raises(stepfence.Cancelled):
            async with worker.connect() as connected:
                await run.patch(cancel=True)
                await connected.step("refund", Action.PAYMENT, {}, Provider().send)
        assert run.phase == "Cancelled"


async def test_a_plan_of_the_worker_and_its_growth() -> None:
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund-4711", input={})
        provider = Provider()
        worker = await run.worker()
        first = stepfence.PlanStep(id="one", action=Action.READ)
        async with worker.connect() as connected:
            with pytest.raises(stepfence.CallRefused, match="plan-missing"):
                await connected.step("one", Action.READ, {}, provider.send)
            await connected.plan([first])
            await connected.plan([first])
            await connected.plan([first, stepfence.PlanStep(id="two")])
            with pytest.raises(stepfence.CallRefused, match="plan-changed"):
                await connected.plan([stepfence.PlanStep(id="other")])
            with pytest.raises(stepfence.CallRefused, match="bad-request"):
                await connected.plan([first, stepfence.PlanStep(id="two"), {"id": "Bad Id"}])
            with pytest.raises(stepfence.CallRefused, match="unknown-step"):
                await connected.step("three", Action.CREATE, {}, provider.send)
            await connected.step("two", Action.CREATE, {"a": 1}, provider.send)
            with pytest.raises(stepfence.PayloadChanged):
                await connected.step("two", Action.CREATE, {"a": 2}, provider.send)
            await connected.finish()
        assert len(provider.effects) == 1


@pytest.mark.parametrize("size", [10, 5_000, 300_000, 2_000_000])
async def test_results_of_every_size_are_done_and_replayed_or_say_why_not(size: int) -> None:
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund-4711", plan=PLAN, input={})

        async def large(payload: Any, step: Step) -> Any:
            return {"text": "x" * size}

        worker = await run.worker()
        async with worker.connect() as connected:
            live = await connected.step("refund", Action.PAYMENT, {}, large)
            assert live == {"text": "x" * size}
            if size > 256 * 1024:
                with pytest.raises(stepfence.ResultNotStored) as caught:
                    await connected.step("refund", Action.PAYMENT, {}, large)
                assert caught.value.size == size + len('{"text":""}')
            else:
                assert await connected.step("refund", Action.PAYMENT, {}, large) == live
            await connected.finish()
        assert run.status["ledger"]["refund"]["state"] == "Done"


async def test_run_fail_and_halt() -> None:
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund-4711", plan=PLAN, input={})
        worker = await run.worker()
        with pytest.raises(stepfence.Halted) as halted:
            async with worker.connect() as connected:
                await connected.halt("Odd", "please look")
        await worker.ended(76)
        (question,) = run.questions
        assert halted.value.question == question
        await run.answer(question, "Resume")
        second = await run.worker()
        with pytest.raises(stepfence.RunFailed):
            async with second.connect() as connected:
                await connected.fail("NoOrder", "4711")
        assert (run.phase, run.status["reason"]) == ("Failed", "NoOrder")


async def test_the_sync_face_against_the_gateway() -> None:
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund-4711", plan=PLAN, input={})
        worker = await run.worker()
        threads: list[str] = []

        def pay(payload: Any, step: Step) -> Any:
            with step.sending():
                threads.append(step.key)
            return {"id": "re_1"}

        def whole() -> None:
            with worker.connect_sync() as connected:
                assert connected.step("refund", Action.PAYMENT, {}, pay) == {"id": "re_1"}
                assert connected.step("refund", Action.PAYMENT, {}, pay) == {"id": "re_1"}
                connected.finish()

        await asyncio.to_thread(whole)
        assert run.phase == "Succeeded"
        assert len(threads) == 1
