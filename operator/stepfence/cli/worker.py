"""The commands that a worker's script calls. They share one claim through STEPFENCE_STATE_DIR; each has request ids of its own (R3)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
from pydantic import JsonValue

from stepfence.cli.command import Command, printed
from stepfence.cli.output import BROKEN_PIPE, complain, leave_output, log_warnings, put
from stepfence.cli.reading import read_json
from stepfence.cli.script import drain_pod, in_script
from stepfence.core.errors import Refused, StepfenceError
from stepfence.core.words import Action
from stepfence.sdk.errors import StepDenied, Stop
from stepfence.sdk.run import Run, StepOptions
from stepfence.sdk.settings import Options, Settings

__all__ = ["run_command"]

Work = Callable[[Run], Awaitable[None]]
DENIED = 3
WRONG = 2
# Of the command of a step. What would wait there for the script's steps to settle would wait for itself.
_IN_A_STEP = "STEPFENCE_ATTEMPT"
_INSIDE = frozenset({"input", "drain"})


async def run_command(
    given: argparse.Namespace,
    environ: Mapping[str, str],
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    options: Options | None = None,
) -> int:
    """Run one worker command; return its exit code. Messages go to standard error, results alone to standard output."""
    log_warnings()
    if _IN_A_STEP in environ and given.command not in _INSIDE:
        complain(f"stepfence: {given.command}: not inside the command of a step: steps stand side by side in the script")
        return WRONG
    try:
        settings = Settings.from_environ(environ)
        if given.command == "drain":
            return await drain_pod(settings, options or Options(), given.timeout, transport)
        await in_script(settings, options or Options(), _work(given), transport)
    except Stop as stop:
        complain(f"stepfence: {type(stop).__name__}: {stop.detail}")
        if stop.patch:
            complain(f"  {stop.patch}")
        return stop.exit_code
    except StepDenied as denied:
        complain(f"stepfence: {denied}")
        return DENIED
    except BrokenPipeError:
        leave_output()
        return BROKEN_PIPE
    except _NotPrinted as failed:
        complain(f"stepfence: {failed}")
        return 1
    except (StepfenceError, TypeError, ValueError) as error:
        complain(f"stepfence: {error}")
        return 1 if getattr(error, "attempt", None) is not None else WRONG
    return 0


class _NotPrinted(Exception):
    """Standard output takes nothing more; what was done is recorded."""


def _print(text: str) -> None:
    try:
        put(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        leave_output()
        raise _NotPrinted(f"standard output: {error.strerror}; what is recorded stays") from error


def _work(given: argparse.Namespace) -> Work:
    makers: dict[str, Callable[[argparse.Namespace], Work]] = {
        "exec": _exec,
        "finish": _finish,
        "fail": lambda given: lambda run: run.fail(given.reason, given.message),
        "halt": lambda given: lambda run: run.halt(given.reason, given.message),
        "plan": _plan,
        "input": _input,
    }
    return makers[given.command](given)


def _exec(given: argparse.Namespace) -> Work:
    fixed = None if given.payload is None else _json("--payload", given.payload)
    command = Command(given.argv, fixed is None, given.not_applied_exit)

    async def work(run: Run) -> None:
        payload = list(given.argv) if given.payload is None else fixed
        options = StepOptions(limit=given.timeout)
        result = await run.step(given.step, Action(given.action), payload, command.perform, options=options)
        _print(printed(result))

    return work


def _finish(given: argparse.Namespace) -> Work:
    result = _json("--result", given.result)
    return lambda run: run.finish(result)


def _plan(given: argparse.Namespace) -> Work:
    steps = _json("the plan", sys.stdin.read() if given.steps == "-" else given.steps)
    planned = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    if not isinstance(steps, list) or len(planned) != len(steps):
        raise ValueError('the plan must be a JSON list of steps: [{"id": …, "action": …}, …]')

    async def work(run: Run) -> None:
        await run.plan(planned)

    return work


def _input(given: argparse.Namespace) -> Work:
    async def work(run: Run) -> None:
        value: Any = run.input
        for key in filter(None, given.path.split(".")):
            if not isinstance(value, dict) or key not in value:
                raise ValueError(f"spec.input has no {given.path!r}")
            value = value[key]
        _print((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) + "\n")

    return work


def _json(what: str, text: str) -> JsonValue:
    try:
        return read_json(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{what} is no JSON: {error}") from error
    except Refused as refused:
        raise ValueError(f"{what}: {refused.detail}") from refused
