"""The story of a run as Kubernetes Events, which `kubectl describe` shows.

It is told once: the same notice about the same version has the same name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog

from stepfence.controller.cluster import Cluster
from stepfence.core.errors import Refused, Unknown
from stepfence.core.notices import Notice
from stepfence.schema import GROUP, VERSION

__all__ = ["EventSink", "Unread", "event_object"]

_LOG = structlog.get_logger(__name__)
_NOTE = 1024
_REASON = 128
_NAME_RUN = 200


class Subject(Protocol):
    """What an Event is about: a run, or as much as is known of one."""

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def uid(self) -> str: ...

    @property
    def version(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Unread:
    """A run that cannot be read, so that only its names are known."""

    namespace: str
    name: str
    uid: str
    version: int = 0


def event_object(run: Subject, notice: Notice, place: int, now: datetime, instance: str) -> dict[str, Any]:
    """Return the Event of a notice in its place of the story about that version of a run. Names sort as the story goes."""
    told = hashlib.sha256(f"{run.uid}\n{notice.reason}\n{notice.message}".encode()).hexdigest()[:10]
    note = notice.message if len(notice.message.encode()) <= _NOTE else notice.message.encode()[: _NOTE - 3].decode(errors="ignore") + "..."
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{run.name[:_NAME_RUN]}.{run.version:06x}.{place:02x}.{told}", "namespace": run.namespace},
        "eventTime": now.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "type": notice.type,
        "reason": notice.reason[:_REASON],
        "action": notice.reason[:_REASON],
        "note": note or notice.reason,
        "reportingController": f"{GROUP}/controller",
        "reportingInstance": instance[:_REASON],
        "regarding": {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "AgentRun",
            "namespace": run.namespace,
            "name": run.name,
            "uid": run.uid,
        },
    }


class EventSink:
    """Posts notices. Events are for people and may be lost: a failure is logged, and nothing waits for it."""

    def __init__(self, cluster: Cluster, instance: str) -> None:
        self._cluster, self._instance = cluster, instance

    async def tell(self, run: Subject, story: Iterable[Notice], now: datetime) -> None:
        """Post the Events of a story about that version of a run, in order."""
        for place, notice in enumerate(story):
            try:
                await self._cluster.post_event(event_object(run, notice, place, now, self._instance))
            except (Refused, Unknown) as error:
                _LOG.warning("event not posted", namespace=run.namespace, run=run.name, reason=notice.reason, error=str(error))
                return
