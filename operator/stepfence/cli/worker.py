"""The commands that a worker's script calls. They share one claim through STEPFENCE_STATE_DIR; each has request ids of its own (R3)."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from stepfence.cli.command import Command, printed, require_fit
from stepfence.cli.output import BROKEN_PIPE, complain, leave_output, log_warnings, put
from stepfence.cli.reading import handed_json, require_utf8
from stepfence.cli.script import drain_pod, in_script
from stepfence.core.errors import StepfenceError
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
        await in_script(settings, options or Options(), _work(given, settings), transport)
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


def _work(given: argparse.Namespace, settings: Settings) -> Work:
    for name in ("--step", "--reason", "path"):
        require_utf8(name, getattr(given, name.removeprefix("--"), ""))
    if given.command == "exec":
        return _exec(given, settings)
    makers: dict[str, Callable[[argparse.Namespace], Work]] = {
        "finish": _finish,
        "fail": lambda given: lambda run: run.fail(given.reason, _message(given)),
        "halt": lambda given: lambda run: run.halt(given.reason, _message(given)),
        "plan": _plan,
        "input": _input,
    }
    return makers[given.command](given)


def _message(given: argparse.Namespace) -> str:
    """Bytes that are no UTF-8 are replaced: for one of them the end of a run is not refused."""
    return os.fsencode(given.message).decode(errors="replace")


def _exec(given: argparse.Namespace, settings: Settings) -> Work:
    """Refuse what cannot be recorded, or not be given to the command, before anything is asked of the gateway."""
    if given.payload is None:
        for number, word in enumerate(given.argv):
            which = f"argument {number} of the command" if number else "the command"
            require_utf8(f"exec: {which}, a part of the payload unless --payload gives one,", word)
    payload = list(given.argv) if given.payload is None else handed_json("--payload", given.payload)
    if not given.payload_in_file:
        require_fit(payload)
    command = Command(
        given.argv,
        given.payload is None,
        given.not_applied_exit,
        reads_nothing=given.payload == "-",
        files=settings.state_dir if given.payload_in_file else None,
    )

    async def work(run: Run) -> None:
        options = StepOptions(limit=given.timeout)
        result = await run.step(given.step, Action(given.action), payload, command.perform, options=options)
        _print(printed(result))

    return work


def _finish(given: argparse.Namespace) -> Work:
    result = handed_json("--result", given.result)
    return lambda run: run.finish(result)


def _plan(given: argparse.Namespace) -> Work:
    steps = handed_json("the plan", given.steps)
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
