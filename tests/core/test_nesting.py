"""JSON of any form is read or is none: no text ends the program that reads it."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepfence.core.canonical import canonical
from stepfence.core.errors import Refused
from stepfence.core.nesting import READ_DEPTH, cut, deeper_than, read, read_cut

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.sampled_from('[]{}"\\a\u00e9'), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('[]{}"\\a'), max_size=4), inner, max_size=3),
    max_leaves=20,
)


def levels(value: Any) -> int:
    return next(most for most in range(1000) if not deeper_than(value, most))


def deep_text(depth: int, inner: str = "1") -> str:
    return '{"a":[' * (depth // 2) + inner + "]}" * (depth // 2)


@given(VALUES)
def test_an_ordinary_value_is_read_as_the_standard_library_reads_it(value: Any) -> None:
    text = json.dumps(value)
    assert read_cut(text) == read_cut(text.encode()) == (value, False)


def counted(value: Any) -> int:
    boxes = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if boxes is None else 1 + max((counted(item) for item in boxes), default=0)


@given(VALUES)
def test_levels_are_counted(value: Any) -> None:
    assert levels(value) == counted(value)


@given(VALUES, st.integers(0, 6))
def test_what_is_cut_stands_as_text_and_the_rest_is_as_it_was(value: Any, most: int) -> None:
    shorter = json.loads(cut(json.dumps(value), most))
    assert not deeper_than(shorter, most)

    def compare(one: Any, other: Any, depth: int) -> None:
        if isinstance(one, dict | list) and depth == most:
            assert json.loads(other) == one
        elif isinstance(one, dict):
            assert one.keys() == other.keys()
            for name in one:
                compare(one[name], other[name], depth + 1)
        elif isinstance(one, list):
            assert len(one) == len(other)
            for inner, outer in zip(one, other, strict=True):
                compare(inner, outer, depth + 1)
        else:
            assert one == other

    compare(value, shorter, 0)


@pytest.mark.parametrize("depth", [130, 900, 2_000, 10_000, 300_000])
def test_a_text_of_any_depth_is_read_and_what_is_beside_its_depth_is_kept(depth: int) -> None:
    value, changed = read_cut('{"deep":' + deep_text(depth) + ',"beside":[1,"[[[["]}')
    assert changed
    assert isinstance(value, dict)
    assert value["beside"] == [1, "[[[["]
    assert levels(value) == READ_DEPTH
    with pytest.raises(Refused, match="deep: nested deeper than 64 levels"):
        canonical(value["deep"], field="deep")


def test_a_text_at_the_limit_is_read_whole() -> None:
    assert read_cut(deep_text(READ_DEPTH)) == (json.loads(deep_text(READ_DEPTH)), False)
    assert read_cut(deep_text(READ_DEPTH + 2))[1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"n":' + b"7" * 5000 + b',"m":12}', {"n": math.inf, "m": 12}),
        (b'{"n":-' + b"7" * 5000 + b"}", {"n": -math.inf}),
        (b'{"n":1e400}', {"n": math.inf}),
        (b'{"name":"caf\xe9","attempt":1}', {"name": "caf\udce9", "attempt": 1}),
        (b'{"half":"\\ud800"}', {"half": "\ud800"}),
    ],
    ids=["a number of 5000 digits", "a negative one", "a number beyond all floats", "Latin-1", "half of a pair"],
)
def test_what_cannot_be_read_exactly_is_read_so_that_it_is_refused_where_it_is_needed(text: bytes, value: dict[str, Any]) -> None:
    assert read(text) == value
    wrong = next(item for item in value.values() if not isinstance(item, int))
    with pytest.raises(Refused, match="payload is no JSON"):
        canonical(wrong, field="payload")


@given(st.text(st.sampled_from('[]{}"\\:,1an \n'), max_size=40) | st.binary(max_size=20))
@example("[" * 100_000)
@example("]" * 100_000)
@example('"' + '\\"' * 100_000)
@example('["' + "\\" * 99_999)
@example("[" * 2_000 + "}" * 2_000)
@example('{"a":' * 2_000)
def test_no_text_raises_anything_but_that_it_is_no_json(text: str | bytes) -> None:
    with contextlib.suppress(json.JSONDecodeError):
        read(text)


def test_a_value_that_holds_itself_is_deep() -> None:
    ring: list[Any] = []
    ring.append({"a": ring})
    assert deeper_than(ring, 10_000)
