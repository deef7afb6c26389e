"""Nothing of JSON is lost in silence."""

from __future__ import annotations

import json

import pytest

from stepfence.cli.reading import read_json
from stepfence.core.errors import Code, Refused


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"amount": 10, "amount": 1000}', "amount: given twice"),
        ('{"a": [{"b": 1}, {"b": 1, "c": {"d": 1, "e": 2, "d": 1}}]}', "a[1].c.d: given twice"),
        ('[{"a": 1, "\\u0061": 2}]', "[0].a: given twice"),
        ('{"a": {"b": NaN}}', "a.b: a number that is not finite, which JSON cannot carry"),
        ('{"a": [0, -Infinity]}', "a[1]: a number that is not finite, which JSON cannot carry"),
        ('{"a": 1e400}', "a: a number that is not finite, which JSON cannot carry"),
        ('{"a": "\\ud800"}', "a: half of a character (a lone surrogate), which JSON cannot carry"),
        ('{"a": {"\\udc00": 1}}', "a.\udc00: half of a character (a lone surrogate), which JSON cannot carry"),
        ("NaN", "a number that is not finite, which JSON cannot carry"),
    ],
)
def test_what_would_be_lost_is_refused_by_its_path(text: str, told: str) -> None:
    with pytest.raises(Refused) as refused:
        read_json(text)
    assert (refused.value.code, refused.value.detail) == (Code.BAD_REQUEST, told)


@pytest.mark.parametrize("depth", [3_000, 100_000])
def test_what_is_nested_too_deeply_is_refused(depth: int) -> None:
    with pytest.raises(Refused, match="nested too deeply"):
        read_json('{"a":' * depth + "1" + "}" * depth)


def test_a_number_of_too_many_digits_is_refused() -> None:
    with pytest.raises(Refused, match="digits"):
        read_json("9" * 5000)


def test_all_else_of_json_is_read_as_it_is() -> None:
    text = '{"a": {"x": 1}, "b": {"x": 1}, "note": "\\ud83d\\ude00 \u202e", "n": 12345678901234567890, "f": 1e5, "t": [true, null]}'
    assert read_json(text) == json.loads(text)
