"""The end of a cluster: everything that it made is removed, whether it runs, died half way up, or was left behind."""

import contextlib
import shutil
from pathlib import Path

from e2e.cluster import cgroups, namespaces, network
from e2e.cluster.errors import ClusterError, eventually
from e2e.cluster.instance import Instance
from e2e.cluster.programs import Programs, end_all, find_processes
from e2e.cluster.shell import attempt


def remove(instance: Instance) -> None:
    """Remove every process, cgroup, mount, namespace, link and file of an instance. Repeatable.

    Raises:
        ClusterError: something cannot be removed; the folder stays then, so that the next try finds it.
    """
    _end_processes(instance)
    if instance.nodes:
        network.remove(instance)
        namespaces.remove_mount_points(instance)
    _unmount(instance.folder)
    _delete(instance.folder)


def traces(instance: Instance) -> list[str]:
    """What is left of an instance on this machine; nothing after `remove`. For tests and for error messages."""
    found = [f"process {process.pid}" for process in find_processes(instance.folder)]
    found += [f"cgroup {path}" for number in range(1, 10) for path in cgroups.groups(instance.cgroup(number))]
    found += [f"link {name}" for name in network.links(instance)]
    found += [f"mount {point}" for point in _mounts(instance.folder)]
    return found + ([f"folder {instance.folder}"] if instance.folder.exists() else [])


def _end_processes(instance: Instance) -> None:
    programs = Programs(instance.folder)
    # Those that would start pods again go first; then the pods; then the holders of the namespaces.
    keepers = [name for name in programs.names() if name.startswith(("kubelet-", "kube-proxy-", "containerd-"))]
    end_all([programs.process(name) for name in keepers])
    end_all(find_processes(instance.folder))
    for number in instance.numbers:
        cgroups.remove(instance.cgroup(number))
    end_all([programs.process(name) for name in programs.names()])


def _mounts(folder: Path) -> list[str]:
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((point for point in points if point.startswith(f"{folder}/")), reverse=True)


def _unmount(folder: Path) -> None:
    for point in _mounts(folder):
        attempt("umount", "--lazy", point)
    if left := _mounts(folder):
        raise ClusterError(f"cannot unmount {', '.join(left)}")


def _delete(folder: Path) -> None:
    def gone() -> bool:
        # A process that has just died may still hold a file or a mount for a moment.
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
        return not folder.exists()

    eventually(f"end of {folder}", gone, seconds=15)
