"""What happens to runs, told to people as it happens: a line each, or a JSON object each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from stepfence.cli.text import as_json, plain
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Run
from stepfence.core.notices import Notice, asking, notices
from stepfence.core.summary import phase_of, questions_of
from stepfence.core.words import At
from stepfence.local.state import State
from stepfence.ports import RunKey
from stepfence.schema.times import format_time

__all__ = ["Story"]

_ANSWER = ". Answer with: "
# Only these end with a command of ours; in another a worker may have written such words itself.
_ASKING = frozenset({"NeedsReconciliation", "ApprovalNeeded", "Held", "ReconcileNeeded", "ApproveNeeded", "HoldNeeded"})


@dataclass(frozen=True, slots=True)
class _Told:
    run: Run
    at: At


class Story:
    """Tells what became of some runs since it last looked, whoever did it. `write` gets one line without its end.

    `apart`: the command that answers stands on a line of its own.
    """

    def __init__(self, state: State, write: Callable[[str], None], *, as_json: bool, apart: bool = False) -> None:
        self._state, self._write, self._as_json, self._apart = state, write, as_json, apart
        self._told: dict[RunKey, _Told] = {}
        self._gone: dict[RunKey, Run] = {}

    def gone(self, key: RunKey) -> Run | None:
        """Return the run as it was last seen, if it was deleted since."""
        return self._gone.get(key)

    def remark(self, text: str) -> None:
        """Tell people, and no program, what is about no run."""
        if not self._as_json:
            self._write(text)

    async def tell(self, key: RunKey) -> Run | None:
        """Tell what is new of a run and return it; None when it is gone. The first time, where it stands."""
        try:
            run = (await self._state.runs.load(key)).run
        except Refused as refused:
            if refused.code is not Code.NOT_FOUND:
                raise
            self._say_gone(key)
            return None
        at = self._state.applier.at()
        last = self._told.get(key)
        if last is None or last.run.uid != run.uid:
            self._begin(key, run, at)
        else:
            for notice in notices(last.run, last.at, run, at):
                self._say(key, at.now, self._with_log(key, run, notice))
        self._told[key] = _Told(run, at)
        return run

    def _with_log(self, key: RunKey, run: Run, notice: Notice) -> Notice:
        """Why a worker brought nothing forward stands in what it wrote, so people are told where that is."""
        if self._as_json or notice.reason != "WorkerEnded" or run.worker is None or not run.worker.failures:
            return notice
        command = self._command(key, "logs")
        return Notice(notice.type, notice.reason, f"{notice.message}; what it wrote: {command} -w {run.worker.number}")

    def _again(self, key: RunKey, run: Run) -> str:
        """A run that is over does nothing more, so people who start it once more are told what would."""
        if self._as_json or not run.terminal:
            return ""
        if run.spec.run_id is not None:
            return "; it is over, and its runID is spent: to do all of it again, give another name and runID"
        return f"; it is over: to do all of it again, delete it first: {self._command(key, 'delete')}"

    def _command(self, key: RunKey, name: str) -> str:
        return f"{self._state.settings.command} -n {key.namespace} {name} {key.name}"

    def _say_gone(self, key: RunKey) -> None:
        last = self._told.pop(key, None)
        if last is not None:
            self._gone[key] = last.run
            worker = last.run.worker
            told = "; its worker is told to go" if worker is not None and worker.ended_at is None else ""
            self._say(key, self._state.applier.at().now, Notice("Normal", "Deleted", f"the run was deleted{told}"))

    def _begin(self, key: RunKey, run: Run, at: At) -> None:
        if run.started_at is not None:
            done = f", steps settled: {sum(entry.finished_at is not None for entry in run.ledger.values())}" if run.ledger else ""
            by = ", by spec.suspend" if run.spec.suspend and not run.terminal else ""
            self._say(key, at.now, Notice("Normal", phase_of(run, at).value, f"as stored{done}{by}{self._again(key, run)}"))
        for question in questions_of(run, at):
            self._say(key, at.now, Notice("Warning", f"{question.kind}Needed", asking(question)))

    def _say(self, key: RunKey, now: datetime, notice: Notice) -> None:
        if self._as_json:
            told = {"type": notice.type, "reason": notice.reason, "message": notice.message}
            self._write(as_json({"time": format_time(now), "namespace": key.namespace, "name": key.name, **told}))
        else:
            clock = now.astimezone().strftime("%H:%M:%S")
            line = plain(f"{clock} {key.namespace}/{key.name} {notice.reason}: {notice.message}")
            text, answer, command = line.rpartition(_ANSWER)
            if answer and self._apart and notice.reason in _ASKING:
                self._write(text + answer.rstrip())
                self._write(command)
            else:
                self._write(line)
