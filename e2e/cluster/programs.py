"""The long-running programs of a cluster: started in the background, found again by a later process, stopped for certain.

Each is recorded in a file with its command, its process id and the kernel's start time of that process, so that another
process (or the next run after a crash) can signal it, start it anew, and never hits a stranger that got the same id.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster.build import KUBE_PROGRAMS
from e2e.cluster.errors import ClusterError, ClusterTimeout, eventually
from e2e.cluster.shell import without_proxies

_STOP_SECONDS = 15.0
_LISTEN = "0A"  # TCP_LISTEN, as the kernel's tables write it
_EXECUTABLES = {*KUBE_PROGRAMS, "coredns", "containerd", "containerd-shim-runc-v2"}
_children: dict[int, subprocess.Popen[bytes]] = {}
"""Our own children, kept so that they are reaped when they end: a zombie would look alive."""


@dataclass(frozen=True)
class Process:
    """A process, named so that a later one with the same id is told apart. `started` is in clock ticks since boot."""

    pid: int
    started: int

    def alive(self) -> bool:
        """Whether it runs (or is frozen). A zombie does not."""
        if child := _children.get(self.pid):
            child.poll()
        state, started = _stat(self.pid)
        return started == self.started and state not in {"Z", "X", ""}

    def listens(self, port: int) -> bool:
        """Whether something in its network namespace, which is its node's, accepts TCP connections on a port."""
        try:
            tables = [Path(f"/proc/{self.pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
        except OSError:  # it has just ended
            return False
        rows = [line.split() for table in tables for line in table.splitlines()[1:]]
        return any(row[3] == _LISTEN and row[1].endswith(f":{port:04X}") for row in rows)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process is gone."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def end(self, *, grace_seconds: float = _STOP_SECONDS) -> None:
        """Stop it, politely at first, for certain in the end; frozen ones too. Returns when it is gone."""
        self.send(signal.SIGCONT)
        if grace_seconds and self.send(signal.SIGTERM):
            with contextlib.suppress(ClusterTimeout):  # the next signal cannot be refused
                self.wait(seconds=grace_seconds)
        self.send(signal.SIGKILL)
        self.wait(seconds=_STOP_SECONDS)

    def wait(self, *, seconds: float) -> None:
        """Wait until it is gone.

        Raises:
            ClusterTimeout: it still lives `seconds` seconds from now.
        """
        eventually(f"end of process {self.pid}", lambda: not self.alive(), seconds=seconds)


@dataclass(frozen=True)
class Program:
    """A program of a cluster: its name, its command, and how it enters the namespaces of its node."""

    name: str
    argv: tuple[str, ...]
    enter: tuple[str, ...] = ()


class Programs:
    """All programs of one cluster, recorded below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._records = folder / "programs"
        self._logs = folder / "logs"

    def launch(self, name: str, *argv: str | Path, enter: Sequence[str] = ()) -> None:
        """Start a program in the background and record it. `enter` is a command prefix, such as nsenter's."""
        self._spawn(Program(name, tuple(map(str, argv)), tuple(enter)))

    def relaunch(self, name: str) -> None:
        """Start a program again as it was started before; nothing happens when it runs."""
        program, process = self._read(name)
        if not process.alive():
            self._spawn(program)

    def names(self) -> list[str]:
        """The programs that were started, running or not."""
        return sorted(path.stem for path in self._records.glob("*.json"))

    def process(self, name: str) -> Process:
        """The process that was last started under this name.

        Raises:
            ClusterError: there is no such program; the message lists those that are.
        """
        return self._read(name)[1]

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a program that must be running.

        Raises:
            ClusterError: it is unknown, or not running.
        """
        if not self.process(name).send(number):
            raise ClusterError(f"{name} is not running\n{self.tail(name)}")

    def check(self, name: str) -> None:
        """Raise, with the end of its log, if a program has ended by itself."""
        if not self.process(name).alive():
            raise ClusterError(f"{name} ended by itself; its last words:\n{self.tail(name)}")

    def log(self, name: str) -> Path:
        """Where a program's output goes."""
        return self._logs / f"{name}.log"

    def tail(self, name: str, lines: int = 25) -> str:
        """The last lines of a program's output, for an error message."""
        try:
            said = self.log(name).read_text(errors="replace").splitlines()[-lines:]
        except FileNotFoundError:
            return f"({name} has written nothing)"
        return "\n".join(f"  {name}: {line[:400]}" for line in said)

    def _spawn(self, program: Program) -> None:
        self._records.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(exist_ok=True)
        with self.log(program.name).open("ab") as log:
            child = subprocess.Popen(
                [*program.enter, *program.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=without_proxies(),
                cwd="/",
                start_new_session=True,
            )
        _children[child.pid] = child
        record = {"program": asdict(program), "pid": child.pid, "started": _stat(child.pid)[1]}
        draft = self._records / f".{program.name}"
        draft.write_text(json.dumps(record))
        draft.replace(self._records / f"{program.name}.json")

    def _read(self, name: str) -> tuple[Program, Process]:
        try:
            record = json.loads((self._records / f"{name}.json").read_text())
        except FileNotFoundError:
            raise ClusterError(f"no program {name!r}; there are: {', '.join(self.names()) or 'none'}") from None
        fields = record["program"]
        program = Program(fields["name"], tuple(fields["argv"]), tuple(fields["enter"]))
        return program, Process(record["pid"], record["started"])


def end_all(processes: Sequence[Process]) -> None:
    """Kill processes together, without grace, and wait until all are gone."""
    for process in processes:
        process.send(signal.SIGKILL)
    deadline = time.monotonic() + _STOP_SECONDS
    for process in processes:
        left = max(deadline - time.monotonic(), 0.1)
        process.wait(seconds=left)


def find_processes(folder: Path) -> list[Process]:
    """The programs of a cluster that run, recorded or not (containerd starts shims), known by a path below its folder."""
    found = []
    marks = (f"{folder}/".encode(), f"={folder}/".encode())
    for path in Path("/proc").glob("[0-9]*"):
        try:
            executable, *words = (path / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        ours = Path(executable.decode(errors="replace")).name in _EXECUTABLES
        if ours and any(word.startswith(marks[0]) or marks[1] in word for word in words):
            found.append(identify(int(path.name)))
    return [process for process in found if process.alive()]


def identify(pid: int) -> Process:
    """The process that has this id now."""
    return Process(pid, _stat(pid)[1])


def _stat(pid: int) -> tuple[str, int]:
    """State letter and start time (clock ticks since boot) of a process; ("", 0) when there is none."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    fields = line.rpartition(")")[2].split()  # the program's name may hold spaces and brackets
    return fields[0], int(fields[19])
