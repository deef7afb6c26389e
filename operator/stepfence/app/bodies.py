"""Where payloads and results go: inline while small, into a write-once record while they fit, else only their digest.

A decision is made on bodies as they would be kept (`on`), which stores nothing. Only what the decided run then refers to is stored, before
the write that refers to it; docs/design/0006-records.md has the whole argument.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog

from stepfence.core import records as rules
from stepfence.core.canonical import Json, canonical, digest, parse
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Body, Run
from stepfence.core.nesting import DEEPEST, deeper_than
from stepfence.core.words import Settings
from stepfence.ports import RecordKind, RecordStore
from stepfence.schema import record_name

__all__ = ["Answers", "Bodies", "Brought", "Payload", "Result"]

_LOG = structlog.get_logger(__name__)


class Brought:
    """Bodies that one call brings along, stored at most once each."""

    kind = RecordKind.RESULT

    def __init__(self, records: RecordStore, settings: Settings) -> None:
        self._records, self._settings = records, settings
        self._whole: dict[str, Body] = {}
        self._refused: set[str] = set()
        self._put: set[str] = set()
        # Records that are known to stand since that version of the run was read.
        self._stands: set[tuple[str, int]] = set()

    def refusal(self, before: Run, after: Run) -> Refused | None:  # noqa: ARG002  (for those whose bodies may be refused)
        """Return why the run may not refer to what is new in it."""
        return None

    def missing(self, before: Run, after: Run) -> bool:
        """Whether the decided run refers to a body that must be stored first."""
        return any((name, before.version) not in self._stands for name in self._new(before, after))

    async def store(self, before: Run, after: Run) -> None:
        """Store what the decided run newly refers to. Decide again after it. Raises `Refused`, `Unknown`."""
        for name, body in self._new(before, after).items():
            # What was put for an older version may have been swept since: that is what made this version newer.
            if name in self._put and await self._records.keep(before, name):
                self._stands.add((name, before.version))
            elif await self._stored(before, body):
                self._put.add(name)
                self._stands.add((name, before.version))

    async def _stored(self, run: Run, body: Body) -> bool:
        await self._records.put(run, self.kind, self._whole[body.digest].text or "", body.digest)
        return True

    def _new(self, before: Run, after: Run) -> dict[str, Body]:
        old = rules.held(before)
        return {
            name: body
            for name, body in rules.held(after).items()
            if body.digest in self._whole and (name not in old or old[name].digest != body.digest)
        }

    def _as_record(self, run: Run, whole: Body) -> Body:
        self._whole[whole.digest] = whole
        return Body(whole.digest, whole.size, record=record_name(run.uid, whole.digest))

    def _inline(self, whole: Body) -> bool:
        return whole.text is None or whole.size <= self._settings.inline_bytes


class Payload(Brought):
    """The payload of a begin. One that does not fit is refused: nothing is intended yet."""

    kind = RecordKind.PAYLOAD

    def __init__(self, records: RecordStore, settings: Settings, whole: Body) -> None:
        super().__init__(records, settings)
        self.whole = whole

    def on(self, run: Run) -> Body:
        """Return the payload as that run would refer to it."""
        return self.whole if self._inline(self.whole) else self._as_record(run, self.whole)

    def refusal(self, before: Run, after: Run) -> Refused | None:
        """See `Brought.refusal`: NO_ROOM, naming the limit."""
        why = rules.no_room(rules.held(after), self._settings) if self._new(before, after) else None
        return None if why is None else Refused(Code.NO_ROOM, f"payload: {why}", field="payload")


class _Results(Brought):
    """Results. One that is too large, has no room or is refused by the store keeps digest and size: `Done` is never lost for it."""

    def _place(self, run: Run, whole: Body, held: Mapping[str, Body]) -> Body:
        if self._inline(whole):
            return whole
        kept = self._as_record(run, whole)
        lost = whole.size > self._settings.record_bytes or whole.digest in self._refused
        if not lost and kept.record not in held:
            lost = rules.no_room({**held, kept.record or "": kept}, self._settings) is not None
        return Body(whole.digest, whole.size) if lost else kept

    async def _stored(self, run: Run, body: Body) -> bool:
        try:
            return await super()._stored(run, body)
        except Refused as refused:
            if refused.code is Code.OVER_BUDGET:
                raise
            # A quota or a missing right says no: the body is lost, but no truth is turned into a doubt for it.
            self._refused.add(body.digest)
            return False


class Result(_Results):
    """The result of a step, or of the run."""

    def __init__(self, records: RecordStore, settings: Settings, whole: Body) -> None:
        super().__init__(records, settings)
        self.whole = whole

    def on(self, run: Run, *, done: Collection[str] = ()) -> Body:
        """Return the result as that run would refer to it. `done`: the step that is Done with it, whose payload gives way."""
        return self._place(run, self.whole, rules.held(run, done=done))


class Answers(_Results):
    """The results that people's decisions bring."""

    def on(self, run: Run) -> dict[str, Body]:
        """Return the result of each decision that names a question of that run, as it would refer to it, by the decision's key."""
        asked = {f"{step}.{entry.question}": step for step, entry in run.ledger.items() if entry.question is not None}
        brought = {key: run.spec.decisions[key].result for key in sorted(asked.keys() & run.spec.decisions.keys())}
        held = rules.held(run, done=[asked[key] for key, text in brought.items() if text is not None])
        placed: dict[str, Body] = {}
        for key, text in brought.items():
            if text is not None:
                placed[key] = body = self._place(run, Body(digest(text), len(text.encode()), text), held)
                held |= {body.record: body} if body.record is not None else {}
        return placed


class Bodies:
    """Takes bodies on, and reads them back."""

    def __init__(self, records: RecordStore, settings: Settings) -> None:
        self._records, self._settings = records, settings

    def measure(self, value: Json, *, field: str) -> Body:
        """Return the body of a value with its whole text. Raises `Refused(BAD_REQUEST)` naming `field`."""
        text = canonical(value, field=field)
        return Body(digest(text), len(text.encode()), text)

    def payload(self, body: Body) -> Payload:
        """Take a payload on. Raises `Refused(TOO_LARGE)`."""
        if body.size > self._settings.record_bytes:
            raise Refused(Code.TOO_LARGE, f"payload: {body.size} bytes, at most {self._settings.record_bytes}", field="payload")
        return Payload(self._records, self._settings, body)

    def result(self, body: Body) -> Result:
        """Take a result on."""
        return Result(self._records, self._settings, body)

    def answers(self) -> Answers:
        """Take on what people's decisions bring."""
        return Answers(self._records, self._settings)

    async def recall(self, run: Run, body: Body, brought: Body | None = None) -> tuple[Body, Json]:
        """Return a recorded body and its value; one that is lost or damaged as one that is not stored, like a result that was too large.

        Were it an error, nobody could ever claim a run again whose answer needs what is not there, and nobody would be told why. What a
        payload that is not there means is decided by who asks. `brought`: a body at hand that may be the same. Raises `Unknown`, and
        `Refused` where waiting helps.
        """
        if not body.stored:
            return body, None
        if brought is not None and brought.text is not None and brought.digest == body.digest:
            return body, parse(brought.text)
        try:
            text = body.text if body.text is not None else await self._records.get(run, body.record or "")
            value = _value(text, body.digest)
        except (ValueError, RecursionError) as error:
            why = str(error)
        except Refused as refused:
            if refused.retry_after is not None:
                raise
            why = refused.detail
        else:
            return body, value
        _LOG.warning("body cannot be read", namespace=run.namespace, run=run.name, digest=body.digest, why=why)
        return Body(body.digest, body.size), None


def _value(text: str, told: str) -> Json:
    if digest(text) != told:
        raise ValueError("it does not have its digest")
    value = parse(text)
    if deeper_than(value, DEEPEST):
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return value
