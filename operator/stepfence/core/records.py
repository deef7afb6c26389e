"""Bodies of a run that stand in records of their own: which the ledger refers to, and how many it may."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stepfence.core.model import Body, Run
from stepfence.core.words import Settings

__all__ = ["held", "no_room"]


def held(run: Run, *, done: Collection[str] = ()) -> dict[str, Body]:
    """Return every body that the run refers to in a record, by the record's name. `done`: steps whose payload is about to be dropped."""
    bodies = [run.result]
    for step, entry in run.ledger.items():
        bodies += [entry.result] if step in done else [entry.payload, entry.result]
    return {body.record: body for body in bodies if body is not None and body.record is not None}


def no_room(bodies: Mapping[str, Body], settings: Settings) -> str | None:
    """Return why a run may not refer to so many records, naming the limit; None when it may."""
    if len(bodies) > settings.run_records:
        return f"the run would hold {len(bodies)} records, at most {settings.run_records}"
    size = sum(body.size for body in bodies.values())
    return None if size <= settings.run_record_bytes else f"the run's records would hold {size} bytes, at most {settings.run_record_bytes}"
