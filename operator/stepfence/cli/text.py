"""Text of workers and people on a terminal: what is not a plain character is shown, never obeyed."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

__all__ = ["as_json", "hidden", "plain"]

# What is looked at: line ends part a document, all else in this range is harmless.
_LOOKED_AT = re.compile(r"[^\n -~]")


def hidden(character: str) -> bool:
    """Whether a terminal would obey it, or show nothing of it: a control (C0, C1), a format or bidirectional character, a separator."""
    return not character.isprintable() and unicodedata.category(character) != "Zs"


def plain(text: str) -> str:
    r"""Return the text as one line without control, format or bidirectional characters: each stands as its escape (`\x1b`, `\n`)."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if hidden(character):
        return character.encode("unicode_escape").decode()
    return character if character.isprintable() else " "


def as_json(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    r"""Return JSON in which such characters stand as their escapes (`\u202e`), so that it is the same JSON."""
    text = json.dumps(value, indent=indent, sort_keys=sort_keys, ensure_ascii=False)
    return _LOOKED_AT.sub(lambda found: json.dumps(found[0])[1:-1] if hidden(found[0]) else found[0], text)
