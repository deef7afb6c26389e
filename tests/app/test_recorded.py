"""Whatever can be stored is told as it was."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stepfence.app.bodies import Bodies
from stepfence.core.canonical import canonical
from stepfence.core.errors import Refused
from stepfence.core.words import Settings
from stepfence.ports import RecordKind
from stepfence.stores import MemoryRecordStore
from stepfence.testing.builders import new_run, step

NUMBERS = st.integers() | st.sampled_from([10**639, 10**640, -(2**63), 2**53]) | st.floats()
TEXTS = st.text(max_size=8) | st.text(st.sampled_from('\ue000\ud800\udfff:whole5"\\'), max_size=12)
# All of JSON and more: halves of pairs, no numbers, numbers without end.
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.integers(0, 70), st.sampled_from([1, 1024]))
async def test_what_is_stored_is_told_equal_and_what_could_not_be_is_refused_first(value: Any, levels: int, inline: int) -> None:
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    records = MemoryRecordStore()
    bodies, run = Bodies(records, Settings(inline_bytes=inline)), new_run(step())
    try:
        whole = bodies.measure(value, field="result")
    except Refused:
        return
    stored = bodies.result(whole).on(run)
    if stored.record is not None:
        await records.put(run, RecordKind.RESULT, whole.text or "", whole.digest)
    told, again = await bodies.recall(run, stored)
    assert told == stored
    assert stored.stored
    assert canonical(again) == canonical(value)
