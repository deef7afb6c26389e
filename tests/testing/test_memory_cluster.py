"""An agent under test with no cluster: every story of a run, through the real SDK and the real gateway routes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import stepfence
from stepfence import Action
from stepfence.testing import MemoryCluster, MemoryRun, MemoryWorker

PLAN = [{"id": "lookup", "action": "Read"}, {"id": "refund", "action": "Payment"}, {"id": "notify", "action": "Create"}]


class Provider:
    """The outside world: what happened, in order."""

    def __init__(self) -> None:
        self.effects: list[tuple[str, str]] = []

    async def act(self, payload: Any, step: stepfence.Step) -> Any:
        async with step.sending():
            self.effects.append((step.id, step.key))
        return {"done": step.id, "payload": payload}


async def agent(worker: MemoryWorker, provider: Provider, perform: Any = None) -> None:
    async with worker.connect() as run:
        found = await run.step("lookup", Action.READ, {"order": run.input["order"]}, provider.act)
        await run.step("refund", Action.PAYMENT, {"of": found["payload"]["order"]}, perform or provider.act)
        await run.step("notify", Action.CREATE, {"to": "customer"}, provider.act)
        await run.finish({"ok": True})


async def test_a_run_goes_through_and_does_each_step_once() -> None:
    provider = Provider()
    async with MemoryCluster() as cluster:
        run = await cluster.create(plan=PLAN, input={"order": "4711"})
        await agent(await run.worker(), provider)
        assert [step for step, _ in provider.effects] == ["lookup", "refund", "notify"]
        assert (run.phase, run.status["progress"], run.result) == ("Succeeded", "3/3", {"ok": True})


async def test_a_worker_killed_between_steps_is_followed_by_one_that_replays() -> None:
    provider = Provider()
    async with MemoryCluster() as cluster:
        run = await cluster.create(plan=PLAN, input={"order": "4711"})
        first = await run.worker()

        async def killed_after_the_first_step() -> None:
            async with first.connect() as connection:
                await connection.step("lookup", Action.READ, {"order": "4711"}, provider.act)
                await first.kill()
                await connection.step("refund", Action.PAYMENT, {"of": "4711"}, provider.act)

        with pytest.raises(stepfence.Fenced):
            await killed_after_the_first_step()
        await agent(await run.worker(), provider)
        assert [step for step, _ in provider.effects] == ["lookup", "refund", "notify"]
        assert run.phase == "Succeeded"


@dataclass
class Killed:
    """A worker that was killed between the provider's answer and the Done record; its process lives on as a zombie."""

    run: MemoryRun
    task: asyncio.Task[None]
    thaw: asyncio.Event

    async def wake(self) -> None:
        """Let the zombie report what it knows: it may tell the truth, and do nothing more."""
        self.thaw.set()
        with pytest.raises(stepfence.Stop):
            await asyncio.wait_for(self.task, 10)


@asynccontextmanager
async def killed_with_the_refund_done(provider: Provider) -> AsyncIterator[Killed]:
    async with MemoryCluster() as cluster:
        run = await cluster.create(plan=PLAN, input={"order": "4711"})
        worker = await run.worker()
        sent, thaw = asyncio.Event(), asyncio.Event()

        async def hang(payload: Any, step: stepfence.Step) -> Any:
            answer = await provider.act(payload, step)
            sent.set()
            await thaw.wait()
            return answer

        killed = Killed(run, asyncio.create_task(agent(worker, provider, hang)), thaw)
        await asyncio.wait_for(sent.wait(), 10)
        await worker.kill()
        yield killed
        await killed.wake()


async def test_a_doubt_halts_and_happened_goes_on_with_the_given_result() -> None:
    provider = Provider()
    async with killed_with_the_refund_done(provider) as killed:
        run = killed.run
        assert run.phase == "NeedsReconciliation"
        (question,) = run.questions
        with pytest.raises(AssertionError, match="no new worker"):
            await run.worker()
        await run.answer(question, "Happened", result={"done": "by hand"})
        await agent(await run.worker(), provider)
        assert run.phase == "Succeeded"
        assert [step for step, _ in provider.effects].count("refund") == 1


async def test_an_early_did_not_happen_is_refused_and_asked_anew_and_force_runs_it_once_more_with_the_same_key() -> None:
    provider = Provider()
    async with killed_with_the_refund_done(provider) as killed:
        run = killed.run
        (question,) = run.questions
        await run.answer(question, "DidNotHappen")
        (again,) = run.questions
        assert again != question
        assert run.status["ledger"]["refund"]["answers"][0]["refused"]
        await run.answer(again, "DidNotHappen", force=True)
        await agent(await run.worker(), provider)
        keys = [key for step, key in provider.effects if step == "refund"]
        assert len(keys) == 2
        assert len(set(keys)) == 1


async def test_abandon_fails_the_run() -> None:
    provider = Provider()
    async with killed_with_the_refund_done(provider) as killed:
        run = killed.run
        (question,) = run.questions
        await run.answer(question, "Abandon")
        assert (run.phase, run.status["reason"]) == ("Failed", "Abandoned")


async def test_a_delete_waits_for_approval_and_performs_what_the_person_saw() -> None:
    provider = Provider()
    async with MemoryCluster() as cluster:
        run = await cluster.create(plan=[{"id": "drop", "action": "Delete"}])
        worker = await run.worker()

        async def asks() -> None:
            async with worker.connect() as connection:
                await connection.step("drop", Action.DELETE, {"table": "a"}, provider.act)

        with pytest.raises(stepfence.Halted):
            await asks()
        await worker.ended(76)
        assert run.phase == "AwaitingApproval"
        (question,) = run.questions
        assert run.questions[question]["payload"] == '{"table":"a"}'
        await run.answer(question, "Approve")
        async with (await run.worker()).connect() as connection:
            done = await connection.step("drop", Action.DELETE, {"table": "b"}, provider.act)
            await connection.finish(done)
        assert run.phase == "Succeeded"
        assert run.result == {"done": "drop", "payload": {"table": "a"}}


async def test_a_provider_that_names_things_by_64_bit_numbers_asks_nobody() -> None:
    async def pay(payload: Any, step: stepfence.Step) -> Any:
        async with step.sending():
            return {"refund": 2**63 - 1, "of": payload}

    async with MemoryCluster() as cluster:
        run = await cluster.create(plan=[{"id": "refund", "action": "Payment"}])
        async with (await run.worker()).connect() as connection:
            live = await connection.step("refund", Action.PAYMENT, 2**62 + 1, pay)
            await connection.finish(live)
        assert live == {"refund": 2**63 - 1, "of": 2**62 + 1}
        assert (run.phase, run.result) == ("Succeeded", live)
