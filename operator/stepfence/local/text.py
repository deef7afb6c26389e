"""Documents as YAML in which no character stands that a terminal would obey or not show."""

from __future__ import annotations

import re
import sys
from typing import Any

import yaml

from stepfence.cli.text import hidden

__all__ = ["as_yaml"]

_LOOKED_AT = re.compile(r"[^\n -~]")


class _Dumper(yaml.SafeDumper):
    """The safe one, in which a text with such a character stands in double quotes: only there YAML has escapes."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    odd = any(hidden(found[0]) for found in _LOOKED_AT.finditer(text))
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if odd else None)


_Dumper.add_representer(str, _text)


def as_yaml(value: Any) -> str:
    """Return the value as YAML. No line is broken: a question's command is there to be pasted."""
    text = yaml.dump(value, Dumper=_Dumper, allow_unicode=True, width=sys.maxsize)
    return _LOOKED_AT.sub(lambda found: _escape(found[0]) if hidden(found[0]) else found[0], text)


def _escape(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
