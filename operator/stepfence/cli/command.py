"""A command as a step: what it is given, what its end means, and how its output becomes the result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from stepfence.cli.guard import guarded, running, send_signal
from stepfence.cli.output import complain
from stepfence.cli.reading import read_json
from stepfence.core.canonical import canonical
from stepfence.core.errors import Refused
from stepfence.sdk.errors import NotApplied
from stepfence.sdk.step import Step

__all__ = ["Command", "CommandFailed", "as_result", "printed", "require_fit"]

# Linux takes at most 128 KiB in one variable.
_LARGEST_VARIABLE = 127 * 1024
_LARGEST_OUTPUT = 768 * 1024
_SECONDS_TO_END = 1.0
_LOOK_SECONDS = 0.2
_LOOK_AGAIN = 0.02
_HELD_SECONDS = 2.0
_BY_VARIABLE, _BY_FILE = "STEPFENCE_PAYLOAD", "STEPFENCE_PAYLOAD_FILE"


class CommandFailed(Exception):
    """The command ended in a way that does not say whether it did something."""


class Command:
    """`from_payload`: the recorded payload is the command line, so that a repeated or approved step runs what was recorded.

    `reads_nothing`: it gets an empty standard input in place of this process's own. `files`: a folder in which it finds its payload as a
    file, in place of the variable: never one or the other by size, for a command that knows the variable alone would send nothing.
    """

    def __init__(
        self,
        argv: Sequence[str],
        from_payload: bool,
        not_applied: frozenset[int],
        *,
        reads_nothing: bool = False,
        files: Path | None = None,
    ) -> None:
        self._argv = list(argv)
        self._from_payload = from_payload
        self._not_applied = not_applied
        self._stdin = DEVNULL if reads_nothing else None
        self._files = files

    async def perform(self, payload: JsonValue, step: Step) -> JsonValue:
        """Run it. Raises `NotApplied` when it was not started or says by its exit code that it did nothing, else `CommandFailed`."""
        with self._handed(payload) as handed:
            argv, environ = self._prepare(payload, step, handed)
            async with step.sending():
                output, code, left = await self._run(argv, environ, step)
        ended = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
        if code == 0:
            if len(output) > _LARGEST_OUTPUT:
                _tell(step, f"its output is longer than {_LARGEST_OUTPUT // 1024} KiB, the rest is cut")
            return as_result(output[:_LARGEST_OUTPUT])
        if code in self._not_applied and not left:
            _tell(step, f"{ended}: it did not happen")
            raise NotApplied(ended, reason=f"Exit{code}")
        ended += ", and what it left running was ended" if left else ""
        _tell(step, f"{ended}: it is not known whether it happened")
        raise CommandFailed(ended)

    @contextlib.contextmanager
    def _handed(self, payload: JsonValue) -> Iterator[dict[str, str]]:
        """Yield the variable by which the command gets its payload; its file, if it is one, is removed after."""
        text = canonical(payload)
        if self._files is None:
            if not _fits(text):
                raise NotApplied(_TOO_LARGE, final=True, reason="PayloadTooLarge")
            yield {_BY_VARIABLE: text}
            return
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(_file_of(text, self._files))
            except OSError as error:
                raise NotApplied(f"the file of the payload: {error.strerror}", reason="PayloadNotWritten") from error
            yield {_BY_FILE: str(file)}

    def _prepare(self, payload: JsonValue, step: Step, handed: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        argv = self._argv
        if self._from_payload:
            if not isinstance(payload, list) or not payload or not all(isinstance(part, str) and "\0" not in part for part in payload):
                raise NotApplied("the recorded payload is no command line: give --payload as before", reason="PayloadMismatch")
            argv = [str(part) for part in payload]
        inherited = {name: value for name, value in os.environ.items() if name not in (_BY_VARIABLE, _BY_FILE)}
        return argv, {**inherited, "STEPFENCE_KEY": step.key, "STEPFENCE_ATTEMPT": str(step.attempt), **handed}

    async def _run(self, argv: Sequence[str], environ: Mapping[str, str], step: Step) -> tuple[bytes, int, bool]:
        """Run a command to its end; return its output, its exit code, and whether it failed and had left something running.

        That is ended: it could send after the step is told. Raises `NotApplied` when the command was surely not started.
        """
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            # Given on by whoever started us: the system would throw exit codes away, and each command would seem to end with 255.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        async with contextlib.AsyncExitStack() as stack:
            try:
                enrol = await stack.enter_async_context(guarded())
            except OSError as error:
                raise _not_started(argv, error) from error
            try:
                # A session of its own: a signal for the script's process group must not break the step.
                process = await asyncio.create_subprocess_exec(
                    *argv, stdin=self._stdin, stdout=PIPE, env=environ, start_new_session=True, preexec_fn=enrol
                )
            except OSError as error:
                # The system names the file that it could not execute. What comes without it (no descriptor left) may have come after that.
                if error.filename != argv[0]:
                    raise CommandFailed(f"{argv[0]}: {error}") from error
                raise _not_started(argv, error) from error
            output, code = await _output(process, step), process.returncode or 0
            left = code != 0 and running(process.pid)
            if left:
                await _end(process)
            return output, code, left


_TOO_LARGE = f"the payload does not fit into {_BY_VARIABLE} (127 KiB): add --payload-in-file, and let the command read the file {_BY_FILE}"


@contextlib.contextmanager
def _file_of(text: str, parent: Path) -> Iterator[Path]:
    """Yield a file that its user alone can read. What cannot be removed goes with the parent: no reason to doubt what a command did."""
    with tempfile.TemporaryDirectory(prefix="payload.", dir=parent, ignore_cleanup_errors=True) as folder:
        file = Path(folder, "payload.json").absolute()
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as opened:
            opened.write(text.encode())
        yield file


def require_fit(payload: JsonValue) -> None:
    """Raise `ValueError` for a payload that no variable can carry, `Refused` for what is no JSON."""
    if not _fits(canonical(payload, field="payload")):
        raise ValueError(_TOO_LARGE)


def _fits(text: str) -> bool:
    return len(text.encode()) <= _LARGEST_VARIABLE


def _tell(step: Step, text: str) -> None:
    """To the worker's log, where one looks first for what went wrong."""
    complain(f"stepfence: step {step.id!r}, attempt {step.attempt}: {text}")


def _not_started(argv: Sequence[str], error: OSError) -> NotApplied:
    return NotApplied(f"{argv[0]}: {error.strerror}", reason="CommandNotStarted")


async def _say_why_it_waits(process: Process, step: Step) -> None:
    """Once, when the command has exited and its output is still open a moment later."""
    while process.returncode is None:  # noqa: ASYNC110  (asyncio's own `wait` may itself wait for the output)
        await asyncio.sleep(_LOOK_SECONDS)
    await asyncio.sleep(_HELD_SECONDS)
    _tell(
        step,
        f"the command has exited (code {process.returncode}), but something it started still holds its output open: waiting for that, "
        f"at most {step.time_left:.0f} s more",
    )


async def _output(process: Process, step: Step) -> bytes:
    assert process.stdout is not None  # noqa: S101  (asked for above)
    kept = bytearray()
    waits = asyncio.create_task(_say_why_it_waits(process, step), name="why it waits")
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
    finally:
        waits.cancel()
    return bytes(kept)


async def _end(process: Process) -> None:
    """End the command and what it started: politely, then by force. That the command itself has ended is not enough."""
    for way in (signal.SIGTERM, signal.SIGKILL):
        send_signal(process.pid, way)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS_TO_END):
                while running(process.pid):  # noqa: ASYNC110  (nothing tells of the end of what is no child of ours)
                    await asyncio.sleep(_LOOK_AGAIN)
    await process.wait()


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
