"""What is recorded in place of a result that JSON cannot carry."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfence.core.canonical import canonical, parse
from stepfence.core.kept import CUT, DEEPEST, NOT_KEPT, NotKept, not_kept, not_kept_in


def deep(levels: int, inner: Any = 1) -> Any:
    for _ in range(levels):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("caf\udce9", "caf\\udce9"),
        ({"\ud83d": "\ud83d!"}, {"\\ud83d": "\\ud83d!"}),
        ([math.nan, math.inf, -math.inf, 1.5], ["NaN", "Infinity", "-Infinity", 1.5]),
        ({"a": [None, True, 2**70, "x"]}, {"a": [None, True, 2**70, "x"]}),
        (10**5000, hex(10**5000)),
        (deep(2000), deep(DEEPEST, CUT)),
        (deep(DEEPEST - 1), deep(DEEPEST - 1)),
    ],
    ids=["text", "names", "no numbers", "JSON", "digits", "deep", "not too deep"],
)
def test_what_json_cannot_carry_is_escaped(value: Any, kept: Any) -> None:
    assert not_kept_in(not_kept(value, "no JSON")) == NotKept("no JSON", kept)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=())), inner, max_size=4),
    max_leaves=20,
)


@given(json_like, st.text(st.characters(exclude_categories=())))
def test_whatever_it_is_it_can_be_stored_and_read_back(value: Any, why: str) -> None:
    text = canonical(not_kept(value, why))
    assert canonical(parse(text)) == text
    assert not_kept_in(parse(text)) is not None


@pytest.mark.parametrize("result", [None, 1, "x", [], {}, {"id": 1}, {NOT_KEPT: 1, "id": 1}])
def test_a_result_is_no_word_of_a_lost_one(result: Any) -> None:
    assert not_kept_in(result) is None


def test_a_result_that_only_looks_like_one_is_shown_whole() -> None:
    assert not_kept_in({NOT_KEPT: "odd"}) == NotKept("", "odd")
    assert not_kept_in({NOT_KEPT: {}}) == NotKept("", None)
