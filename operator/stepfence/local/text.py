"""Text of workers and people on a terminal: what is not a plain character is shown, never obeyed."""

from __future__ import annotations

import unicodedata

__all__ = ["plain"]


def plain(text: str) -> str:
    r"""Return the text as one line without control, format or bidirectional characters: each stands as its escape (`\x1b`, `\n`)."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if unicodedata.category(character) == "Zs" else character.encode("unicode_escape").decode()
