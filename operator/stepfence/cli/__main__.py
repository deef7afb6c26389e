"""`stepfence`: commands for workers in any language, and the servers.

Exit codes of worker commands: 0 done; 1 the step failed for good (or the gateway is away); 2 wrong use, or refused; 3 denied by a person;
75 drained; 76 halted; 77 the run was failed. A script with `set -e` ends as the run wants it to.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import platform
import sys
from collections.abc import Sequence

from stepfence.cli.output import complain, put, speak_utf8

__all__ = ["main"]

_SERVERS = {"controller": "stepfence.controller.__main__", "gateway": "stepfence.gateway.__main__", "local": "stepfence.local.__main__"}
_HELP = {"controller": "run the controller", "gateway": "run the gateway", "local": "AgentRuns on this machine, without a cluster"}

_EXEC_USAGE = "stepfence exec --step ID --action TYPE [options] -- command [argument ...]"
_JSON = "JSON|-|@FILE"
_HANDED = "- reads standard input, @FILE a file"
_EXEC_ABOUT = """Does one step of the plan by a command, which gets STEPFENCE_KEY, STEPFENCE_ATTEMPT and STEPFENCE_PAYLOAD.
Exit code 0: its standard output is recorded as the result and printed. A step that is done already: the recorded output is printed, nothing
is run. A code of --not-applied-exit: it is tried again as the plan says. Any other: a doubt, and unless the step may be repeated a person
is asked."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code."""
    if argv is None:
        speak_utf8()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in _SERVERS:
        return _serve(arguments[0], arguments[1:])
    given = _parse(["version"] if arguments == ["--version"] else arguments)
    if given.command == "version":
        from importlib.metadata import version

        put(version("stepfence") + "\n")
        return 0
    from stepfence.cli import worker

    return asyncio.run(worker.run_command(given, os.environ))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line. All after the first `--` of `exec` is its command, so that no option is taken for one of the other's."""
    parser, words = _parser(), list(arguments)
    if words[:1] != ["exec"]:
        return parser.parse_args(words)
    cut = words.index("--") if "--" in words else len(words)
    given, rest = parser.parse_known_args(words[:cut])
    given.argv = words[cut + 1 :]
    if rest or not given.argv:
        parser.error(f"exec: the command and its arguments stand after --, as in: {_EXEC_USAGE}")
    return given


def _serve(name: str, rest: list[str]) -> int:
    if name == "local" and platform.system() != "Linux":
        # Its promise that a worker's end is seen rests on pidfd, /proc and child subreapers.
        complain("stepfence local: needs Linux: in a virtual machine or a container elsewhere")
        return 2
    # Each needs an extra, which worker images do not install.
    try:
        module = importlib.import_module(_SERVERS[name])
    except ModuleNotFoundError as missing:
        complain(f"stepfence {name}: {missing}: install stepfence[{'local' if name == 'local' else 'operator'}]")
        return 2
    sys.argv = [f"stepfence {name}", *rest]
    return int(module.main() or 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stepfence", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_exec(commands)
    finish = commands.add_parser("finish", help="record that the run succeeded")
    finish.add_argument("--result", metavar=_JSON, default="null", help=f"the run's result; {_HANDED}")
    for name, text in (("fail", "end the run as Failed"), ("halt", "ask a person whether the run may go on")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--reason", required=True, help="a CamelCase word")
        command.add_argument("--message", default="", help="a sentence for people")
    plan = commands.add_parser("plan", help="submit the plan, before the first step, when spec has none")
    plan.add_argument("steps", metavar=_JSON, help=f"a list of steps as in spec.plan.steps; {_HANDED}")
    read = commands.add_parser("input", help="print spec.input")
    read.add_argument("path", nargs="?", default="", help="keys, with dots between: prints that value, a string without quotes")
    drain = commands.add_parser("drain", help="preStop: begin nothing more, wait until the run is released")
    drain.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS")
    for server in _SERVERS:
        commands.add_parser(server, help=_HELP[server], add_help=False)
    commands.add_parser("version", help="print the version")
    return parser


def _add_exec(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "exec",
        help="do one step by a command, or print its recorded result",
        usage=_EXEC_USAGE,
        description=_EXEC_ABOUT,
    )
    command.add_argument("--step", required=True, metavar="ID", help="its id in the plan")
    command.add_argument("--action", required=True, choices=["Read", "Upsert", "Create", "Payment", "Delete"], help="as in the plan")
    command.add_argument(
        "--payload", metavar=_JSON, help=f"what is recorded as the intent; {_HANDED}; default: the command and its arguments"
    )
    command.add_argument(
        "--payload-in-file",
        action="store_true",
        help="the command reads it from the file that STEPFENCE_PAYLOAD_FILE names: needed from 127 KiB on",
    )
    command.add_argument(
        "--not-applied-exit",
        metavar="CODES",
        type=_codes,
        default=frozenset(),
        help="exit codes, with commas, by which the command says that it surely did nothing; any other but 0 is a doubt",
    )
    command.add_argument("--timeout", type=float, metavar="SECONDS", help="shorter than the step's own time-out")


def _codes(text: str) -> frozenset[int]:
    try:
        codes = frozenset(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of exit codes such as 2,65") from None
    if not all(1 <= code <= 255 for code in codes):
        raise argparse.ArgumentTypeError("exit codes are 1 to 255; 0 means that it happened")
    return codes


if __name__ == "__main__":
    sys.exit(main())
