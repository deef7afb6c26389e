"""Manifests and patches are read as kubectl reads them, and into nothing that JSON cannot carry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepfence.core.errors import Code, Refused
from stepfence.local.reading import read_documents, read_one
from stepfence.local.run import read_manifests

_NINE = "".join(f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True))
_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + _NINE


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-01-01", "2026-01-01"),
        ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00Z"),
        ("12:30", "12:30"),
        ("1:30:00", "1:30:00"),
        ("1e5", 100_000.0),
        ("1.5E-3", 0.0015),
        (".5", 0.5),
        ("-7", -7),
        ("0", 0),
        ("012", 10),
        ("0x1f", 31),
        ("1_000", 1000),
        ("09", "09"),
        ("1.2.3", "1.2.3"),
        ("yes", True),
        ("~", None),
    ],
)
def test_plain_words_of_yaml_are_what_kubectl_makes_of_them(text: str, value: Any) -> None:
    (document,) = read_documents(f"a: {text}\n")
    assert (document["a"], type(document["a"])) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    [
        "a: .nan",
        "a: -.inf",
        "a: 1e400",
        'a: "\\ud800"',
        "a: !!binary aGVsbG8=",
        "a: !!set {b, c}",
        "a: !!timestamp 2026-01-01",
        "a: &a [*a]",
        "a: " + "9" * 5000,
        "[" * 3000 + "]" * 3000,
        _BOMB,
        "a: [",
        "a: !!python/name:os.system",
    ],
    ids=lambda text: text[:20],
)
def test_what_json_cannot_carry_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        read_documents(text)
    assert refused.value.code is Code.BAD_REQUEST


def test_a_patch_in_json_keeps_its_numbers_and_characters() -> None:
    text = '{"amount":\t1e5, "note": "\\ud83d\\ude00", "path": "a\\/b"}'
    assert read_one(text) == json.loads(text) == {"amount": 100_000.0, "note": "\N{GRINNING FACE}", "path": "a/b"}


def test_a_patch_may_be_yaml() -> None:
    assert read_one("spec: {suspend: true}") == {"spec": {"suspend": True}}


@pytest.mark.parametrize("text", ["", "a: 1\n---\nb: 2", '{"a": NaN}', '{"a": "\\ud800"}', '{"a": ' + "[" * 100_000, "{"])
def test_a_patch_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        read_one(text)
    assert refused.value.code is Code.BAD_REQUEST


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe\x00", b"a: .nan"])
def test_a_file_that_cannot_be_read_is_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    with pytest.raises(Refused) as refused:
        read_manifests([file], "default")
    assert str(file) in refused.value.detail
