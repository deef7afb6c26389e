"""A killed worker is dead: nothing that it does afterwards arrives, and `drive` itself cannot be hung by it."""

import asyncio
import socket
import threading
from typing import Any

import httpx
import pytest

from stepfence import Action, Run, Step, SyncRun
from stepfence.testing import Effects, NotRestartSafe, drive, effects, virtual
from stepfence.testing.virtual import VirtualLoop
from tests.testing.agents import PAYMENT, refund_and_mail, sender

Client = httpx.AsyncClient
DEADLY = ["before 1", "after 1", "answered 1"]


def applied_by(report: Any) -> list[list[tuple[int, str]]]:
    """Which worker had which effect, for each crash."""
    return [[(effect.worker, effect.name) for effect in row.history.applied] for row in report.rows[1:]]


async def test_what_a_dead_worker_does_in_finally_and_in_the_tasks_it_started_reaches_nobody() -> None:
    async def agent(run: Run, http: Client) -> None:
        async def later() -> None:
            await asyncio.sleep(1)  # noqa: TID251  (virtual)
            await http.post("/metrics")

        background = asyncio.create_task(later())
        try:
            await run.step("refund", Action.PAYMENT, {}, sender(http, "/refunds"))
        finally:
            await http.post("/goodbye")
        await run.finish()
        await background

    # What it does outside of steps is wrong, but comes from the living workers alone.
    with pytest.raises(NotRestartSafe) as raised:
        await drive(agent, plan=PAYMENT, crashes=["after 1", "after 2"])
    ((after_refund), (after_goodbye)) = applied_by(raised.value.report)
    assert after_refund == [(1, "POST /refunds"), (2, "POST /goodbye"), (2, "POST /metrics")]
    assert after_goodbye == [(1, "POST /refunds"), (1, "POST /goodbye"), (2, "POST /goodbye"), (2, "POST /metrics")]


async def test_a_dead_worker_that_tries_again_reaches_neither_provider_nor_gateway() -> None:
    async def agent(run: Run, http: Client, effects: Effects) -> None:
        async def charge() -> str:
            return "charged"

        async def stubborn(_payload: Any, step: Step) -> Any:
            for _ in range(3):
                try:
                    async with step.sending():
                        await http.post("/refunds")
                    return await effects.wrap("charge", charge)()
                except asyncio.CancelledError:
                    continue
            return None

        await run.step("refund", Action.PAYMENT, {}, stubborn)
        await run.finish()

    with pytest.raises(NotRestartSafe) as raised:
        await drive(agent, plan=PAYMENT, crashes=["after 1"])
    assert applied_by(raised.value.report) == [[(1, "POST /refunds")]]


@pytest.mark.parametrize("point", DEADLY)
async def test_a_thread_of_a_dead_worker_unwinds_and_reaches_nobody(point: str) -> None:
    unwound = []

    def agent(run: SyncRun, http: httpx.Client) -> None:
        def pay(payload: Any, step: Step) -> Any:
            try:
                with step.sending():
                    return http.post("/refunds", json=payload, headers={"Idempotency-Key": step.key}).json()
            except Exception:  # noqa: BLE001  (a killed thread must not be caught by it)
                return http.post("/refunds").json()

        try:
            run.step("refund", Action.PAYMENT, {}, pay)
            run.finish()
        except BaseException as error:
            unwound.append(type(error).__name__)
            raise

    report = await drive(agent, plan=PAYMENT, crashes=[point])
    assert unwound == ["Killed"]
    assert len(applied_by(report)[0]) == 1


async def test_a_person_who_does_not_look_is_what_makes_a_payment_happen_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects.Outside, "found", lambda _outside, _key: None)
    with pytest.raises(NotRestartSafe) as raised:
        await drive(refund_and_mail, input={"order": "1"}, plan=[*PAYMENT, {"id": "mail"}], crashes=["before 1", *DEADLY[1:]])
    report = raised.value.report
    assert [row.history.counts["POST /refunds"] for row in report.rows] == [1, 1, 2, 2]


async def test_a_function_that_never_comes_back_does_not_end_the_test_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "LONGEST_REAL_WAIT", 0.3)
    end = threading.Event()

    async def agent(run: Run, http: Client) -> None:
        await http.post("/refunds")
        await run.step("refund", Action.PAYMENT, {}, lambda _payload, _step: end.wait(60))
        await run.finish()

    try:
        with pytest.raises(NotRestartSafe, match="never came back"):
            await drive(agent, plan=PAYMENT)
    finally:
        end.set()


async def test_an_agent_thread_that_never_comes_back_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "LONGEST_REAL_WAIT", 0.3)
    end = threading.Event()

    def agent(_run: SyncRun, http: httpx.Client) -> None:
        http.post("/refunds")
        end.wait(60)

    try:
        with pytest.raises(NotRestartSafe, match="never came back"):
            await drive(agent)
    finally:
        end.set()


async def test_a_plain_function_that_returns_a_coroutine_is_told_so() -> None:
    with pytest.raises(NotRestartSafe, match="write it as `async def`"):
        await drive(lambda run, http: refund_and_mail(run, http))  # noqa: PLW0108  (what people write)


async def test_effects_may_be_an_argument_with_a_default_so_that_the_agent_runs_in_a_pod_too() -> None:
    async def agent(_run: Run, _http: Client, effects: Effects | None = None) -> None:
        assert effects is not None
        effects.wrap("charge", lambda: 1)()

    report = await drive(agent, crashes="none")
    assert report.effects == {"charge": 1}


def test_on_a_virtual_loop_a_real_connection_is_waited_for_and_a_timer_is_not() -> None:
    ours, theirs = socket.socketpair()
    heard = threading.Event()

    async def talk() -> tuple[bytes, float]:
        loop = asyncio.get_running_loop()
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(b"question")
        async with asyncio.timeout(5):
            answer = await reader.read(10)
        writer.close()
        before = loop.time()
        await asyncio.sleep(7200)  # noqa: TID251  (virtual)
        return answer, loop.time() - before

    def answer_a_little_later() -> None:
        theirs.recv(10)
        heard.wait(0.02)
        theirs.send(b"answer")

    thread = threading.Thread(target=answer_a_little_later)
    thread.start()
    loop = VirtualLoop()
    try:
        assert loop.run_until_complete(talk()) == (b"answer", 7200)
    finally:
        thread.join()
        theirs.close()
        loop.close()


def test_on_a_virtual_loop_what_waits_for_nothing_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "LONGEST_REAL_WAIT", 0.01)
    loop = VirtualLoop()
    task = loop.create_task(asyncio.Event().wait())
    try:
        with pytest.raises(TimeoutError, match="no timer is set"):
            loop.run_until_complete(task)
    finally:
        task.cancel()
        loop.run_until_complete(asyncio.wait({task}))
        loop.close()
