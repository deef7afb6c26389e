"""Text of workers and people is shown, never obeyed."""

import pytest

from stepfence.local.text import plain


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
