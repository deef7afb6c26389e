"""`stepfence local`: runs on this machine alone. Exit codes: 0 done; 1 a run did not succeed; 2 wrong use, or refused; 130 interrupted."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from stepfence.cli.output import BROKEN_PIPE, complain, leave_output, log_warnings, put, speak_utf8
from stepfence.core.errors import Conflict, Refused, Unknown
from stepfence.local import commands, deletion
from stepfence.local.beside import Beside
from stepfence.local.lines import Lines
from stepfence.local.logs import logs
from stepfence.local.run import INTERRUPTED, apply_manifests, read_manifests, run
from stepfence.local.state import State, command_for, default_path, opened
from stepfence.ports import RunKey

__all__ = ["main"]

_WRONG = 2
# What changes no run may be done with an older copy of the state file too; so may a worker be killed.
_ONLY_LOOK = frozenset({"list", "get", "logs", "kill"})
_RESOURCES = frozenset({"agentruns.stepfence.dev", "agentrun.stepfence.dev", "agentruns", "agentrun", "arun"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code."""
    if argv is None:
        speak_utf8()
    given = _parser().parse_args(argv)
    beside = Beside()
    log_warnings(beside)
    path = Path(given.state).absolute() if given.state else default_path(os.environ)
    try:
        return asyncio.run(_command(given, path, Path.cwd()))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        leave_output()  # who read it has gone, as `head` does
        return BROKEN_PIPE
    except (Refused, Conflict, Unknown, OSError) as error:
        beside.finish()
        complain(f"stepfence local: {_text(error)}")
        return _WRONG
    finally:
        beside.finish()


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return error.detail if isinstance(error, Refused) else str(error)


def _write(line: str) -> None:
    put(line + "\n")


async def _command(given: argparse.Namespace, path: Path, folder: Path) -> int:
    manifests = read_manifests(given.files, given.namespace or "default") if given.command == "run" else []
    accept = given.command == "run" and given.accept_older_state
    check = given.command not in _ONLY_LOOK and not accept
    async with opened(path, command=command_for(path, os.environ), check=check) as state:
        if accept:
            await commands.accept_older(state)
        if given.command == "run":
            keys = await apply_manifests(state, manifests, folder) or await _unfinished(state, given.namespace)
            if not keys:
                of = f" of namespace {given.namespace}" if given.namespace else ""
                complain(f"stepfence local: no run{of} in {path} is open; to start one: stepfence local run FILE.yaml")
            return await run(state, keys, _view(given, state), as_json=given.output == "json")
        if given.command == "list":
            await commands.listing(state, _write, given.namespace, output=given.output)
            return 0
        await _about_one(state, _key(given), given)
    return 0


def _view(given: argparse.Namespace, state: State) -> Lines:
    """The live view, for text on a terminal that can be drawn on; else plain lines."""
    if given.output == "text" and sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        from stepfence.local import screen  # it brings rich, for a terminal alone

        if (console := screen.terminal()) is not None:
            return screen.Screen(console, state.applier.at)
    return Lines(put, as_json=given.output == "json")


async def _unfinished(state: State, namespace: str | None) -> list[RunKey]:
    """Return the runs, of one namespace or of all, that are not over."""
    stored = [await state.runs.load(key) for key, _ in await state.runs.names() if namespace in (None, key.namespace)]
    return [found.key for found in stored if not found.run.terminal]


async def _about_one(state: State, key: RunKey, given: argparse.Namespace) -> None:
    if given.command == "get":
        await commands.get(state, _write, key, output=given.output)
    elif given.command == "patch":
        await commands.patch(state, _write, key, given.patch, kind=given.type)
    elif given.command == "logs":
        await logs(state, put, key, given.worker, follow=given.follow)
    elif given.command == "delete":
        await deletion.delete(state, _write, key, confirmed=given.confirm)
    else:
        command = {"kill": commands.kill, "drain": commands.drain, "cancel": commands.cancel}[given.command]
        await command(state, _write, key)


def _key(given: argparse.Namespace) -> RunKey:
    """`NAME`, `agentruns NAME` or `agentruns/NAME`, as kubectl takes them. Raises `Refused`."""
    words = [word for part in given.target for word in part.split("/")]
    if len(words) > 1 and words[0] in _RESOURCES:
        words = words[1:]
    if len(words) != 1:
        complain(f"stepfence local {given.command}: one run is needed, not {' '.join(given.target)!r}")
        raise SystemExit(_WRONG)
    return RunKey(given.namespace or "default", words[0])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stepfence local", description="AgentRuns on this machine, without a cluster.")
    parser.add_argument("--state", metavar="FILE", help="the state file; default: stepfence/local.db under XDG_STATE_HOME")
    parser.add_argument("-n", "--namespace", metavar="NAME", default=None, help="default: default; for list, and run without a file: all")
    again = argparse.ArgumentParser(add_help=False)
    again.add_argument("-n", "--namespace", metavar="NAME", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    names = parser.add_subparsers(dest="command", required=True, metavar="command")
    runs = names.add_parser("run", parents=[again], help="start runs, or go on with them, until they are over")
    runs.add_argument("files", nargs="*", type=Path, metavar="FILE.yaml", help="manifests of AgentRuns; none: all that are not over")
    runs.add_argument("-o", "--output", choices=["text", "json"], default="text", help="json: one object a line")
    runs.add_argument(
        "--accept-older-state", action="store_true", help="go on from an older copy of the state file: what is not over waits for a person"
    )
    listing = names.add_parser("list", parents=[again], help="list runs")
    listing.add_argument("-o", "--output", choices=["table", "yaml", "json"], default="table")
    texts = {
        "get": "print a run as kubectl does",
        "patch": "change or answer a run as kubectl does",
        "logs": "print what a worker wrote",
        "kill": "kill a run's worker as a crash would",
        "drain": "tell a run's worker to go; another goes on",
        "cancel": "end a run: what is open is settled first",
        "delete": "remove a run and its ledger, as kubectl does; its worker is told to go",
    }
    about = {name: names.add_parser(name, parents=[again], help=text) for name, text in texts.items()}
    for command in about.values():
        command.add_argument("target", nargs="+", metavar="RUN", help="its name; the words agentruns.stepfence.dev may stand before it")
    about["get"].add_argument("-o", "--output", choices=["table", "yaml", "json"], default="yaml")
    about["patch"].add_argument("-p", "--patch", required=True, metavar="JSON", help="the patch, in JSON or YAML")
    about["patch"].add_argument("--type", choices=["merge", "json"], default="merge", help="default: merge (RFC 7396); json: RFC 6902")
    about["patch"].add_argument("--field-manager", metavar="NAME", help="taken as kubectl takes it; not kept")
    about["logs"].add_argument("-w", "--worker", type=int, metavar="NUMBER", help="default: the last one")
    about["logs"].add_argument(
        "-f", "--follow", action="store_true", help="go on until it has ended; without a number, until the run is over"
    )
    about["delete"].add_argument("--confirm", action="store_true", help="also a run that has begun a step and is not over")
    return parser


if __name__ == "__main__":
    sys.exit(main())
