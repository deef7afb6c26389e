"""Control groups of the nodes' pods: version 1, the hybrid of both, and version 2, told apart by what is mounted."""

import errno
from pathlib import Path

from e2e.cluster.errors import ClusterError, eventually
from e2e.cluster.programs import Process, end_all, identify

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids", "hugetlb")


def create(name: str) -> None:
    """Make a cgroup in every hierarchy, with the controllers that a kubelet asks for."""
    if (_ROOT / "cgroup.controllers").exists():
        _delegate(_ROOT)
        (_ROOT / name.lstrip("/")).mkdir(exist_ok=True)
        return
    for hierarchy in _hierarchies():
        group = hierarchy / name.lstrip("/")
        group.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):  # born empty in version 1, and then no process may enter
            if (group / setting).exists():
                (group / setting).write_text((hierarchy / setting).read_text())


def processes(name: str, *, below: str = "") -> list[Process]:
    """Every process in a cgroup or below it; with `below`, only those in or below a descendant of that name."""
    pids: set[int] = set()
    for group in groups(name):
        for path in (group, *filter(Path.is_dir, group.rglob("*"))):
            if not below or below in path.relative_to(group).parts:
                pids.update(_members(path))
    return [process for pid in sorted(pids) if pid and (process := identify(pid)).alive()]


def remove(name: str) -> None:
    """Kill what lives in a cgroup and remove it from every hierarchy. Nothing happens when there is none."""

    def emptied() -> bool:
        end_all(processes(name))
        return all(_remove_tree(group) for group in groups(name))

    eventually(f"end of cgroup {name}", emptied, seconds=20)


def groups(name: str) -> list[Path]:
    """The folders of a cgroup, one in each hierarchy that has it."""
    return [group for root in _hierarchies() if (group := root / name.lstrip("/")).is_dir()]


def _hierarchies() -> list[Path]:
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [path for path in sorted(_ROOT.glob("*/")) if not path.is_symlink() and (path / "cgroup.procs").exists()]


def _members(group: Path) -> list[int]:
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    except OSError as gone:
        if gone.errno in {errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP}:
            return []
        raise


def _remove_tree(group: Path) -> bool:
    below = [path for path in group.rglob("*") if path.is_dir() and not path.is_symlink()]
    for path in (*sorted(below, reverse=True), group):
        try:
            path.rmdir()
        except FileNotFoundError:
            continue
        except OSError as busy:
            if busy.errno == errno.EBUSY:  # its last process is not reaped yet
                return False
            raise
    return True


def _delegate(root: Path) -> None:
    offered = (root / "cgroup.controllers").read_text().split()
    active = (root / "cgroup.subtree_control").read_text().split()
    wanted = [name for name in _CONTROLLERS if name in offered and name not in active]
    if not wanted:
        return
    try:
        (root / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
    except OSError as refused:
        if refused.errno != errno.EBUSY:
            raise ClusterError(f"cannot delegate {wanted} below {root}: {refused}") from refused
        _vacate(root)
        (root / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))


def _vacate(root: Path) -> None:
    """Move the processes of a namespaced root into a child: a cgroup that delegates may hold none itself."""
    shelter = root / "init"
    shelter.mkdir(exist_ok=True)
    for pid in (root / "cgroup.procs").read_text().split():
        try:
            (shelter / "cgroup.procs").write_text(pid)
        except ProcessLookupError:
            continue
