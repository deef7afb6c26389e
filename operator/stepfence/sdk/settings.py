"""Where the run is, as the operator tells it by environment and files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from stepfence.sdk.errors import NotInARun

__all__ = ["OnPayloadChange", "Options", "Settings", "check_on_payload_change"]

# Whether a step whose payload is not the recorded one goes on with that one, with a line in the log, or is an error.
OnPayloadChange = Literal["warn", "error"]

_REQUIRED = ("STEPFENCE_GATEWAY", "STEPFENCE_NAMESPACE", "STEPFENCE_RUN", "STEPFENCE_TOKEN_FILE")


@dataclass(frozen=True, slots=True)
class Settings:
    """The run's address and this pod's credentials. Files are read again on each use: they are rotated in place."""

    gateway: str
    namespace: str
    run: str
    token_file: Path
    run_uid: str = ""
    worker: str = ""
    ca_file: Path | None = None
    state_dir: Path | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the injected variables; raise `NotInARun` naming the first that is missing."""
        values = os.environ if environ is None else environ
        for name in _REQUIRED:
            if not values.get(name):
                raise NotInARun(
                    f"{name} is not set: this process is no worker of an AgentRun. Start it through an AgentRun, or test it with "
                    "stepfence.testing; calls are never passed through."
                )
        return cls(
            gateway=values["STEPFENCE_GATEWAY"].rstrip("/"),
            namespace=values["STEPFENCE_NAMESPACE"],
            run=values["STEPFENCE_RUN"],
            token_file=Path(values["STEPFENCE_TOKEN_FILE"]),
            run_uid=values.get("STEPFENCE_RUN_UID", ""),
            worker=values.get("STEPFENCE_WORKER", ""),
            ca_file=_path(values.get("STEPFENCE_CA_FILE")),
            state_dir=_path(values.get("STEPFENCE_STATE_DIR")),
        )

    @property
    def base_path(self) -> str:
        """The path of every worker call."""
        return f"/v1/namespaces/{self.namespace}/agentruns/{self.run}"

    def bearer(self) -> str:
        """Read the projected token; raise `NotInARun` naming the file when it cannot be read."""
        try:
            return self.token_file.read_text().strip()
        except OSError as error:
            raise NotInARun(f"STEPFENCE_TOKEN_FILE: {self.token_file}: {error.strerror}") from error


def _path(value: str | None) -> Path | None:
    return Path(value) if value else None


@dataclass(frozen=True, slots=True)
class Options:
    """How the SDK behaves; all times in seconds.

    `concurrency`: steps in flight at once. `claim_patience`: how long a claim waits for an older pod to end. `patience`: how long a call
    that promises nothing yet (plan, begin past its deadline) is repeated while the gateway is away; reports of what happened are repeated
    until the process is killed. `drain_budget`: how long a drain waits for steps in flight (None: as long as they may take).
    `max_reruns`: how often one call begins a rerunnable step again after a doubt before it leaves it to the next worker.
    `on_payload_change`: what follows when an earlier worker recorded a step with another payload: "warn" performs or returns what is
    recorded, "error" raises `PayloadChanged`.
    `exit_on_stop`: leaving the block by a stop ends the process with the stop's exit code.
    `handle_sigterm`: SIGTERM drains (main thread only).
    """

    concurrency: int = 16
    claim_patience: float = 600.0
    patience: float = 300.0
    drain_budget: float | None = None
    max_reruns: int = 5
    backoff_base: float = 0.1
    backoff_cap: float = 10.0
    watch_interval: float = 0.5
    on_payload_change: OnPayloadChange = "warn"
    exit_on_stop: bool = True
    handle_sigterm: bool = True

    def __post_init__(self) -> None:
        check_on_payload_change(self.on_payload_change)


def check_on_payload_change(value: OnPayloadChange | None) -> None:
    """Raise `ValueError` for a word that is not known: a slip of the pen must not pass for "warn"."""
    if value not in (None, "warn", "error"):
        raise ValueError(f'on_payload_change: "warn" or "error", not {value!r}')
