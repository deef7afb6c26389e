"""A command as a step: what it is given, what its end means, and how its output becomes the result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from stepfence.cli.guard import guarded
from stepfence.cli.output import complain
from stepfence.cli.reading import read_json
from stepfence.core.canonical import canonical
from stepfence.core.errors import Refused
from stepfence.sdk.errors import NotApplied
from stepfence.sdk.step import Step

__all__ = ["Command", "CommandFailed", "as_result", "printed"]

# Linux takes at most 128 KiB in one variable.
_LARGEST_VARIABLE = 127 * 1024
_LARGEST_OUTPUT = 768 * 1024
_SECONDS_TO_END = 1.0


class CommandFailed(Exception):
    """The command ended in a way that does not say whether it did something."""


class Command:
    """`from_payload`: the recorded payload is the command line, so that a repeated or approved step runs what was recorded."""

    def __init__(self, argv: Sequence[str], from_payload: bool, not_applied: frozenset[int]) -> None:
        self._argv = list(argv)
        self._from_payload = from_payload
        self._not_applied = not_applied

    async def perform(self, payload: JsonValue, step: Step) -> JsonValue:
        """Run it. Raises `NotApplied` when it was not started or says by its exit code that it did nothing, else `CommandFailed`."""
        argv, environ = self._prepare(payload, step)
        async with step.sending():
            output, code, group = await _run(argv, environ)
        ended = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
        if code == 0:
            if len(output) > _LARGEST_OUTPUT:
                _tell(step, f"its output is longer than {_LARGEST_OUTPUT // 1024} KiB, the rest is cut")
            return as_result(output[:_LARGEST_OUTPUT])
        if code in self._not_applied and not _lives(group):
            _tell(step, f"{ended}: it did not happen")
            raise NotApplied(ended, reason=f"Exit{code}")
        left = ", but it left something running" if code in self._not_applied else ""
        _tell(step, f"{ended}{left}: it is not known whether it happened")
        raise CommandFailed(f"{ended}{left}")

    def _prepare(self, payload: JsonValue, step: Step) -> tuple[list[str], dict[str, str]]:
        argv = self._argv
        if self._from_payload:
            if not isinstance(payload, list) or not payload or not all(isinstance(part, str) for part in payload):
                raise NotApplied("the recorded payload is no command line: give --payload as before", reason="PayloadMismatch")
            argv = [str(part) for part in payload]
        text = canonical(payload)
        if len(text.encode()) > _LARGEST_VARIABLE:
            raise NotApplied("the payload does not fit into STEPFENCE_PAYLOAD (127 KiB)", final=True, reason="PayloadTooLarge")
        ours = {"STEPFENCE_KEY": step.key, "STEPFENCE_ATTEMPT": str(step.attempt), "STEPFENCE_PAYLOAD": text}
        return argv, {**os.environ, **ours}


def _tell(step: Step, text: str) -> None:
    """To the worker's log, where one looks first for what went wrong."""
    complain(f"stepfence: step {step.id!r}, attempt {step.attempt}: {text}")


async def _run(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[bytes, int, int]:
    """Run a command to its end; return its output, exit code and process group. Raises `NotApplied` when it was surely not started."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            enrol = await stack.enter_async_context(guarded())
        except OSError as error:
            raise _not_started(argv, error) from error
        try:
            # A session of its own: a signal for the script's process group must not break the step.
            process = await asyncio.create_subprocess_exec(*argv, stdout=PIPE, env=environ, start_new_session=True, preexec_fn=enrol)
        except OSError as error:
            # The system names the file that it could not execute. What comes without it (no descriptor left, say) may have come after that.
            if error.filename != argv[0]:
                raise CommandFailed(f"{argv[0]}: {error}") from error
            raise _not_started(argv, error) from error
        return await _output(process), process.returncode or 0, process.pid


def _not_started(argv: Sequence[str], error: OSError) -> NotApplied:
    return NotApplied(f"{argv[0]}: {error.strerror}", reason="CommandNotStarted")


def _lives(group: int) -> bool:
    """Whether a process of that group runs, though the command that led it has ended. One that nobody has reaped yet does not."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    states = [_state_in(stat, group) for stat in Path("/proc").glob("[0-9]*/stat")]
    return not states or any(state not in ("", "Z", "X") for state in states)


def _state_in(stat: Path, group: int) -> str:
    """The state of a process, empty when it is of another group or gone (see proc(5))."""
    try:
        fields = stat.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[0] if len(fields) > 2 and fields[2] == str(group) else ""


async def _output(process: Process) -> bytes:
    assert process.stdout is not None  # noqa: S101  (asked for above)
    kept = bytearray()
    try:
        while chunk := await process.stdout.read(64 * 1024):
            # Read on when it is too much, or the command would stand still on a full pipe.
            kept += chunk[: max(0, _LARGEST_OUTPUT + 1 - len(kept))]
        await process.wait()
    except asyncio.CancelledError:
        # Had it ended by itself, something that it left behind held its output open. An end that it was told to come to says nothing of
        # what it did, whatever its code: programs that are well-behaved end with 0 on SIGTERM.
        ended = process.returncode
        await _end(process)
        if ended != 0:
            raise
    return bytes(kept)


async def _end(process: Process) -> int:
    """End the command and what it started: politely, then by force. Returns its exit code."""
    for way in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, way)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS_TO_END):
                return await process.wait()
    return await process.wait()


def as_result(output: bytes) -> JsonValue:
    """JSON if it parses (and can be kept exactly), else `{"stdout": text}`."""
    text = output.decode(errors="replace")
    try:
        value = read_json(text)
        canonical(value)
    except (ValueError, Refused):
        return {"stdout": text}
    # An answer of that very shape would be printed differently when replayed.
    return {"stdout": text} if isinstance(value, dict) and value.keys() == {"stdout"} else value


def printed(result: JsonValue) -> str:
    """What to print, live and replayed alike."""
    if isinstance(result, dict) and result.keys() == {"stdout"} and isinstance(result["stdout"], str):
        return result["stdout"]
    return json.dumps(result, ensure_ascii=False) + "\n"
