"""The page about testing an agent shows what really happens: its red agent is red with that very text, its green ones are green."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing-an-agent.md"


def blocks(language: str) -> list[str]:
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says in a folder with the files of the page, with the plugin found as an installed one is."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    for block in blocks("python"):
        name = block.partition("\n")[0].removeprefix("# ")
        (folder / name).write_text(block)
    command = [sys.executable, "-m", "pytest", "-v", "-s", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_the_agent_without_steps_is_red_and_all_others_are_green(output: str) -> None:
    assert dict(re.findall(r"^(test_\w+\.py)::\w+ .*?(PASSED|FAILED)$", output, re.MULTILINE | re.DOTALL)) == {
        "test_charge.py": "PASSED",
        "test_refund.py": "FAILED",
        "test_refund_in_steps.py": "PASSED",
        "test_story.py": "PASSED",
    }


def test_the_texts_on_the_page_are_those_that_are_printed(output: str) -> None:
    red, green = blocks("text")
    assert lines_of(red) in lines_of(output)
    assert lines_of(green) in lines_of(output)


def lines_of(text: str) -> str:
    """Without pytest's mark of a failure's text, and without the indentation that is lost behind it."""
    return "\n".join(re.sub(r"^(E\b)? *", "", line).rstrip() for line in text.splitlines())


def test_a_failure_shows_its_table_and_no_traceback_through_the_package(output: str) -> None:
    failure = output.partition("= FAILURES =")[2]
    assert "NotRestartSafe: the agent is not restart-safe" in failure
    assert "drive(agent, crashes" in failure
    assert "operator/stepfence" not in failure
    assert "in drive_sync" not in failure
