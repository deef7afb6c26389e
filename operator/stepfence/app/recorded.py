"""What is recorded of steps, read back for one answer: each body once, before anything depends on the answer."""

from __future__ import annotations

from dataclasses import replace

from stepfence.app.bodies import Bodies
from stepfence.app.views import StepView
from stepfence.core.canonical import Json, parse
from stepfence.core.ledger import BeginAnswer, Go
from stepfence.core.model import Body, Entry, Run

__all__ = ["NotRead", "Payloads", "Recorded", "told"]


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


class NotRead(Exception):
    """A decision needs the value of a recorded body that was not read yet. Nothing was written."""

    def __init__(self, run: Run, body: Body) -> None:
        super().__init__(body.digest)
        self.run = run
        self.body = body


class Payloads:
    """What one begin may hand out to be performed: the payload that it `brought`, or the recorded one, read before the intent is written.

    Were it read after that, a record that is out of reach would leave an attempt that nobody performs, and a doubt.
    """

    def __init__(self, bodies: Bodies, brought: Body) -> None:
        self.brought = brought
        self._bodies = bodies
        self._read: dict[Body, tuple[Body, Json]] = {}

    def lost(self, run: Run, answer: BeginAnswer) -> bool:
        """Whether the answer needs a recorded payload that is not there any more. Raises `NotRead`."""
        recorded = self._needed(answer)
        if recorded is None:
            return False
        if recorded not in self._read:
            raise NotRead(run, recorded)
        return not self._read[recorded][0].stored

    async def gather(self, unread: NotRead) -> None:
        """Read what a decision needs. Raises what `Bodies.recall` raises."""
        self._read[unread.body] = await self._bodies.recall(unread.run, unread.body)

    def value(self, answer: BeginAnswer) -> Json:
        """Return what is to be performed, or looked for by a probe; None when the answer asks for neither."""
        if answer.outcome not in _WITH_PAYLOAD:
            return None
        recorded = self._needed(answer)
        return parse(self.brought.text or "null") if recorded is None else self._read[recorded][1]

    def _needed(self, answer: BeginAnswer) -> Body | None:
        """The recorded payload, where it is another one than that which the begin brought."""
        recorded = answer.entry.payload
        other = answer.outcome in _WITH_PAYLOAD and recorded is not None and recorded.digest != self.brought.digest
        return recorded if other else None


_WITH_PAYLOAD = (Go.GO, Go.PROBE)


async def told(bodies: Bodies, run: Run, entry: Entry, brought: Body | None = None) -> StepView:
    """Return one entry with its result. `brought`: a body at hand that may be the same. Raises what `Bodies.recall` raises."""
    return StepView(entry) if entry.result is None else _view(entry, *await bodies.recall(run, entry.result, brought))


def _view(entry: Entry, body: Body, value: Json) -> StepView:
    return StepView(replace(entry, result=body), value)
