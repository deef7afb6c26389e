"""The real clock and the real random numbers."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime

__all__ = ["SystemClock", "SystemIds"]


class SystemClock:
    """This machine's clocks, the wall clock in milliseconds as it is stored."""

    def now(self) -> datetime:
        """See `Clock.now`."""
        now = datetime.now(UTC)
        return now.replace(microsecond=now.microsecond // 1000 * 1000)

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()


class SystemIds:
    """Randomness of the operating system."""

    def nonce(self) -> str:
        """See `Ids.nonce`."""
        return secrets.token_hex(16)
