"""The keys of token proofs, from the mounted Secret that holds the certificate too: read at the start, and again when they change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from stepfence.app import TokenProofs
from stepfence.app.proofs import KEY_BYTES

__all__ = ["KEYS_FILE", "follow_keys", "load_keys"]

log = structlog.get_logger(__name__)

KEYS_FILE = "token-proof-keys"
_WAIT_SECONDS = 1.0
_LOOK_SECONDS = 10.0


def load_keys(folder: Path, proofs: TokenProofs) -> None:
    """Take the keys of the file: one a line, in hex, the newest first. Raises `OSError`, or `ValueError` naming the line that is no key."""
    lines = (folder / KEYS_FILE).read_text("ascii").splitlines()
    proofs.learn([_key(line, number) for number, line in enumerate(lines, start=1) if line.strip()])


def _key(line: str, number: int) -> bytes:
    try:
        key = bytes.fromhex(line.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        # Never the line itself: it may be a key with a slip of the pen.
        raise ValueError(f"{KEYS_FILE}: line {number} is no key of {KEY_BYTES} bytes in hex")
    return key


async def follow_keys(folder: Path, proofs: TokenProofs, *, look_seconds: float = _LOOK_SECONDS) -> None:
    """Read the keys again and again, until cancelled. A gateway without one works: its claims have no proof."""
    said = ""
    while True:
        try:
            await asyncio.to_thread(load_keys, folder, proofs)
            said = ""
        except (OSError, ValueError) as error:
            if str(error) != said:
                said = str(error)
                log.warning("gateway.proof_keys.unusable", error=said)
        await asyncio.sleep(look_seconds if proofs.known else min(_WAIT_SECONDS, look_seconds))
