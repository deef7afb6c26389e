"""docs/state-machine.md is what the table says today."""

from pathlib import Path

import pytest

from stepfence.core.steps import TABLE
from tools.generate_state_machine import PAGE, main, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page()
    assert main(["--check"]) == 0


def test_the_page_has_every_row() -> None:
    assert all(row.rule in page() for row in TABLE)
    assert page().count(" --> Done: ") == len({row.source for row in TABLE if row.target.value == "Done"})


def test_an_outdated_page_is_named_and_then_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "state-machine.md"
    target.write_text("old")
    assert main(["--check"], target=target) == 1
    assert "out of date" in capsys.readouterr().err
    assert target.read_text() == "old"
    assert main([], target=target) == 0
    assert target.read_text() == page()
