"""JSON merge patch, as `kubectl patch --type=merge` applies it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

__all__ = ["merge"]


def merge(target: Any, changes: Any) -> Any:
    """Return `target` with `changes` merged in (RFC 7396); neither is touched."""
    if not isinstance(changes, Mapping):
        return copy.deepcopy(changes)
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in changes.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged
