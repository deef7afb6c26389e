"""Open files: each connection is one, and a process may begin with room for a thousand."""

from __future__ import annotations

import resource

import structlog

__all__ = ["places_for"]

log = structlog.get_logger(__name__)

# Connections to the API server, listeners, logs, the loop's own.
_OTHERS = 256


def places_for(connections: int) -> int:
    """Make room for so many connections and return for how many there is: a process may raise its limit up to the one set from outside."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHERS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    places = max(1, soft - _OTHERS)
    log.warning("gateway.files.limited", connections=places, wanted=connections)
    return places
