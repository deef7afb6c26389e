"""kopf at the edge: the watches, the login and the loop. Its events go into the caches, and nothing else of it is used.

No handler of ours is one for which kopf writes to objects (create, update, delete, daemons, timers): `on.event` never patches.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import kopf

from stepfence.controller.cache import Cache
from stepfence.controller.health import WatchHealth
from stepfence.controller.jobs import MANAGED_BY
from stepfence.controller.stream import Sessions
from stepfence.schema import GROUP, PLURAL, VERSION

__all__ = ["EndlessBackoffs", "kopf_settings", "watch_registry"]

_OURS = "=".join(MANAGED_BY)
_DELETED = "DELETED"


class EndlessBackoffs:
    """Pauses between tries of one request of kopf, for ever: a list would run out and end the process. Each pause tells of a failure."""

    def __init__(self, failed: Callable[[], None], first: float = 0.5, cap: float = 8.0) -> None:
        self._failed, self._first, self._cap = failed, first, cap

    def __iter__(self) -> Iterator[float]:
        pause = self._first
        while True:
            self._failed()
            yield pause
            pause = min(pause * 2, self._cap)


def kopf_settings(health: WatchHealth, exit_seconds: float = 10.0) -> kopf.OperatorSettings:
    """Return kopf's settings: no writes of its own, no peering, watches that notice when they are dead, retries without end."""
    settings = kopf.OperatorSettings()
    # It tells of each event of each object.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.inactivity_timeout = 70
    # Before a list of everything: whatever made the last watch end may be there again at once.
    settings.watching.reconnect_backoff = 1.0
    settings.watching.chunk_size = 500
    settings.watching.label_selectors["batch", "v1", "jobs"] = _OURS
    settings.watching.label_selectors["", "v1", "pods"] = _OURS
    settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 60
    settings.networking.error_backoffs = EndlessBackoffs(health.failed)
    settings.queueing.idle_timeout = 0.1
    settings.queueing.exit_timeout = exit_seconds
    return settings


def watch_registry(cache: Cache, health: WatchHealth, told: Callable[[str], None]) -> kopf.OperatorRegistry:
    """Return the handlers: AgentRuns, and the Jobs and pods that carry our label. `told` hears what was wrong with what was read."""
    registry = kopf.OperatorRegistry()
    labels, sessions = dict([MANAGED_BY]), Sessions(told)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def run(event: Mapping[str, Any], **_: Any) -> None:
        health.heard(event["object"])
        cache.see_run(event["object"], deleted=event["type"] == _DELETED)

    @kopf.on.event("batch", "v1", "jobs", labels=labels, registry=registry)
    async def job(event: Mapping[str, Any], **_: Any) -> None:
        cache.see_job(event["object"], deleted=event["type"] == _DELETED)

    @kopf.on.event("", "v1", "pods", labels=labels, registry=registry)
    async def pod(event: Mapping[str, Any], **_: Any) -> None:
        cache.see_pod(event["object"], deleted=event["type"] == _DELETED)

    @kopf.on.login(registry=registry)
    async def login(**kwargs: Any) -> kopf.AiohttpSession | None:
        named = bool(os.environ.get("KUBECONFIG"))
        info = kopf.login_with_kubeconfig(**kwargs) if named else kopf.login_with_service_account(**kwargs)
        return None if info is None else sessions.of(info)

    return registry
