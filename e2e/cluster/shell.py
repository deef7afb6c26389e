"""Running another program to its end, with a deadline, and with its words in the error."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from os import PathLike

from e2e.cluster.errors import ClusterError

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
        said = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else late.stderr or ""
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


def describe(argv: Sequence[Argument]) -> str:
    """The command as a person would read it, cut short."""
    line = " ".join(map(str, argv))
    return line if len(line) <= 200 else line[:199] + "…"


def require(programs: Mapping[str, str]) -> None:
    """Check that programs are installed: a map from each program to the Debian package that brings it.

    Raises:
        ClusterError: some are not; the message is the command that installs them all.
    """
    path = None if shutil.which("ip") else "/usr/sbin:/sbin"
    lacking = sorted({package for name, package in programs.items() if not find(name, path)})
    if lacking:
        raise ClusterError(f"this machine lacks: apt-get install -y --no-install-recommends {' '.join(lacking)}")


def find(name: str, extra_path: str | None = None) -> str | None:
    """Where a program is, `extra_path` searched after PATH."""
    return shutil.which(name) or (shutil.which(name, path=extra_path) if extra_path else None)
