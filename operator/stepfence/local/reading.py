"""What people write, in YAML or JSON, read as kubectl reads it: into nothing but JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from stepfence.core.errors import Code, Refused

__all__ = ["read_documents", "read_one", "require_json"]

# As much as an API server takes in one object; and what aliases make of a few lines ends here.
_LARGEST = 1_536 * 1024
_TEMPORARY = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# No times and no numbers of base 60, which kubectl takes for strings (`12:30`); and every number of JSON, `1e5` too.
_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$")
_FLOAT = re.compile(
    r"""(?: [-+]? (?:[0-9][0-9_]*)? \. [0-9][0-9_]* (?:[eE][-+]?[0-9]+)?
          | [-+]? [0-9][0-9_]* (?: \. | \.?[eE][-+]?[0-9]+ )
          | [-+]? \.(?:inf|Inf|INF) | \.(?:nan|NaN|NAN) )$""",
    re.VERBOSE,
)


class _Loader(yaml.SafeLoader):
    """The safe one, with the numbers of JSON and without times."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in _TEMPORARY]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def read_documents(text: str) -> list[Any]:
    """Return the documents that are not empty. Raises `Refused(BAD_REQUEST)` for what is no YAML, no JSON, or too large."""
    try:
        found = [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
        for document in found:
            require_json(document)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise Refused(Code.BAD_REQUEST, str(error)) from error
    return found


def read_one(text: str) -> Any:
    """Return the one value that a text holds, read as JSON where it is JSON. Raises `Refused(BAD_REQUEST)`."""
    try:
        value = json.loads(text)
        require_json(value)
    except json.JSONDecodeError:
        found = read_documents(text)
        if len(found) != 1:
            raise Refused(Code.BAD_REQUEST, f"one value is needed, not {len(found)}") from None
        return found[0]
    except (ValueError, RecursionError) as error:
        raise Refused(Code.BAD_REQUEST, str(error)) from error
    return value


def require_json(value: Any) -> None:
    """Raise `ValueError` or `TypeError` for what JSON cannot carry: no number, half of a character, a date, a ring of aliases."""
    length = 0
    for piece in json.JSONEncoder(allow_nan=False, ensure_ascii=False).iterencode(value):
        length += len(piece.encode())
        if length > _LARGEST:
            raise ValueError(f"larger than {_LARGEST // 1024} KiB")
