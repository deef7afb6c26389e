"""What the use cases need from outside, as Protocols. Every implementation is held to one contract suite."""

from stepfence.ports.contracts import (
    Caller,
    Clock,
    Ids,
    RecordKind,
    RecordStore,
    RunKey,
    RunStore,
    Stored,
    WorkerGate,
    WorkerIdentity,
    Write,
)

__all__ = ["Caller", "Clock", "Ids", "RecordKind", "RecordStore", "RunKey", "RunStore", "Stored", "WorkerGate", "WorkerIdentity", "Write"]
