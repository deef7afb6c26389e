"""The synchronous twin: the same outcomes, the user's functions in the calling thread."""

# ruff: noqa: PT012  (what is expected comes out of a whole block, and leaving it is part of the test)

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

import stepfence
from stepfence import Action, Options, Step, SyncConnection
from stepfence.sdk.state import StateDir
from tests.sdk import clients
from tests.sdk.clients import post_blocking
from tests.sdk.gateway import LostReply, Problem, ScriptedGateway, probe, settings

PLAN = {"refund": "Payment", "lookup": "Read", "other": "Create"}
REQUEST = httpx.Request("POST", "http://provider.test/refunds")


def connection(gateway: ScriptedGateway, folder: Path, *, state_dir: Path | None = None, **more: Any) -> SyncConnection:
    exit_process = more.pop("exit_process", os._exit)
    options = Options(**{"exit_on_stop": False, "handle_sigterm": False, **more})
    return SyncConnection(settings(folder, state_dir), options, transport=gateway.transport, exit_process=exit_process)


def test_steps_run_in_the_calling_thread_and_replay(tmp_path: Path) -> None:
    threads: list[str] = []

    def pay(payload: Any, step: Step) -> Any:
        with step.sending():
            threads.append(threading.current_thread().name)
        return {"id": "re_1", "key": step.key}

    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/complete", LostReply())
    with connection(gateway, tmp_path) as run:
        assert run.input == {"order": "4711"}
        live = run.step("refund", Action.PAYMENT, {"amount": 1}, pay, result=dict[str, str])
        assert run.step("refund", Action.PAYMENT, {"amount": 1}, pay, result=dict[str, str]) == live
        run.finish({"ok": True})
    assert threads == [threading.current_thread().name]
    assert gateway.routes()[-1] == "release"


def test_failures_are_told_as_in_the_async_face(tmp_path: Path) -> None:
    def refused(payload: Any, step: Step) -> Any:
        with step.sending():
            post_blocking(clients.refused())

    def lost(payload: Any, step: Step) -> Any:
        with step.sending():
            raise httpx.ReadTimeout("slow", request=REQUEST)

    gateway = ScriptedGateway(PLAN)
    with pytest.raises(stepfence.StepFailed), connection(gateway, tmp_path) as run:
        run.step("refund", Action.PAYMENT, {}, refused)
    assert len(gateway.bodies("steps/refund/fail")) == 1
    gateway = ScriptedGateway(PLAN)
    gateway.on("steps/refund/begin", {**gateway._begin("refund", {"payload": {}})}, Problem("halted"))
    with pytest.raises(stepfence.Halted), connection(gateway, tmp_path) as run:
        run.step("refund", Action.PAYMENT, {}, lost)
    assert len(gateway.bodies("steps/refund/lose")) == 1
    assert gateway.bodies("release")[0]["reason"] == "Halted"


def test_probe_plan_halt_and_coroutines_work_too(tmp_path: Path) -> None:
    async def performs(payload: Any, step: Step) -> Any:
        async with step.sending():
            return threading.current_thread().name

    def finds(payload: Any, step: Step) -> stepfence.Happened:
        return stepfence.Happened(step.key)

    gateway = ScriptedGateway()
    gateway.on("steps/refund/begin", probe(1, {}))
    with pytest.raises(stepfence.Halted) as halted, connection(gateway, tmp_path) as run:
        run.plan([stepfence.PlanStep(id="refund", action=Action.PAYMENT), stepfence.PlanStep(id="other")])
        found = run.step("refund", Action.PAYMENT, {}, performs, probe=finds)
        assert found == "sf1k"
        assert run.step("other", Action.CREATE, {}, performs) == "stepfence-loop"
        run.halt("Odd", "please look")
    assert halted.value.question == "run.q1"


def test_threads_may_have_steps_in_flight_at_once(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=20)

    def perform(payload: Any, step: Step) -> Any:
        both.wait()
        return threading.get_ident()

    with connection(ScriptedGateway(PLAN), tmp_path) as run, ThreadPoolExecutor(2) as pool:
        one = pool.submit(run.step, "refund", Action.PAYMENT, {}, perform)
        two = pool.submit(run.step, "other", Action.CREATE, {}, perform)
        assert one.result(20) != two.result(20)
        run.finish()


def test_an_interruption_from_the_keyboard_inside_perform_is_told_and_goes_on(tmp_path: Path) -> None:
    def interrupted(payload: Any, step: Step) -> Any:
        with step.sending():
            raise KeyboardInterrupt

    gateway = ScriptedGateway(PLAN)
    with pytest.raises(KeyboardInterrupt), connection(gateway, tmp_path) as run:
        run.step("refund", Action.PAYMENT, {}, interrupted)
    assert gateway.routes()[-2:] == ["steps/refund/lose", "release"]


def test_sigterm_inside_perform_waits_for_the_step_and_then_drains(tmp_path: Path) -> None:
    def perform(payload: Any, step: Step) -> Any:
        with step.sending():
            os.kill(os.getpid(), signal.SIGTERM)
        return "sent"

    gateway = ScriptedGateway(PLAN)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(stepfence.Draining), connection(gateway, tmp_path, handle_sigterm=True) as run:
        assert run.step("refund", Action.PAYMENT, {}, perform) == "sent"
        run.step("other", Action.CREATE, {}, perform)
    assert gateway.routes() == ["claim", "steps/refund/begin", "steps/refund/complete", "release"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_sigterm_does_not_tear_the_step_in_flight(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    with pytest.raises(stepfence.Draining), connection(gateway, tmp_path, handle_sigterm=True) as run:

        def perform(payload: Any, step: Step) -> Any:
            with step.sending():
                os.kill(os.getpid(), signal.SIGTERM)
                never, tries = threading.Event(), 0
                while run.stopping is None and tries < 2000:
                    never.wait(0.01)
                    tries += 1
                os.kill(os.getpid(), signal.SIGTERM)
            return "sent"

        assert run.step("refund", Action.PAYMENT, {}, perform) == "sent"
        run.step("other", Action.CREATE, {}, perform)
    assert gateway.routes() == ["claim", "steps/refund/begin", "steps/refund/complete", "release"]


@pytest.mark.parametrize("order", ["signal", "file"])
def test_a_drain_breaks_what_the_program_waits_for_between_steps(order: str, tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    with (
        pytest.raises(stepfence.Draining),
        connection(gateway, tmp_path, handle_sigterm=True, state_dir=tmp_path, watch_interval=0.01),
    ):
        if order == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            StateDir(tmp_path).order_drain()
        threading.Event().wait(60)
        raise AssertionError("was not interrupted")
    assert gateway.bodies("release")[0]["reason"] == "Drained"


class Exited(BaseException):
    pass


def test_a_perform_past_its_deadline_ends_the_process(tmp_path: Path) -> None:
    exits: list[int] = []
    free = threading.Event()

    def exit_process(code: int) -> NoReturn:
        exits.append(code)
        free.set()
        raise Exited

    gateway = ScriptedGateway(PLAN, timeout=0.05)
    gateway.on("claim", {**gateway._claim(), "marginSeconds": 1})

    def hangs(payload: Any, step: Step) -> Any:
        with step.sending():
            free.wait(20)

    with pytest.raises((Exited, stepfence.Halted)), connection(gateway, tmp_path, exit_process=exit_process) as run:
        run.step("refund", Action.PAYMENT, {}, hangs)
    assert exits == [76]
    assert gateway.routes()[:4] == ["claim", "steps/refund/begin", "steps/refund/lose", "release"]


def test_a_claim_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    gateway = ScriptedGateway(PLAN)
    gateway.on("claim", Problem("halted"))
    with pytest.raises(SystemExit) as left, connection(gateway, tmp_path, exit_on_stop=True):
        raise AssertionError("must not run")
    assert left.value.code == 76
    assert [thread.name for thread in threading.enumerate() if thread.name == "stepfence-loop"] == []


def test_a_step_inside_a_step_is_refused(tmp_path: Path) -> None:
    with connection(ScriptedGateway(PLAN), tmp_path) as run:

        def nested(payload: Any, step: Step) -> Any:
            with pytest.raises(RuntimeError, match="inside another step"):
                run.step("other", Action.CREATE, {}, lambda *_: None)
            return "outer"

        assert run.step("refund", Action.PAYMENT, {}, nested) == "outer"
        run.finish()


def test_leaving_without_an_end_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(stepfence.NotFinished), connection(ScriptedGateway({}), tmp_path):
        pass
