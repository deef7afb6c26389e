"""Text of workers and people is shown, never obeyed."""

import json

import pytest

from stepfence.cli.text import as_json, hidden, plain

# C0 and C1 controls, DEL, what turns the direction of text round, joiners and separators, a character that is none.
OBEYED = (
    "\0\x1b\r\x7f\x80\x85\x9b\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff\U000e0001"
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("refund of 5 € to Jörg", "refund of 5 € to Jörg"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\u2028b", "a\\u2028b"),
        ("\ud800", "\\ud800"),
        ("no\u00a0break", "no break"),
        ("[bold]:smile:[/]", "[bold]:smile:[/]"),
        ("", ""),
    ],
    ids=ascii,
)
def test_what_is_no_plain_character_stands_as_its_escape(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert plain(text).isprintable()


def test_json_stays_the_same_json_and_shows_what_a_terminal_would_obey() -> None:
    value = {f"a{OBEYED}": [f"{character}b" for character in OBEYED], "to": "Jörg €\u00a0😀\n\t"}
    for indent in (None, 4):
        text = as_json(value, indent=indent)
        assert json.loads(text) == value
        assert not any(map(hidden, text.replace("\n", "")))
    assert "\\u202e" in as_json("\u202e")
    assert as_json("Jörg 😀") == '"Jörg 😀"'
