"""`drive`: an agent under test, killed before and after each of its effects."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio.to_thread
import structlog

from stepfence.core.canonical import Json
from stepfence.sdk.planning import PlanStep
from stepfence.sdk.results import encode
from stepfence.testing.effects import Provider
from stepfence.testing.findings import Finding, Kind, findings_of
from stepfence.testing.history import History
from stepfence.testing.plans import checked_plan
from stepfence.testing.playing import Agent, Play, count_of_arguments
from stepfence.testing.points import CrashPoint, every_point, parse_points
from stepfence.testing.report import Report, Row, verdict

__all__ = ["drive", "drive_sync"]

_PACKAGE = Path(__file__).parents[1]
Crashes = str | Iterable[str | CrashPoint]


async def drive(
    agent: Agent,
    *,
    crashes: Crashes = "every",
    input: Json = None,  # noqa: A002  (the run's own word)
    plan: Sequence[PlanStep | Mapping[str, Any]] | None = None,
    provider: Provider | type | None = None,
    workers: int = 10,
) -> Report:
    """Run an agent without a crash, then once for each crash point, and raise `NotRestartSafe` unless each run comes out the same.

    `agent(run, http)` or `agent(run, http, effects)`: a coroutine function, or a plain one, which gets the synchronous faces. `crashes`:
    `"every"`, `"none"`, or points as the report names them (`["after 1"]`). `input` and `plan` as in `spec.input` and `spec.plan.steps`.
    `provider`: a function from httpx.Request to httpx.Response, or a class of which each run calls a new instance. `workers`: how many
    one run may take. Time is virtual: what waits for time takes none. Raises `ValueError` and `TypeError` for wrong arguments.
    """
    __tracebackhide__ = True
    play, points = _prepared(agent, crashes, input, plan, provider, workers)
    report = await anyio.to_thread.run_sync(functools.partial(_played, play, points))
    wrong = verdict(report)
    if wrong is not None:
        raise wrong from _cause(report)
    return report


def drive_sync(
    agent: Agent,
    *,
    crashes: Crashes = "every",
    input: Json = None,  # noqa: A002
    plan: Sequence[PlanStep | Mapping[str, Any]] | None = None,
    provider: Provider | type | None = None,
    workers: int = 10,
) -> Report:
    """Do what `drive` does, in a thread without a running loop."""
    __tracebackhide__ = True
    play, points = _prepared(agent, crashes, input, plan, provider, workers)
    report = _played(play, points)
    wrong = verdict(report)
    if wrong is not None:
        raise wrong from _cause(report)
    return report


def _prepared(
    agent: Agent,
    crashes: Crashes,
    given: Json,
    plan: Sequence[PlanStep | Mapping[str, Any]] | None,
    provider: Provider | type | None,
    workers: int,
) -> tuple[Play, list[CrashPoint] | None]:
    __tracebackhide__ = True
    points = parse_points(crashes)
    count_of_arguments(agent)
    steps = None if plan is None else checked_plan(plan)
    encode(given, "input")
    if workers < 1:
        raise ValueError(f"workers: at least one is needed, not {workers}")
    return Play(agent, given, steps, provider, workers), points


def _played(play: Play, points: list[CrashPoint] | None) -> Report:
    with _without_our_logs():
        return _all_runs(play, points)


def _all_runs(play: Play, points: list[CrashPoint] | None) -> Report:
    baseline = play.run()
    first = Row(baseline, tuple(findings_of(baseline, baseline)) or _unseen(baseline, points))
    if first.findings:
        return Report((first,))
    play.learn(baseline)
    if points is None:
        points = every_point(len(baseline.effects))
    histories = [play.run(point) for point in points]
    return Report((first, *(Row(history, tuple(findings_of(history, baseline))) for history in histories)))


def _unseen(baseline: History, points: list[CrashPoint] | None) -> tuple[Finding, ...]:
    """An agent without effects would be green whatever it does."""
    if baseline.effects or points == []:
        return ()
    hint = "Let the agent send through its `http` argument, or give its own client `effects.transport`, or wrap the function: effects.wrap."
    return (Finding(Kind.UNSEEN, "no effect was seen, so there is nothing to crash at", hint),)


def _cause(report: Report) -> BaseException | None:
    """What the agent or a step of it raised without a crash: the fault is there, not in its restart."""
    if not report.rows[0].findings or report.baseline.error is None:
        return None
    _, error = report.baseline.error
    if type(error).__module__.startswith(f"{_PACKAGE.name}."):
        error.__cause__, error.__suppress_context__ = None, True  # how it came about in here is of no use to who wrote the agent
    return error.with_traceback(_of_the_agent(error.__traceback__))


def _of_the_agent(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without what is ours: it begins in the agent, and ends there when the agent called us."""
    frames = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(f"{_PACKAGE}{os.sep}"):
            frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for frame in reversed(frames):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


@contextlib.contextmanager
def _without_our_logs() -> Iterator[None]:
    """Keep what the SDK logs of dozens of crashes out of the test's output. The agent's own lines stay."""

    def drop(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if str(event.get("event", "")).startswith(("stepfence.", "gateway.")):
            raise structlog.DropEvent
        return event

    processors = structlog.get_config()["processors"]
    if not isinstance(processors, list):
        yield
        return
    processors.insert(0, drop)
    try:
        yield
    finally:
        processors.remove(drop)
