"""What shows that a server gave a token: only then may the worker that brings it say that the store went back in time (I11).

A worker's token is a small number, so a worker could name a higher one than it was given. The answer to a claim carries a proof of the
token, a MAC under a key that only servers have; the worker hands it back with every call.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable

__all__ = ["KEY_BYTES", "TokenProofs"]

KEY_BYTES = 32
_KEPT = 16
_FORM = "p1."


class TokenProofs:
    """Makes and checks proofs. The first key signs, all of them check; without a key no proof is made and none is good."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._keys: tuple[bytes, ...] = ()
        self.learn(keys)

    def learn(self, keys: Iterable[bytes]) -> None:
        """Take keys as they stand now. Those known before stay good for as long as this process lives: claims may be as old."""
        self._keys = tuple(dict.fromkeys((*keys, *self._keys)))[:_KEPT]

    @property
    def known(self) -> int:
        """How many keys there are."""
        return len(self._keys)

    def of(self, run_uid: str, token: int) -> str | None:
        """Return the proof that a token was given for that run; None while there is no key."""
        return _proof(self._keys[0], run_uid, token) if self._keys else None

    def shown(self, proof: str | None, run_uid: str, token: int) -> bool:
        """Whether a proof is one of that token of that run."""
        if proof is None:
            return False
        given = proof.encode(errors="replace")
        return any(hmac.compare_digest(given, _proof(key, run_uid, token).encode()) for key in self._keys)


def _proof(key: bytes, run_uid: str, token: int) -> str:
    mac = hmac.new(key, f"stepfence token {token} of {run_uid}".encode(), hashlib.sha256).digest()
    return _FORM + base64.urlsafe_b64encode(mac).decode().rstrip("=")
