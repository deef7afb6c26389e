"""What people write, in YAML or JSON, read as kubectl reads it: into nothing but JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from stepfence.cli.reading import below, read_json, unfit
from stepfence.core.errors import Code, Refused
from stepfence.core.nesting import READ_DEPTH, deeper_than

__all__ = ["read_documents", "read_one", "require_json"]

# As much as an API server takes in one object; and what aliases make of a few lines ends here.
_LARGEST = 1_536 * 1024
_MOST_MERGED = 100_000
_TAG = "tag:yaml.org,2002:"
_TEXTS = frozenset({f"{_TAG}str", f"{_TAG}value"})  # the second: `=`, which is nothing special to kubectl
_SCALARS = frozenset(f"{_TAG}{name}" for name in ("null", "bool", "int", "float"))
_NONE, _OPEN = object(), object()
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
    """Return the documents that are not empty.

    Raises `Refused(BAD_REQUEST)` for what is no YAML, no JSON, or too large; it names the field that is given twice or that JSON cannot
    carry.
    """
    found = []
    try:
        loader = _Loader(text)
        try:
            while loader.check_node():
                if (node := loader.get_node()) is not None:
                    found.append(_Values(loader).of(node, ""))
        finally:
            loader.dispose()
        for document in found:
            require_json(document)
    except yaml.YAMLError as error:
        raise Refused(Code.BAD_REQUEST, _told(error)) from error
    except RecursionError:
        raise Refused(Code.BAD_REQUEST, "nested too deeply") from None
    except (ValueError, TypeError) as error:
        raise Refused(Code.BAD_REQUEST, str(error)) from error
    return [document for document in found if document is not None]


def _told(error: yaml.YAMLError) -> str:
    """In one line, with the place."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        context = f" {error.context}:" if error.context else ""
        return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}:{context} {error.problem}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position + 1} (#x{int(error.character):04x}): {error.reason}"
    return str(error)


class _Values:
    """Makes values of nodes: PyYAML's own constructor takes the last of two equal keys.

    A node that stands under several paths by aliases is made once, and named by the first.
    """

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        self._made: dict[int, Any] = {}
        self._merged = 0

    def of(self, node: yaml.Node, path: str) -> Any:
        known = self._made.get(id(node), _NONE)
        if known is _OPEN:
            raise _no(path, "holds itself", node)
        if known is not _NONE:
            return known
        self._made[id(node)] = _OPEN
        if isinstance(node, yaml.ScalarNode):
            value = self._scalar(node, path)
        elif node.tag == f"{_TAG}map" and isinstance(node, yaml.MappingNode):
            value = self._mapping(node, path)
        elif node.tag == f"{_TAG}seq" and isinstance(node, yaml.SequenceNode):
            value = [self.of(item, f"{path}[{index}]") for index, item in enumerate(node.value)]
        else:
            raise _no(path, f"{_short(node.tag)} is no type of JSON", node)
        self._made[id(node)] = value
        return value

    def _scalar(self, node: yaml.ScalarNode, path: str) -> Any:
        if node.tag in _TEXTS:
            value: Any = node.value
        elif node.tag in _SCALARS:
            try:
                value = self._loader.construct_object(node)
            except (ValueError, KeyError) as error:
                raise _no(path, f"cannot be read as {_short(node.tag)}", node) from error
        else:
            raise _no(path, f"{_short(node.tag)} is no type of JSON", node)
        if problem := unfit(value):
            raise _no(path, problem, node)
        return value

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        own: dict[str, Any] = {}
        lines: dict[str, int] = {}
        merged: dict[str, Any] = {}
        for key, item in node.value:
            merges = key.tag == f"{_TAG}merge"
            name = "<<" if merges else self._key(key, path)
            here, known = below(path, name), f"{merges} {name}"  # a key "<<" in quotes merges nothing
            if known in lines:
                raise _no(here, "given twice", key, first=lines[known])
            lines[known] = _line(key)
            if merges:
                merged = self._sources(item, here)
            else:
                own[name] = self.of(item, here)
        return merged | own

    def _key(self, node: yaml.Node, path: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise _no(path, "a key that is no string", node)
        name = str(node.value)
        if node.tag not in _TEXTS:
            raise _no(below(path, name), f"the key is no string but {_short(node.tag)}: put it in quotes", node)
        if problem := unfit(name):
            raise _no(below(path, name), problem, node)
        return name

    def _sources(self, node: yaml.Node, path: str) -> dict[str, Any]:
        """What `<<` brings: of several mappings the first that has a key."""
        listed = isinstance(node, yaml.SequenceNode)
        merged: dict[str, Any] = {}
        for index, item in enumerate(node.value if listed else [node]):
            where = f"{path}[{index}]" if listed else path
            if not isinstance(item, yaml.MappingNode):
                raise _no(where, "only a mapping can be merged", item)
            source = self.of(item, where)
            self._merged += len(source) + 1
            if self._merged > _MOST_MERGED:
                raise _no(path, f"more than {_MOST_MERGED} keys by merges", item)
            for name, value in source.items():
                merged.setdefault(name, value)
        return merged


def _short(tag: str) -> str:
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _no(path: str, text: str, node: yaml.Node, *, first: int | None = None) -> Refused:
    line = _line(node)
    detail = f"{text} (line {line})" if first in (None, line) else f"{text} (lines {first} and {line})"
    return Refused(Code.BAD_REQUEST, f"{path}: {detail}" if path else detail, field=path or None)


def read_one(text: str) -> Any:
    """Return the one value that a text holds, read as JSON where it is JSON. Raises `Refused(BAD_REQUEST)` as `read_documents` does."""
    try:
        value: Any = read_json(text)
    except json.JSONDecodeError:
        found = read_documents(text)
        if len(found) != 1:
            raise Refused(Code.BAD_REQUEST, f"one value is needed, not {len(found)}") from None
        return found[0]
    try:
        require_json(value)
    except RecursionError:
        raise Refused(Code.BAD_REQUEST, "nested too deeply") from None
    except ValueError as error:
        raise Refused(Code.BAD_REQUEST, str(error)) from error
    return value


def require_json(value: Any) -> None:
    """Raise `ValueError` or `TypeError` for what JSON cannot carry: no number, half of a character, a date, a ring of aliases.

    Also for what is nested too deeply to be worked with, or `RecursionError`.
    """
    length = 0
    for piece in json.JSONEncoder(allow_nan=False, ensure_ascii=False).iterencode(value):
        length += len(piece.encode())
        if length > _LARGEST:
            raise ValueError(f"larger than {_LARGEST // 1024} KiB")
    if deeper_than(value, READ_DEPTH):
        raise ValueError(f"nested too deeply: more than {READ_DEPTH} levels")
