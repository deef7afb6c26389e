"""Where payloads and results go: inline while small, into a write-once record while they fit, else only their digest."""

from __future__ import annotations

from stepfence.core.canonical import Json, canonical, digest, parse
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Body, Run
from stepfence.core.summary import questions_of
from stepfence.core.words import At, Settings
from stepfence.ports import RecordKind, RecordStore

__all__ = ["Bodies"]


class Bodies:
    """Stores bodies before the ledger write that refers to them, and reads them back."""

    def __init__(self, records: RecordStore, settings: Settings) -> None:
        self._records, self._settings = records, settings

    def measure(self, value: Json, *, field: str) -> Body:
        """Return the body of a value with its whole text. Raises `Refused(BAD_REQUEST)` naming `field`."""
        text = canonical(value, field=field)
        return Body(digest(text), len(text.encode()), text)

    async def payload(self, run: Run, body: Body) -> Body:
        """Store a payload. Raises `Refused(TOO_LARGE)` before anything is intended, `Unknown`."""
        if body.size > self._settings.record_bytes:
            raise Refused(Code.TOO_LARGE, f"payload: {body.size} bytes, at most {self._settings.record_bytes}", field="payload")
        return await self._store(run, RecordKind.PAYLOAD, body)

    async def result(self, run: Run, body: Body) -> Body:
        """Store a result. One that is too large keeps digest and size: `Done` is never lost for it."""
        if body.size > self._settings.record_bytes:
            return Body(body.digest, body.size)
        try:
            return await self._store(run, RecordKind.RESULT, body)
        except Refused as refused:
            if refused.code is Code.OVER_BUDGET:
                raise
            # A quota or a missing right says no: the body is lost, but no truth is turned into a doubt for it.
            return Body(body.digest, body.size)

    async def answers(self, run: Run, at: At) -> dict[str, Body]:
        """Store the result of each decision that answers an open question, before the ledger refers to it; return them by its key."""
        open_keys = {question.key for question in questions_of(run, at)}
        stored: dict[str, Body] = {}
        for key, decision in run.spec.decisions.items():
            if decision.result is not None and key in open_keys:
                body = self.measure(parse(decision.result), field=f"spec.decisions[{key}].result")
                stored[key] = await self.result(run, body)
        return stored

    async def _store(self, run: Run, kind: str, body: Body) -> Body:
        if body.size <= self._settings.inline_bytes or body.text is None:
            return body
        return Body(body.digest, body.size, record=await self._records.put(run, kind, body.text, body.digest))

    async def read(self, run: Run, body: Body | None) -> Json:
        """Return the value of a body, None when it is not stored. Raises `Unknown`."""
        if body is None or not body.stored:
            return None
        return parse(body.text if body.text is not None else await self._records.get(run, body.record or ""))
