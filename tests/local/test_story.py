"""What is told of a run at the first look, before anything new has happened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepfence.core.lifecycle import halt_run
from stepfence.core.model import Run
from stepfence.core.words import At
from stepfence.local.manifest import admit_new
from stepfence.local.state import opened
from stepfence.local.story import Story
from stepfence.ports import RunKey

KEY = RunKey("support", "refund")
TEMPLATE = {"spec": {"containers": [{"name": "worker", "command": ["true"]}]}}


async def first_look(path: Path, *, suspend: bool = False, started: bool = True, held: bool = False) -> list[str]:
    def edit(run: Run, at: At) -> tuple[Run, None]:
        run = replace(run, started_at=at.now if started else None)
        return (halt_run(run, "LedgerBehind", "look at it", at) if held else run), None

    lines: list[str] = []
    async with opened(path, command="stepfence local") as state:
        spec = {"template": TEMPLATE, "suspend": suspend}
        head = {"apiVersion": "stepfence.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": KEY.name}}
        await state.runs.create(admit_new({**head, "spec": spec}, KEY.namespace))
        await state.applier.apply(KEY, edit)
        await Story(state, lines.append, as_json=False).tell(KEY)
    return [line.partition(" ")[2].partition(". Answer with: ")[0] for line in lines]


@pytest.mark.parametrize("started", [False, True])
async def test_a_person_is_asked_of_a_hold_whether_the_run_has_started_or_not(started: bool, tmp_path: Path) -> None:
    asked = ["support/refund HoldNeeded: LedgerBehind: look at it"]
    assert await first_look(tmp_path / "state.db", started=started, held=True) == ["support/refund Held: as stored"] * started + asked


async def test_what_holds_a_run_without_a_question_is_named(tmp_path: Path) -> None:
    assert await first_look(tmp_path / "state.db", suspend=True) == ["support/refund Held: as stored, by spec.suspend"]


async def test_of_a_run_that_nobody_has_looked_at_there_is_nothing_to_tell(tmp_path: Path) -> None:
    assert await first_look(tmp_path / "state.db", started=False) == []
