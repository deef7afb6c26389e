"""How the controller is set up, by environment."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from stepfence.core.words import Settings

__all__ = ["ControllerSettings"]

# Seconds of the core's settings that an operator may change, and the variables that say so.
_CORE_SECONDS = (
    "margin",
    "lease",
    "unresponsive",
    "create_refused_after",
    "start_failed_after",
    "backoff_base",
    "backoff_cap",
)


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Every field `x` is read from `STEPFENCE_X`; those of `core` that count seconds from `STEPFENCE_<NAME>_SECONDS`."""

    # Name of this replica, which is its pod's; it stands in the leader's Lease and on Events.
    pod_name: str = field(default_factory=socket.gethostname)
    # Where the leader's Lease and the certificates are kept.
    pod_namespace: str = "stepfence-system"
    # What workers call.
    gateway_url: str = ""
    # More DNS names for the gateway's certificate, separated by commas.
    gateway_names: str = ""
    # Runs that are reconciled at the same time.
    workers: int = 8
    # Seconds between two looks at everything, in case a watch missed something.
    resync_seconds: float = 300.0
    # Seconds between two looks for records that no run refers to.
    sweep_seconds: float = 300.0
    # Seconds that a leader is believed without a renewal, that it tries to renew, and between two tries.
    election_lease_seconds: float = 15.0
    election_renew_seconds: float = 10.0
    election_retry_seconds: float = 2.0
    # Address of /livez, /readyz and /metrics.
    health_host: str = "0.0.0.0"  # noqa: S104  (probes come from the node)
    health_port: int = 8080
    # Bytes of status and record writes in a second, for this replica.
    write_bytes_per_second: int = 1024 * 1024
    log_level: str = "INFO"
    core: Settings = field(default_factory=Settings)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables; raise `ValueError` naming the first that cannot be read."""
        given: dict[str, Any] = {}
        plain = cls()
        for item in fields(cls):
            name = f"STEPFENCE_{item.name.upper()}"
            if item.name != "core" and environ.get(name):
                given[item.name] = _read(name, environ[name], type(getattr(plain, item.name)))
        core = plain.core
        for short in _CORE_SECONDS:
            name = f"STEPFENCE_{short.upper()}_SECONDS"
            if environ.get(name):
                core = replace(core, **{short: _read(name, environ[name], int)})
        settings = replace(plain, core=core, **given)
        return settings if settings.gateway_url else replace(settings, gateway_url=settings.service_url)

    @property
    def service_url(self) -> str:
        """Address of the gateway's Service in this namespace."""
        return f"https://stepfence-gateway.{self.pod_namespace}.svc:8443"


def _read(name: str, text: str, kind: type[Any]) -> Any:
    try:
        value = kind(text)
    except ValueError as error:
        raise ValueError(f"{name}: {text!r} is no {kind.__name__}") from error
    if isinstance(value, int | float) and value < 0:
        raise ValueError(f"{name}: {text!r} is negative")
    if name == "STEPFENCE_LOG_LEVEL" and text.lower() not in ("debug", "info", "warning", "error"):
        raise ValueError(f"{name}: {text!r} is none of debug, info, warning, error")
    if name == "STEPFENCE_WORKERS" and value < 1:
        raise ValueError(f"{name}: {text!r} must be at least 1")
    return value
