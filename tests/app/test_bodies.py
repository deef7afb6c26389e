"""Where a result goes when its record cannot be written."""

import pytest

from stepfence.app.bodies import Bodies
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Run
from stepfence.core.words import Settings
from stepfence.stores import MemoryRecordStore
from stepfence.testing.builders import new_run, step


class Refusing(MemoryRecordStore):
    """A store of records that says no."""

    def __init__(self, code: Code) -> None:
        super().__init__()
        self.code = code

    async def put(self, run: Run, kind: str, text: str, digest: str) -> str:
        raise Refused(self.code, "exceeded quota", retry_after=5)


async def test_a_result_whose_record_is_refused_keeps_digest_and_size_so_that_done_is_not_lost() -> None:
    bodies = Bodies(Refusing(Code.STORE_UNAVAILABLE), Settings())
    whole = bodies.measure("x" * 5000, field="result")
    kept = await bodies.result(new_run(step()), whole)
    assert (kept.digest, kept.size, kept.stored) == (whole.digest, 5002, False)


async def test_a_result_waits_for_the_byte_budget() -> None:
    bodies = Bodies(Refusing(Code.OVER_BUDGET), Settings())
    with pytest.raises(Refused):
        await bodies.result(new_run(step()), bodies.measure("x" * 5000, field="result"))


async def test_a_payload_whose_record_is_refused_is_never_begun() -> None:
    bodies = Bodies(Refusing(Code.STORE_UNAVAILABLE), Settings())
    with pytest.raises(Refused):
        await bodies.payload(new_run(step()), bodies.measure("x" * 5000, field="payload"))
