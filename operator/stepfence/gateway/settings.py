"""Settings of the gateway: each field is an environment variable `STEPFENCE_<FIELD>`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stepfence.app.budget import DEFAULT_BYTES_PER_SECOND
from stepfence.core.words import Settings

__all__ = ["BadSetting", "GatewaySettings"]

_PREFIX = "STEPFENCE_"


class BadSetting(Exception):
    """An environment variable cannot be read; the text names it."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """How a gateway runs. Times in seconds, sizes in bytes."""

    bind: str = ""
    """Address of both ports; empty: every address, of both IP families where there are two."""
    https_port: int = 8443
    """The worker API."""
    health_port: int = 8080
    """`/livez`, `/readyz`, `/metrics`, in plain HTTP."""
    tls_dir: Path = Path("/etc/stepfence/tls")
    """Folder with `tls.crt` and `tls.key`, a mounted Secret; both are read again when they change."""
    pod_namespace: str = ""
    """Where this gateway and its Service are; empty outside a cluster: then it takes the whole byte budget."""
    service: str = "stepfence-gateway"
    """The Service whose ready endpoints share the byte budget."""
    bytes_per_second: int = DEFAULT_BYTES_PER_SECOND
    """Byte budget of status and record writes of all gateways together."""
    max_requests: int = 128
    """Requests served at once; more are told to come back."""
    request_seconds: int = 25
    """Deadline of a request."""
    store_seconds: int = 10
    """Deadline of one call to the API server."""
    max_connections: int = 4096
    """Connections of workers at once."""
    max_connections_per_address: int = 1024
    """The same for one source address: many workers may share one."""
    new_connections_per_address: int = 50
    """TLS handshakes a second for one source address; twice as many at once."""
    handshake_seconds: int = 10
    """How long a TLS handshake may take, its wait for a turn included."""
    head_seconds: int = 10
    """How long the head of a request may take."""
    token_reviews_per_second: int = 50
    """Reviews of tokens a second that may come to nothing."""
    token_reviews_per_address: int = 10
    """The same for one source address: many workers may share one."""
    drain_seconds: int = 25
    """How long requests in flight may take to finish after SIGTERM."""
    margin_seconds: int = 10
    """What is allowed for beyond the deadline of an attempt. All gateways and controllers need the same."""
    lease_seconds: int = 60
    """How long a worker's sign of life is believed. All gateways and controllers need the same."""
    log_level: str = "info"
    """`debug`, `info`, `warning` or `error`."""

    @classmethod
    def load(cls, environ: Mapping[str, str]) -> GatewaySettings:
        """Read the environment. Raises `BadSetting` naming the variable."""
        found: dict[str, object] = {}
        for field in dataclasses.fields(cls):
            name = _PREFIX + field.name.upper()
            if name in environ:
                found[field.name] = _read(name, environ[name], field.default)
        return cls(**found)  # type: ignore[arg-type]

    @property
    def core(self) -> Settings:
        """Return what the rules need."""
        return Settings(margin=self.margin_seconds, lease=self.lease_seconds)


def _read(name: str, text: str, default: object) -> object:
    if isinstance(default, Path):
        return Path(text)
    if not isinstance(default, int):
        if name == "STEPFENCE_LOG_LEVEL" and text not in ("debug", "info", "warning", "error"):
            raise BadSetting(f"{name}={text!r}: debug, info, warning or error")
        return text
    try:
        number = int(text)
    except ValueError:
        raise BadSetting(f"{name}={text!r} is no whole number") from None
    if number < 1:
        raise BadSetting(f"{name}={text!r} must be at least 1")
    return number
