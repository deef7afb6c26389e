"""The namespaces of a node: network and mounts, held open by one waiting process, and gone when the node's processes are.

The mount namespace keeps nodes apart and the machine clean: the mounts of pods and containers are seen by the node alone and
vanish with it, and the few folders that these programs insist on are the node's own.
"""

from pathlib import Path

from e2e.cluster import instance
from e2e.cluster.build import locked
from e2e.cluster.errors import eventually
from e2e.cluster.instance import Instance
from e2e.cluster.programs import Programs

_FIXED_FOLDERS = ("/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers")
"""Folders that containerd, the CNI library and the kubelet write to whatever their settings say."""


def create(mine: Instance, number: int, programs: Programs) -> None:
    """Start the process that holds a node's namespaces and hides the machine's folders behind the node's."""
    folder = mine.node_folder(number)
    steps = ["mount --make-rshared /"]  # volumes that a kubelet mounts must be seen by containerd, and in no other node
    for place in map(Path, _FIXED_FOLDERS):
        ours = folder / "fixed" / str(place).strip("/").replace("/", "-")
        ours.mkdir(parents=True)
        _ensure_mount_point(place)
        steps.append(f"mount --bind '{ours}' '{place}'")
    ready = folder / "namespaces-ready"
    steps += ["echo 1 > /proc/sys/net/ipv4/ip_forward", f"touch '{ready}'", "exec sleep infinity"]
    name = holder(number)
    programs.launch(name, "unshare", "--net", "--mount", "sh", "-c", " && ".join(steps))

    def made() -> bool:
        programs.check(name)
        return ready.exists()

    eventually(f"namespaces of node {number}", made, seconds=20, evidence=lambda: programs.tail(name))


def enter(number: int, programs: Programs) -> tuple[str, ...]:
    """The beginning of a command that runs in the namespaces of a node."""
    return ("nsenter", f"--target={programs.process(holder(number)).pid}", "--net", "--mount", "--")


def enter_network(number: int, programs: Programs) -> tuple[str, ...]:
    """The same for the network alone: for programs that must see what is mounted on the machine."""
    return ("nsenter", f"--target={programs.process(holder(number)).pid}", "--net", "--")


def holder(number: int) -> str:
    """The name of the waiting process, as a program of the cluster."""
    return f"node-{number}"


def remove_mount_points(mine: Instance) -> None:
    """Remove the folders that the machine lacked, unless another cluster's nodes are mounted on them too."""
    with locked(instance.clusters_lock()):
        record = _record()
        if not record.exists() or any(other.nodes and other.name != mine.name for other in instance.recorded()):
            return
        for path in map(Path, record.read_text().splitlines()):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        record.unlink()


def _ensure_mount_point(place: Path) -> None:
    with locked(instance.clusters_lock()):
        missing = [path for path in (place, *place.parents) if not path.exists()]
        if missing:
            with _record().open("a") as record:
                record.writelines(f"{path}\n" for path in missing)
            place.mkdir(parents=True)


def _record() -> Path:
    return instance.clusters_root() / ".mount-points"
