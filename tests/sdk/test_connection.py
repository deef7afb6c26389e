"""Entering and leaving the block: outside a run, without an end, with an error; and what the process's exit code is."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import stepfence
from stepfence.sdk.settings import Settings
from tests.sdk.gateway import Problem, ScriptedGateway, connection
from tests.sdk.virtual import virtual_time

ENVIRON = {
    "STEPFENCE_GATEWAY": "https://gateway:8443/",
    "STEPFENCE_NAMESPACE": "support",
    "STEPFENCE_RUN": "refund-4711",
    "STEPFENCE_TOKEN_FILE": "/var/run/stepfence/token",
    "STEPFENCE_CA_FILE": "/var/run/stepfence/ca.crt",
    "STEPFENCE_STATE_DIR": "/var/run/stepfence-state",
    "STEPFENCE_RUN_UID": "u1",
    "STEPFENCE_WORKER": "3",
}


@pytest.mark.parametrize("missing", ["STEPFENCE_GATEWAY", "STEPFENCE_NAMESPACE", "STEPFENCE_RUN", "STEPFENCE_TOKEN_FILE"])
@pytest.mark.parametrize("connect", [stepfence.connect, stepfence.connect_sync])
def test_outside_a_run_connect_fails_and_names_what_is_missing(missing: str, connect: object) -> None:
    environ = {name: value for name, value in ENVIRON.items() if name != missing}
    assert callable(connect)
    with pytest.raises(stepfence.NotInARun, match=missing):
        connect(environ=environ)


def test_the_environment_is_read() -> None:
    settings = Settings.from_environ(ENVIRON)
    assert settings.gateway == "https://gateway:8443"
    assert settings.base_path == "/v1/namespaces/support/agentruns/refund-4711"
    assert (settings.run_uid, settings.worker) == ("u1", "3")
    assert settings.ca_file == Path("/var/run/stepfence/ca.crt")


@virtual_time
async def test_a_state_dir_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(stepfence.NotInARun, match="STEPFENCE_STATE_DIR"):
        async with connection(ScriptedGateway(), tmp_path, state_dir=tmp_path / "absent"):
            pass


@virtual_time
async def test_leaving_without_an_end_is_no_success(tmp_path: Path) -> None:
    gateway = ScriptedGateway({})
    with pytest.raises(stepfence.NotFinished):
        async with connection(gateway, tmp_path):
            pass
    assert gateway.bodies("release")[0]["reason"] == "Error"


@virtual_time
async def test_an_error_releases_and_goes_on(tmp_path: Path) -> None:
    gateway = ScriptedGateway({})
    with pytest.raises(ZeroDivisionError):
        async with connection(gateway, tmp_path):
            raise ZeroDivisionError
    assert gateway.bodies("release")[0]["reason"] == "Error"


@virtual_time
async def test_finish_releases_as_finished_even_when_the_program_fails_after_it(tmp_path: Path) -> None:
    gateway = ScriptedGateway({})
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  (leaving the block is the test)
        async with connection(gateway, tmp_path) as run:
            await run.finish()
            raise ZeroDivisionError
    assert gateway.bodies("release")[0]["reason"] == "Finished"


PROGRAM = """
import asyncio, sys, pathlib
import stepfence
from tests.sdk.gateway import ScriptedGateway, Problem, settings

gateway = ScriptedGateway({"refund": "Payment"})
how = {"settings": settings(pathlib.Path(sys.argv[1])), "transport": gateway.transport}

async def perform(payload, step):
    return 1

async def main(run):
    BODY

def block():
    with stepfence.connect_sync(**how) as run:
        SYNC

async def by_hand():
    async with stepfence.connect(**how) as run:
        await main(run)

if sys.argv[2] == "run":
    stepfence.run(main, **how)
elif sys.argv[2] == "block":
    asyncio.run(by_hand())
else:
    block()
"""

BODIES = {
    0: "await run.finish()",
    1: "raise RuntimeError('boom')",
    75: "gateway.on('steps/refund/begin', Problem('draining')); await run.step('refund', stepfence.Action.PAYMENT, {}, perform)",
    76: "gateway.on('steps/refund/begin', Problem('halted')); await run.step('refund', stepfence.Action.PAYMENT, {}, perform)",
    77: "await run.fail('NoOrder')",
}


@pytest.mark.parametrize("code", sorted(BODIES))
@pytest.mark.parametrize("how", ["run", "block", "sync"])
def test_the_exit_code_of_the_process(code: int, how: str, tmp_path: Path) -> None:
    program = PROGRAM.replace("BODY", BODIES[code]).replace("SYNC", BODIES[code].replace("await ", ""))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path), how],
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": "operator:.", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert ("Traceback" in done.stderr) is (code == 1), done.stderr


def test_importing_stepfence_does_not_load_the_sdk() -> None:
    program = "import sys, stepfence, stepfence.core; print('stepfence.sdk' in sys.modules, 'httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]
    assert set(stepfence.__all__) <= set(dir(stepfence))
    with pytest.raises(AttributeError):
        stepfence.no_such_name  # noqa: B018


@pytest.mark.parametrize("proof", ["p1.proof", None], ids=["a gateway with keys", "an older gateway"])
async def test_every_call_under_a_token_carries_the_proof_that_came_with_it(proof: str | None, tmp_path: Path) -> None:
    gateway = ScriptedGateway({"refund": "Payment", "late": "Payment", "odd": "Payment"})
    gateway.proof = proof

    async def pay(payload: object, _step: object) -> object:
        return payload

    async def no(_payload: object, _step: object) -> object:
        raise stepfence.NotApplied("no")

    async def who_knows(_payload: object, step: stepfence.Step) -> object:
        async with step.sending():
            raise OSError("broken")

    async with connection(gateway, tmp_path) as run:
        await run.plan([stepfence.PlanStep(id="refund", action=stepfence.Action.PAYMENT)])
        await run.step("refund", stepfence.Action.PAYMENT, {}, pay)
        with pytest.raises(stepfence.StepFailed):
            await run.step("late", stepfence.Action.PAYMENT, {}, no)
        await run._session.calls.renew()
        await run._session.calls.drain(5)
        gateway.on("steps/odd/lose", Problem("halted"))
        with pytest.raises(stepfence.Halted):
            await run.step("odd", stepfence.Action.PAYMENT, {}, who_knows)
        await run.finish()
    told = {route for route, _body in gateway.calls} - {"claim"}
    assert told >= {"plan", "steps/refund/begin", "steps/refund/complete", "steps/late/fail", "steps/odd/lose", "renew", "drain", "finish"}
    assert {route for route, body in gateway.calls if body.get("tokenProof") == proof} - {"claim"} == told
    assert proof is not None or not any("tokenProof" in body for _route, body in gateway.calls)
