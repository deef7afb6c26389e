"""What is handed over is read whole, and nothing of JSON is lost in silence."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from stepfence.cli.reading import handed_json, read_json
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


class Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def test_json_comes_by_its_text_by_a_file_or_by_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"to": "Jörg"}
    text = json.dumps(value, ensure_ascii=False)
    file = tmp_path / "payload.json"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())  # as some programs write UTF-8
    monkeypatch.setattr(sys, "stdin", Stdin(text.encode()))
    assert [handed_json("--payload", given) for given in (text, f"@{file}", "-")] == [value] * 3


@pytest.mark.parametrize(
    ("given", "data", "told"),
    [
        ("@/no/such/file", b"", "--payload: /no/such/file: No such file or directory"),
        ("@", b"", "--payload: .: Is a directory"),
        ("-", b"\xff", "--payload is no UTF-8"),
        ("\udce9", b"", "--payload is no UTF-8: b'\\xe9'"),
        ("-", b"", "--payload is no JSON"),
        ("-", b" " * (4 * 1024 * 1024 + 1), "--payload: larger than 4096 KiB"),
        ("-", b'{"a": 1, "a": 2}', "--payload: a: given twice"),
        ("{", b"", "--payload is no JSON"),
    ],
)
def test_what_cannot_be_read_is_told_by_name(given: str, data: bytes, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(data))
    with pytest.raises(ValueError, match=r"^--payload") as error:
        handed_json("--payload", given)
    assert told in str(error.value)


def test_a_standard_input_that_is_closed_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ValueError, match="--result is no JSON"):
        handed_json("--result", "-")
