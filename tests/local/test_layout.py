"""Runs as lines of a terminal: bounded, aligned, what matters first."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.cells import cell_len
from rich.console import Console

from stepfence.core.summary import Phase
from stepfence.local.layout import Line, lines_of
from stepfence.local.screen import drawn
from stepfence.local.waiting import Rank, RunView, StepView

STATES = {Rank.OPEN: "InFlight", Rank.BEGUN: "Approved", Rank.PLANNED: "Planned", Rank.SETTLED: "Denied", Rank.DONE: "Done"}
WAITS = "a person: Happened or Abandon; DidNotHappen from 12:04:31 (in 42 s)"
HOSTILE = "\x1b[2J\x1b]8;;http://x\x07[red]:smile:\r\n\u202e漢字漢字漢字"


def step(name: str, rank: Rank = Rank.PLANNED, waits: str = "") -> StepView:
    return StepView(name, "Payment", STATES[rank], "1" if rank is not Rank.PLANNED else "", waits, rank)


def run(*steps: StepView, name: str = "support/refund", phase: Phase = Phase.RUNNING, waits: str = "") -> RunView:
    return RunView(name, phase, f"0/{len(steps)}", 7, "worker 2 lives", waits, steps)


def texts(lines: Sequence[Line]) -> list[str]:
    return ["".join(part.text for part in line) for line in lines]


def printed(views: Sequence[RunView], width: int, height: int) -> list[str]:
    """What stands on a terminal of that size."""
    console = Console(width=width, height=height, record=True, force_terminal=True, file=io.StringIO())
    console.print(drawn(lines_of(views, width, height)))
    return console.export_text().splitlines()


def test_all_of_a_small_run_is_shown_in_columns() -> None:
    views = [
        run(step("look", Rank.DONE), step("refund", Rank.OPEN, "worker 2, at the latest 12:04:31"), step("tell", waits="an earlier step"))
    ]
    assert [line.rstrip() for line in texts(lines_of(views, 100, 20))] == [
        "",
        "  STEP    ACTION   STATE     ATTEMPT  WAITS FOR",
        "support/refund  Running  0/3  token 7  worker 2 lives",
        "  look    Payment  Done      1",
        "  refund  Payment  InFlight  1        worker 2, at the latest 12:04:31",
        "  tell    Payment  Planned            an earlier step",
    ]


def test_what_is_waited_for_is_wrapped_under_its_column() -> None:
    lines = texts(lines_of([run(step("refund", Rank.OPEN, WAITS))], 80, 20))
    assert [line[38:].strip() for line in lines[3:5]] == ["a person: Happened or Abandon;", "DidNotHappen from 12:04:31 (in 42 s)"]


def test_a_head_that_is_too_long_goes_on_in_a_second_line() -> None:
    lines = texts(lines_of([run(step("refund"))], 40, 20))
    assert lines[2:4] == ["support/refund  Running", "  0/1  token 7  worker 2 lives"]


def many_steps() -> RunView:
    done = [step(f"done-{number}", Rank.DONE) for number in range(100)]
    planned = [step(f"next-{number}", waits="an earlier step") for number in range(154)]
    return run(*done, step("paid", Rank.OPEN, WAITS), step("sent", Rank.OPEN, "worker 2"), *planned)


def test_of_many_steps_the_open_ones_stay_then_the_next_and_the_rest_is_counted() -> None:
    lines = texts(lines_of([many_steps()], 200, 10))
    assert [line.split()[0] for line in lines[3:-1]] == ["paid", "sent", "next-0", "next-1", "next-2", "next-3"]
    assert lines[-1] == "  … 100 Done, 150 Planned"


def test_when_there_is_room_what_was_done_last_is_shown_before_what_was_done_first() -> None:
    lines = texts(lines_of([run(*(step(f"done-{number}", Rank.DONE) for number in range(20)), step("last", Rank.OPEN))], 200, 8))
    assert [line.split()[0] for line in lines[3:-1]] == ["done-17", "done-18", "done-19", "last"]


def test_of_many_runs_those_that_ask_come_first_and_the_rest_is_counted() -> None:
    over = [run(step("a", Rank.DONE), name=f"support/over-{number}", phase=Phase.SUCCEEDED) for number in range(30)]
    views = [*over, run(step("a"), name="support/goes"), run(step("a", Rank.OPEN), name="support/asks", phase=Phase.NEEDS_RECONCILIATION)]
    lines = texts(lines_of(views, 120, 7))
    assert "support/asks" in "\n".join(lines)
    assert "support/goes" in "\n".join(lines)
    assert lines[-1] == "… and 26 more runs: 26 Succeeded"


def test_lines_go_to_runs_that_are_open_before_those_that_are_over() -> None:
    over = run(*(step(f"old-{number}", Rank.DONE) for number in range(9)), name="support/over", phase=Phase.SUCCEEDED)
    lines = texts(lines_of([over, run(*(step(f"new-{number}") for number in range(9)))], 120, 13))
    assert sum("new-" in line for line in lines) == 9
    assert sum("old-" in line for line in lines) == 0


def test_a_run_that_asks_gets_its_lines_before_the_others() -> None:
    asks = run(step("a", Rank.OPEN, WAITS), step("b"), name="support/asks", phase=Phase.NEEDS_RECONCILIATION)
    lines = texts(lines_of([*(run(*many_steps().steps, name=f"support/run-{number}") for number in range(12)), asks], 120, 17))
    assert any(WAITS in line for line in lines)


CROWDS = {
    "one run": [run(step("a", Rank.OPEN, WAITS), waits="suspend, a person")],
    "many steps": [many_steps()],
    "many runs": [run(*many_steps().steps[90:110], name=f"support/run-{number}") for number in range(40)],
    "hostile": [run(step(HOSTILE, Rank.OPEN, HOSTILE * 9), name=HOSTILE, waits=HOSTILE * 9)],
    "long names": [run(step("x" * 63, Rank.OPEN, "y" * 900), name="z" * 127)],
    "no plan": [run(waits="the plan, of worker 1")],
    "none": [],
}


@pytest.mark.parametrize("width", [1, 20, 40, 80, 200])
@pytest.mark.parametrize("height", [2, 3, 8, 16, 60])
@pytest.mark.parametrize("views", CROWDS.values(), ids=CROWDS)
def test_it_is_never_wider_or_higher_than_the_terminal(views: list[RunView], width: int, height: int) -> None:
    assert len(lines_of(views, width, height)) <= height
    shown = printed(views, width, height)
    assert len(shown) <= max(1, height)
    assert all(cell_len(line) <= width for line in shown)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_hostile_text_is_shown_not_obeyed(width: int) -> None:
    shown = "\n".join(printed(CROWDS["hostile"], width, 20))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\x1b[2J" in shown
    assert width < 200 or "[red]:smile:" in shown
