"""The pytest plugin as an installed package brings it: it costs nothing where it is not used, and says what it lacks."""

import asyncio
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic.alias_generators import to_camel

from stepfence.gateway.wire import StepBody
from stepfence.testing import MemoryCluster, NotRestartSafe, drive
from stepfence.testing.driving import drive_sync
from tests.testing.agents import plain

SESSION = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"]


def run_pytest(folder: Path, *more: str, test: str) -> str:
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (folder / "test_it.py").write_text(test)
    done = subprocess.run([*SESSION, *more], cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    return done.stdout + done.stderr


def test_the_package_offers_it_to_pytest() -> None:
    (found,) = entry_points(group="pytest11", name="stepfence")
    assert found.value == "stepfence.testing.plugin"


LOADS_NOTHING = """
import sys

def test_nothing_is_loaded():
    assert "stepfence.testing.plugin" in sys.modules
    heavy = ("httpx", "fastapi", "pydantic", "structlog", "anyio.to_thread", "stepfence.sdk", "stepfence.core", "stepfence.testing.driving")
    assert [name for name in heavy if name in sys.modules] == []
"""


def test_a_session_that_does_not_use_it_loads_nothing_for_it(tmp_path: Path) -> None:
    said = run_pytest(tmp_path, "-p", "no:anyio", "-p", "no:asyncio", "-p", "no:hypothesispytest", "-p", "no:kind", test=LOADS_NOTHING)
    assert "1 passed" in said


WITHOUT_THE_EXTRA = """
import sys

sys.modules["fastapi"] = None

def test_agent(drive):
    drive(None)
"""


def test_without_the_extra_it_says_which_one_to_install(tmp_path: Path) -> None:
    said = run_pytest(tmp_path, test=WITHOUT_THE_EXTRA)
    assert "install stepfence[testing]" in said
    assert "1 error" in said


WRONG_USE = """
def test_agent(drive):
    drive(None, crashes="all")
"""


def test_what_is_wrong_is_not_shown_as_the_sequel_of_another_error(tmp_path: Path) -> None:
    said = run_pytest(tmp_path, test=WRONG_USE)
    assert "crashes: 'all' is no crash point" in said
    assert "no running event loop" not in said


def test_without_the_extra_an_import_says_which_one_to_install() -> None:
    code = "import sys; sys.modules['fastapi'] = None; from stepfence.testing import drive"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1
    assert "stepfence.testing needs the extra: stepfence[testing]" in done.stderr.splitlines()[-1]


async def test_in_a_running_loop_the_fixture_says_to_await(request: pytest.FixtureRequest) -> None:
    fixture = request.getfixturevalue("drive")
    with pytest.raises(RuntimeError, match="await drive"):
        fixture(plain)


async def test_a_running_loop_goes_on_while_an_agent_is_driven() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.wait({asyncio.create_task(asyncio.to_thread(lambda: None))})

    ticking = asyncio.create_task(tick())
    with pytest.raises(NotRestartSafe):
        await drive(plain, crashes=["after 1"])
    ticking.cancel()
    assert ticks > 3


@pytest.mark.parametrize(
    ("crashes", "says"),
    [("sometimes", "'sometimes' is no crash point"), (["after 0"], "'after 0' is no crash point"), ([], "the list is empty")],
)
def test_a_wrong_list_of_crashes_is_named(crashes: str | list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        drive_sync(plain, crashes=crashes)


@pytest.mark.parametrize("crashes", [5, [5], [None]])
def test_what_is_no_list_of_crashes_is_named(crashes: Any) -> None:
    with pytest.raises(TypeError, match="crashes: write"):
        drive_sync(plain, crashes=crashes)


def test_a_wrong_input_and_too_few_workers_are_named() -> None:
    wrong: list[Any] = [object(), float("nan")]
    for given in wrong:
        with pytest.raises(TypeError, match=r"^input"):
            drive_sync(plain, input=given)
    with pytest.raises(ValueError, match="workers: at least one is needed, not 0"):
        drive_sync(plain, workers=0)


WRONG_PLANS = [
    ([{"id": "refund", "action": "Pay"}], ValueError, r"plan\[0\]\.action: Input should be 'Read', 'Upsert'"),
    ([{"id": "refund"}, {"action": "Payment"}], ValueError, r"plan\[1\]\.id: Field required"),
    ([{"id": "refund", "timeout": 5}], ValueError, r"plan\[0\]\.timeout: no such field"),
    ([{"id": "refund", "timeout_seconds": 5}], ValueError, r"plan\[0\]\.timeout_seconds: no such field"),
    ([{"id": "refund", "timeoutSeconds": "5"}], ValueError, r"plan\[0\]\.timeoutSeconds: Input should be a valid integer"),
    ([{"id": "refund", "approval": {"after": 5}}], ValueError, r"plan\[0\]\.approval\.after: no such field"),
    ([{"id": "refund"}, {"id": "refund"}], ValueError, r"plan\[1\]\.id: 'refund' stands twice"),
    ([], ValueError, "plan: at least one step is needed"),
    ({"steps": []}, TypeError, "plan: a list of steps is needed"),
    (["refund"], TypeError, "plan: a list of steps is needed"),
    (5, TypeError, "plan: a list of steps is needed"),
    (iter([{"id": "refund"}]), TypeError, "plan: a list of steps is needed"),
    ([{"id": "refund", "timeoutSeconds": object()}], TypeError, r"plan\[0\]: Unable to serialize"),
]


@pytest.mark.parametrize(("plan", "kind", "says"), WRONG_PLANS, ids=lambda value: str(value)[:60])
async def test_a_wrong_plan_is_refused_before_anything_runs_and_its_field_is_named(plan: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        await drive(plain, plan=plan)
    async with MemoryCluster() as cluster:
        with pytest.raises(kind, match=says):
            await cluster.create(plan=plan)


def test_a_plan_may_have_every_field_of_the_api() -> None:
    definition = yaml.safe_load((Path(__file__).parents[2] / "crds/agentruns.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["plan"]
    fields = schema["properties"]["steps"]["items"]["properties"]
    known = {field.alias or to_camel(name) for name, field in StepBody.model_fields.items()}
    assert known == set(fields)


def test_an_agent_that_takes_something_else_is_told_what_it_gets() -> None:
    with pytest.raises(TypeError, match=r"it must take \(run, http\) or \(run, http, effects\)"):
        drive_sync(lambda: None)


def test_what_the_sdk_logs_of_the_crashes_is_kept_out_of_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotRestartSafe):
        drive_sync(plain, crashes=["after 1"])
    assert capsys.readouterr().out == ""
