"""The worker's calls as edits of a run: what the use cases do, without store, schema and bodies."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from stepfence.core import fencing, ledger, lifecycle, reports
from stepfence.core.errors import Code, Refused
from stepfence.core.fencing import HolderFact, Release
from stepfence.core.model import Body, Run
from stepfence.core.reports import Report
from stepfence.core.words import At, Outcome, Verdict
from stepfence.testing.builders import body

Edit = Callable[[Run, At], tuple[Run, Any]]
PAYLOAD = body({"amount": 1})


def claim(pod: str, uid: str, request_id: str, fact: Callable[[Run], HolderFact], job: str | None) -> Edit:
    def edit(run: Run, at: At) -> tuple[Run, int]:
        if job is not None and (run.worker is None or run.worker.job != job):
            raise Refused(Code.FORBIDDEN, "this pod is not the run's current worker")
        run, _ = fencing.claim(run, fencing.Claim(pod, uid, request_id, at.settings.lease), fact(run), at)
        return run, run.token

    return edit


def begin(uid: str, token: int, step: str, request_id: str) -> Edit:
    call = ledger.Begin(step, token, uid, request_id, PAYLOAD)
    return lambda run, at: ledger.begin(run, call, at)


def complete(uid: str, token: int, step: str, attempt: int, result: Body) -> Edit:
    return lambda run, at: reports.complete(run, Report(step, attempt, token, uid), result, at)


def fail(uid: str, token: int, step: str, attempt: int) -> Edit:
    said = Report(step, attempt, token, uid)
    return lambda run, at: reports.fail(run, said, "Declined", "", final=False, retry_after=None, at=at)


def lose(uid: str, token: int, step: str, attempt: int) -> Edit:
    return lambda run, at: reports.lose(run, Report(step, attempt, token, uid), "TimedOut", "", at)


def probe_leave(uid: str, token: int, step: str, attempt: int) -> Edit:
    return lambda run, at: (run, reports.probe_leave(run, Report(step, attempt, token, uid), at))


def probe(
    uid: str, token: int, step: str, attempt: int, verdict: Verdict | None, result: Body | None, asked_at: datetime, give_up: bool
) -> Edit:
    said = Report(step, attempt, token, uid)
    return lambda run, at: reports.probe(run, said, verdict, result, asked_at=asked_at, give_up=give_up, at=at)


def drain(uid: str, token: int) -> Edit:
    def edit(run: Run, at: At) -> tuple[Run, None]:
        fencing.require_token(run, token, uid)
        return fencing.drain(run), None

    return edit


def release(uid: str, token: int) -> Edit:
    def edit(run: Run, at: At) -> tuple[Run, None]:
        if token == run.token and run.holder is None:
            return run, None
        fencing.require_token(run, token, uid)
        return fencing.release(run, Release.HALTED, at), None

    return edit


def finish(uid: str, token: int) -> Edit:
    def edit(run: Run, at: At) -> tuple[Run, Outcome | None]:
        fencing.require_token(run, token, uid)
        if run.outcome is Outcome.SUCCEEDED:
            return run, run.outcome
        if run.terminal:
            raise Refused(Code.TERMINAL, "over")
        run = lifecycle.finish(run, body({"ok": True}), at)
        return run, run.outcome

    return edit


def fail_run(uid: str, token: int) -> Edit:
    def edit(run: Run, at: At) -> tuple[Run, None]:
        fencing.require_token(run, token, uid)
        return lifecycle.fail_run(run, "NoGo", "", at), None

    return edit


def halt(uid: str, token: int) -> Edit:
    def edit(run: Run, at: At) -> tuple[Run, None]:
        fencing.require_token(run, token, uid)
        return lifecycle.halt_run(run, "LooksWrong", "", at), None

    return edit
