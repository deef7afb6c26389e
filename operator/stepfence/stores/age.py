"""How old a record may be to be referred to anew."""

from __future__ import annotations

from datetime import datetime

from stepfence.core.words import Settings

__all__ = ["is_young"]

# Half the time after which a record may be swept: the other half is for the write that is on its way.
_YOUNG_SECONDS = Settings().orphan_grace / 2


def is_young(put_at: datetime, now: datetime) -> bool:
    """Whether a record that was put then may be referred to without being put again."""
    return (now - put_at).total_seconds() < _YOUNG_SECONDS
