"""The memory store with what only a controller does to it."""

from __future__ import annotations

from collections.abc import Callable

from stepfence.ports import RunKey, Stored, Write
from stepfence.stores.memory import MemoryRunStore


class AnnotatedStore(MemoryRunStore):
    """Takes the annotation that the controller writes; counts writes, and lets a test stop the controller before or after each."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.on_call: Callable[[str], None] = lambda _: None

    def annotate(self, key: RunKey, name: str, value: str) -> None:
        document = self._document(key)
        document["metadata"].setdefault("annotations", {})[name] = value
        document["metadata"]["resourceVersion"] = str(next(self._revisions))

    async def save(self, write: Write) -> Stored:
        self.on_call("before save")
        stored = await super().save(write)
        self.writes += 1
        self.on_call("after save")
        return stored
