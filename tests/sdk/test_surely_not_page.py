"""The table of every way to "surely not" in docs/protocol.md is the whole of it: each row is played, and no way is missing."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/protocol.md").read_text()
PACKAGE = ROOT / "operator/stepfence"
ROW = re.compile(r"^\| (N[0-9]+) \| .* \| (.*) \|$", re.MULTILINE)
ROWS = {name: re.findall(r"`([^`]+)`", where) for name, where in ROW.findall(PAGE)}
# What says "it did not happen", wherever it is made.
WORDS = frozenset({"NotApplied", "Fail", "DidNotHappen", "_of_one_request"})
NAMES = frozenset({"NOT_STARTED", "DID_NOT_HAPPEN", "PROBE_DID_NOT"})
# These pass on, record or check what another one has said.
PASS_ON = frozenset(
    {
        "core/answers.py",
        "core/moves.py",
        "core/words.py",
        "gateway/wire.py",
        "local/keeper.py",  # a word of its own, of the same name
    }
)
# Which tests play a row: a file of the tests and a part of the test's name.
PLAYED = {
    "N1": ("sdk/test_surely_not_words.py", "a_stop_before_the_first_mark_has_sent_nothing"),
    "N2": ("sdk/test_surely_not_easy.py", "no_connection_fails_the_step_without_a_person"),
    "N3": ("sdk/test_surely_not_open.py", "a_word_that_was_said_while_another_request_was_open"),
    "N4": ("sdk/test_surely_not_easy.py", "requests_without_a_connection_fails_the_step"),
    "N5": ("sdk/test_surely_not_easy.py", "an_answer_that_applied_nothing_fails_the_step"),
    "N6": ("sdk/test_repeats.py", "no_go_after_the_deadline"),
    "N7": ("sdk/test_repeats.py", "told_as_not_started"),
    "N8": ("cli/test_command_ends.py", "a_command_that_is_not_there_did_nothing"),
    "N9": ("cli/test_command_ends.py", "cannot_be_handed"),
    "N10": ("cli/test_command_ends.py", "left_something_running"),
    "N11": ("sdk/test_verdicts.py", "a_read_in_doubt_is_rerun_with_growing_pauses_and_then_fails"),
    "N12": ("sdk/test_probe.py", "did_not"),
    "N13": ("protocol/test_holes.py", "early_no_of_a_person"),
    "N14": ("sdk/test_payload_change.py", "error"),
    "N15": ("examples/test_examples.py", "call_for_a_script"),
}


def test_each_row_is_played_and_nothing_else_is_listed() -> None:
    assert list(ROWS) == [f"N{number}" for number in range(1, len(ROWS) + 1)]
    assert ROWS.keys() == PLAYED.keys()


@pytest.mark.parametrize("row", PLAYED)
def test_the_test_that_plays_a_row_is_there(row: str) -> None:
    name, part = PLAYED[row]
    tree = ast.parse((ROOT / "tests" / name).read_text())
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert any(part in each for each in names), f"no test in {name} is about {part}"


@pytest.mark.parametrize("row", PLAYED)
def test_where_a_row_says_it_is_there(row: str) -> None:
    assert ROWS[row], row
    for where in ROWS[row]:
        assert (PACKAGE / where).exists() or (ROOT / where).exists(), where


def says_so(path: Path) -> bool:
    """Whether the module makes one of the words, or takes one of the moves."""
    tree = ast.parse(path.read_text())
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    made = {each.id if isinstance(each, ast.Name) else getattr(each, "attr", "") for each in called}
    named = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    named |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return bool(made & WORDS or named & NAMES)


def test_no_module_says_surely_not_that_the_table_does_not_name() -> None:
    listed = {where for wheres in ROWS.values() for where in wheres}
    ours = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if says_so(path)}
    assert ours - PASS_ON - listed == set()
    assert PASS_ON - ours == set(), "no longer needed here"
    examples = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.py") if says_so(path)}
    assert examples - listed == set()
