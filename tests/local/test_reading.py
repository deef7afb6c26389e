"""Manifests and patches are read as kubectl reads them, and into nothing that JSON cannot carry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepfence.core.errors import Code, Refused
from stepfence.local.admission import admit_json_patch
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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("spec:\n  input:\n    amount: 10\n    amount: 1000\n", "spec.input.amount: given twice (lines 3 and 4)"),
        ("spec: {input: {amount: 10, 'amount': 1000}}", "spec.input.amount: given twice (line 1)"),
        ("a: [{b: 1}, {b: 1, c: 2, b: 1}]", "a[1].b: given twice (line 1)"),
        ("a: {<<: {b: 1}, <<: {c: 1}}", "a.<<: given twice (line 1)"),
        ("spec:\n  input:\n    1: x\n", "spec.input.1: the key is no string but !!int: put it in quotes (line 3)"),
        ("on: push", "on: the key is no string but !!bool: put it in quotes (line 1)"),
        ("a: {~: 1}", "a.~: the key is no string but !!null: put it in quotes (line 1)"),
        ("a: {? [1, 2] : 1}", "a: a key that is no string (line 1)"),
        ("spec:\n  input: {rate: .nan}", "spec.input.rate: a number that is not finite, which JSON cannot carry (line 2)"),
        ("a: [1, -.inf]", "a[1]: a number that is not finite, which JSON cannot carry (line 1)"),
        ("a: 1e400", "a: a number that is not finite, which JSON cannot carry (line 1)"),
        ('a: {b: "\\ud800"}', "a.b: half of a character (a lone surrogate), which JSON cannot carry (line 1)"),
        ("a: {b: !!binary aGVsbG8=}", "a.b: !!binary is no type of JSON (line 1)"),
        ("a: {b: !!set {c, d}}", "a.b: !!set is no type of JSON (line 1)"),
        ("a: {b: !!python/name:os.system x}", "a.b: !!python/name:os.system is no type of JSON (line 1)"),
        ("a: {b: !!bool perhaps}", "a.b: cannot be read as !!bool (line 1)"),
        ("a: {b: !!int many}", "a.b: cannot be read as !!int (line 1)"),
        ("a: &a {b: *a}", "a.b: holds itself (line 1)"),
        ("a: {<<: 1}", "a.<<: only a mapping can be merged (line 1)"),
        ("b: 1\n---\na: 1\na: 2", "a: given twice (lines 3 and 4)"),
        ("a: {", "line 1, column 5: while parsing a flow node: expected the node content, but found '<stream end>'"),
        ("a: \x1b", "character 4 (#x001b): special characters are not allowed"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_by_its_path_and_place(text: str, told: str) -> None:
    with pytest.raises(Refused) as refused:
        read_documents(text)
    assert (refused.value.code, refused.value.detail) == (Code.BAD_REQUEST, told)


def test_the_field_goes_with_the_refusal() -> None:
    with pytest.raises(Refused) as refused:
        read_documents("spec: {input: {amount: 10, amount: 1000}}")
    assert refused.value.field == "spec.input.amount"


def test_merges_and_aliases_are_what_they_are_for_kubectl() -> None:
    text = "base: &base {a: 1, b: 1}\nmore: &more {b: 2, c: 2}\none: {<<: *base, b: 3}\nboth: {b: 4, <<: [*more, *base]}\n"
    text += "'<<': 5\n=: 6\nagain: [*base]"
    (document,) = read_documents(text)
    assert (document["one"], document["both"]) == ({"a": 1, "b": 3}, {"a": 1, "b": 4, "c": 2})
    assert (document["<<"], document["="], document["again"]) == (5, 6, [{"a": 1, "b": 1}])


# Each level merges the one before ten times: 10 to the 9 pairs, were each looked at on its own.
_MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{','.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10))
_WIDE = "a: &a {" + ",".join(f"k{n}: 1" for n in range(2_000)) + "}\n" + "b: {<<: [" + ",".join(["*a"] * 2_000) + "]}"


def test_merges_of_merges_make_no_more_than_there_is() -> None:
    assert read_documents(_MERGES)[0]["a9"] == {"k": 1}


def test_merges_that_would_take_long_are_refused() -> None:
    with pytest.raises(Refused, match=r"b\.<<: more than 100000 keys by merges"):
        read_documents(_WIDE)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"spec": {"decisions": {"a.q": {"verdict": "DidNotHappen", "verdict": "Happened"}}}}', "spec.decisions.a.q.verdict: given twice"),
        ('[{"op": "add", "path": "/spec/suspend", "value": true, "value": false}]', "[0].value: given twice"),
        ('{"a": Infinity}', "a: a number that is not finite, which JSON cannot carry"),
        ("{spec: {suspend: true, suspend: false}}", "spec.suspend: given twice (line 1)"),
    ],
)
def test_of_a_patch_nothing_is_lost_in_silence_either(text: str, told: str) -> None:
    with pytest.raises(Refused) as refused:
        read_one(text)
    assert (refused.value.code, refused.value.detail) == (Code.BAD_REQUEST, told)


def test_a_file_may_begin_with_the_mark_that_some_programs_write_before_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("\ufeffapiVersion: Jörg\nkind: AgentRun\n", encoding="utf-8")
    with pytest.raises(Refused, match="not Jörg AgentRun"):
        read_manifests([file], "default")


@pytest.mark.parametrize("levels", [130, 900, 3_000, 100_000])
def test_what_is_nested_too_deep_is_refused_in_words(levels: int) -> None:
    text = '{"a":' + "[" * levels + "]" * levels + "}"
    for read in (read_documents, read_one):
        with pytest.raises(Refused, match=r"^bad-request: nested too deeply"):
            read(text)


def test_a_json_patch_cannot_make_deep_what_is_not() -> None:
    value: Any = 1
    for _ in range(64):
        value = {"a": value}
    copy: dict[str, Any] = {"op": "copy", "from": "/spec/input", "path": "/spec/input" + "/a" * 63}
    document = {"metadata": {"name": "run", "namespace": "default"}, "spec": {"input": value, "template": {}}}
    with pytest.raises(Refused, match="nested too deeply: more than 128 levels"):
        admit_json_patch(document, [copy, copy, copy])
