"""Running another program to its end, with a deadline, and with its words in the error."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from os import PathLike

from e2e.cluster.errors import ClusterError

_INSTALL_SECONDS = 600.0
_WAIT_FOR_LOCK = "--option=DPkg::Lock::Timeout=300"

Argument = str | PathLike[str]


def attempt(
    *argv: Argument,
    seconds: float = 60,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: PathLike[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program and return how it ended, whatever its exit code. `env` None inherits ours.

    Raises:
        ClusterError: the program is not installed, or still runs after `seconds`.
    """
    try:
        return subprocess.run(
            argv,
            input="" if stdin is None else stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=env,
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError as missing:
        raise ClusterError(f"{argv[0]} is not installed ({' '.join(map(str, argv[:3]))} …)") from missing
    except subprocess.TimeoutExpired as late:
        said = bytes(late.stderr or b"").decode(errors="replace")  # bytes even where text was asked for
        raise ClusterError(f"{describe(argv)}: still running after {seconds:g} s\n{said[-2000:]}") from late


def run(
    *argv: Argument,
    seconds: float = 60,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: PathLike[str] | None = None,
) -> str:
    """Run a program and return its standard output.

    Raises:
        ClusterError: as `attempt`, and when the exit code is not 0; the message ends with what the program said.
    """
    done = attempt(*argv, seconds=seconds, stdin=stdin, env=env, cwd=cwd)
    if done.returncode != 0:
        said = (done.stderr or done.stdout)[-4000:].rstrip()
        raise ClusterError(f"{describe(argv)}: exit code {done.returncode}\n{said}")
    return done.stdout


def say(what: str) -> None:
    """Tell the user what takes a while, or changes the machine. Standard output stays for results."""
    print(f"==> {what}", file=sys.stderr, flush=True)


def without_proxies() -> dict[str, str]:
    """Our environment for programs that talk within the cluster alone, which no proxy of this machine could reach."""
    return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}


def describe(argv: Sequence[Argument]) -> str:
    """The command as a person would read it, cut short."""
    line = " ".join(map(str, argv))
    return line if len(line) <= 200 else line[:199] + "…"


def provide(programs: Mapping[str, str]) -> None:
    """Install what the machine lacks, and say so: a map from each program to the Debian package that brings it.

    Raises:
        ClusterError: we may not or cannot; the message is the command that installs it all.
    """
    lacking = sorted({package for name, package in programs.items() if not find(name)})
    if not lacking:
        return
    install = ("apt-get", "install", "-y", "-q", "--no-install-recommends", _WAIT_FOR_LOCK, *lacking)
    if os.geteuid() != 0 or not find("apt-get"):
        raise ClusterError(f"this machine lacks programs; as root: {' '.join(install)}")
    say(f"installing {' '.join(lacking)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-q", seconds=_INSTALL_SECONDS, env=environment)
    run(*install, seconds=_INSTALL_SECONDS, env=environment)


def find(name: str, extra_path: str = "/usr/sbin:/sbin") -> str | None:
    """Where a program (or a file, by its absolute path) is; `extra_path` is searched after PATH."""
    return shutil.which(name) or shutil.which(name, path=extra_path)
