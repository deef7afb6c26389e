"""What is recorded of steps, read back for one answer: each result once, before anything depends on the answer."""

from __future__ import annotations

from dataclasses import replace

from stepfence.app.bodies import Bodies
from stepfence.app.views import StepView
from stepfence.core.canonical import Json
from stepfence.core.model import Body, Entry, Run

__all__ = ["Recorded", "told"]


class Recorded:
    """The results of one run as they are told."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._read: dict[Body, tuple[Body, Json]] = {}

    async def gather(self, run: Run) -> None:
        """Read every result of the run that was not read before. Raises what `Bodies.recall` raises."""
        for entry in run.ledger.values():
            if entry.result is not None and entry.result not in self._read:
                self._read[entry.result] = await self._bodies.recall(run, entry.result)

    def view(self, entry: Entry) -> StepView:
        """Return the entry with its result, of a run whose results were gathered."""
        return StepView(entry) if entry.result is None else _view(entry, *self._read[entry.result])


async def told(bodies: Bodies, run: Run, entry: Entry, brought: Body | None = None) -> StepView:
    """Return one entry with its result. `brought`: a body at hand that may be the same. Raises what `Bodies.recall` raises."""
    return StepView(entry) if entry.result is None else _view(entry, *await bodies.recall(run, entry.result, brought))


def _view(entry: Entry, body: Body, value: Json) -> StepView:
    return StepView(replace(entry, result=body), value)
