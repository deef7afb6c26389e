"""What the use cases need from outside, as Protocols. Every implementation is held to one contract suite."""

from stepfence.ports.contracts import (
    BodyRecord,
    Caller,
    Clock,
    Ids,
    RecordKind,
    RecordStore,
    RunKey,
    RunStore,
    Stored,
    SweepStore,
    WorkerGate,
    WorkerIdentity,
    Write,
)

__all__ = [
    "BodyRecord",
    "Caller",
    "Clock",
    "Ids",
    "RecordKind",
    "RecordStore",
    "RunKey",
    "RunStore",
    "Stored",
    "SweepStore",
    "WorkerGate",
    "WorkerIdentity",
    "Write",
]
