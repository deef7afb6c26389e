"""Files in STEPFENCE_STATE_DIR by which the processes of one pod know of each other: the claim, the order to drain, the release.

The directory is an emptyDir of the pod: it lives and dies with the pod, as the claim does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from stepfence.sdk import wire
from stepfence.sdk.errors import NotInARun

__all__ = ["ClaimFile", "StateDir"]


class ClaimFile(BaseModel):
    """What a claim left for other processes of the pod. `kind`: one process that settles its own steps, or a script of exec calls."""

    model_config = ConfigDict(extra="ignore")

    kind: Literal["process", "exec"]
    token: int
    token_proof: str | None = None
    run_uid: str = ""
    worker: str = ""
    # For exec calls: the whole answer but the ledger, so that they need no claim of their own.
    claim: wire.Claim | None = None


class StateDir:
    """The directory; every method is a short file operation."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise NotInARun(f"STEPFENCE_STATE_DIR: {path} is no directory")
        self._path = path

    def read_claim(self) -> ClaimFile | None:
        """Return the claim, or None when there is none (or half of one)."""
        try:
            return ClaimFile.model_validate_json((self._path / "claim.json").read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def write_claim(self, claim: ClaimFile) -> None:
        """Put the claim there in one step; it is a new one, so nothing is released yet."""
        self.released.unlink(missing_ok=True)
        fresh = self._path / f"claim.{os.getpid()}.new"
        fresh.write_text(claim.model_dump_json())
        fresh.replace(self._path / "claim.json")

    @property
    def drain(self) -> Path:
        """The order to drain."""
        return self._path / "drain"

    @property
    def released(self) -> Path:
        """The marker that the run was let go."""
        return self._path / "released"

    def draining(self) -> bool:
        """Whether the order to drain was given."""
        return self.drain.exists()

    def order_drain(self) -> None:
        """Give the order to drain."""
        self.drain.touch()

    def mark_released(self) -> None:
        """Say that the run was let go."""
        self.released.touch()

    @contextlib.contextmanager
    def claiming(self) -> Iterator[bool]:
        """Try to be the one process that claims now; gives whether it is."""
        with self._locked("claim.lock", fcntl.LOCK_EX) as mine:
            yield mine

    @contextlib.contextmanager
    def in_flight(self) -> Iterator[bool]:
        """Say that this process may have a step in flight; gives False while another one releases the run."""
        with self._locked("steps.lock", fcntl.LOCK_SH) as mine:
            yield mine

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Try to find no other process with a step in flight; gives whether that is so."""
        with self._locked("steps.lock", fcntl.LOCK_EX) as mine:
            yield mine

    @contextlib.contextmanager
    def _locked(self, name: str, kind: int) -> Iterator[bool]:
        # The kernel drops a lock when its process dies, however it dies.
        handle = os.open(self._path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(handle)
