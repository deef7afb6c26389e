"""What the use cases need from outside, as Protocols. Every implementation is held to one contract suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from stepfence.core.fencing import HolderFact
from stepfence.core.model import Run

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


class RunKey(NamedTuple):
    """Where a run is stored."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A run as read or written. `revision` is the store's own version; `raw` the stored status with all that we do not know."""

    key: RunKey
    run: Run
    revision: str
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    # Bytes of the stored object without its status.
    base_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Write:
    """One write of a run: what was read, what shall be, and the status document that says so. `size` is in bytes, of the whole object."""

    before: Stored
    run: Run
    status: Mapping[str, Any] = field(repr=False)
    size: int = 0


class Clock(Protocol):
    """Wall clock (UTC, milliseconds) and monotonic seconds."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class Ids(Protocol):
    """Randomness."""

    def nonce(self) -> str:
        """Return 128 random bits as text, fresh for each call."""
        ...


class RunStore(Protocol):
    """Compare-and-swap storage of runs."""

    async def load(self, key: RunKey) -> Stored:
        """Read a run. Raises `Refused(NOT_FOUND)`, `Unreadable`, or `Unknown` when the store cannot be reached."""
        ...

    async def save(self, write: Write) -> Stored:
        """Write a run under the version and token that were read.

        Raises `Conflict` when either moved, `Refused(NOT_FOUND)` when the run is gone, `Refused(BAD_REQUEST)` when the store's own rules
        refuse it, `Unknown` when the reply was lost.
        """
        ...


class RecordKind:
    """Types of write-once records."""

    PAYLOAD = "Payload"
    RESULT = "Result"


class RecordStore(Protocol):
    """Write-once bodies beside the run, and spent identities (I11)."""

    async def put(self, run: Run, kind: str, text: str, digest: str) -> str:
        """Store canonical text and return its name, `record_name`; the same again is the same record, as young as a new one.

        So nobody sweeps it before a write that is on its way refers to it. Raises `Refused(STORE_CONFLICT)` when the name holds another
        text, `Unknown`.
        """
        ...

    async def keep(self, run: Run, name: str) -> bool:
        """Whether the record stands, and is young enough to be referred to without another `put`. Raises `Unknown`."""
        ...

    async def get(self, run: Run, name: str) -> str:
        """Return the text of a record. Raises `Refused(NOT_FOUND)`, `Unknown`."""
        ...

    async def spend(self, run: Run) -> str:
        """Spend the run's identity and return the uid that owns it: the run's own, or another's who came first. Raises `Unknown`."""
        ...


@dataclass(frozen=True, slots=True)
class BodyRecord:
    """What is known of a body's record without its body. `mark`: the store's own version, another one once it was put again."""

    key: RunKey
    run_uid: str
    name: str
    put_at: datetime
    mark: str


class SweepStore(Protocol):
    """The records of bodies, looked over as a whole. Spent identities are not among them."""

    def bodies(self) -> AsyncIterator[BodyRecord]:
        """Yield every body's record, those of one run in a row, without reading the bodies. Raises `Refused`, `Unknown`."""
        ...

    async def remove(self, record: BodyRecord) -> bool:
        """Delete the record unless it was put again since it was seen; False when it was, or is gone. Raises `Refused`, `Unknown`."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """The pod that makes a call, as the API server vouches for it."""

    namespace: str
    pod: str
    pod_uid: str


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Which worker a pod is: by its owner Job and that Job's owner, never by labels."""

    run: str
    run_uid: str
    job: str


class WorkerGate(Protocol):
    """What the world knows of workers."""

    async def identify(self, bearer: str, address: str = "") -> Caller:
        """Review a token that came from that network address. Raises `Refused(UNAUTHENTICATED)`, `Unknown`."""
        ...

    async def worker_of(self, caller: Caller) -> WorkerIdentity | None:
        """Return which worker the pod is; None for a pod that is none. Raises `Unknown`."""
        ...

    async def holder(self, run: Run) -> HolderFact:
        """Return whether the pod that holds the run is alive. Raises `Unknown`."""
        ...

    async def renew(self, run: Run, caller: Caller) -> None:
        """Renew the lease of an idle worker, outside the run's own object. Raises `Unknown`."""
        ...
