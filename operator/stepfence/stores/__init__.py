"""Where runs are kept. Each store lives in a module of its own, so that nobody loads a client that is not used."""

from stepfence.stores.memory import MemoryRecordStore, MemoryRunStore

__all__ = ["MemoryRecordStore", "MemoryRunStore"]
