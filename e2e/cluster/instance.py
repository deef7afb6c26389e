"""One cluster's name, and everything that follows from it: folder, addresses, names of namespaces, links and cgroups.

Two clusters with different names share nothing, so they can run side by side. Addresses come from a *slot*, the smallest
number that no other cluster of this machine holds and whose networks the machine does not route already.
"""

import ipaddress
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster.build import cache_root, locked
from e2e.cluster.errors import ClusterError
from e2e.cluster.shell import run

_NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")
_SLOTS = range(32)
_SOCKET_PATH_LIMIT = 107


@dataclass(frozen=True)
class Instance:
    """What one cluster is called and where it lives. `nodes` 0: a control plane alone, on the machine's own loopback."""

    name: str
    nodes: int
    slot: int

    @property
    def folder(self) -> Path:
        """Everything that the cluster writes."""
        return clusters_root() / self.name

    @property
    def pki(self) -> Path:
        """Keys, certificates and kubeconfigs."""
        return self.folder / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.pki / "admin.kubeconfig"

    @property
    def node_network(self) -> ipaddress.IPv4Network:
        """The network between the nodes and the machine."""
        return ipaddress.IPv4Network(f"10.90.{self.slot}.0/24")

    @property
    def pod_network(self) -> ipaddress.IPv4Network:
        """All pods."""
        return ipaddress.IPv4Network(f"10.{100 + self.slot}.0.0/16")

    @property
    def service_network(self) -> ipaddress.IPv4Network:
        """All Services."""
        return ipaddress.IPv4Network(f"10.{140 + self.slot}.0.0/16")

    @property
    def host_address(self) -> str:
        """The machine itself, as pods and nodes see it."""
        return str(self.node_network[254])

    @property
    def host_link(self) -> str:
        """The machine's network interface towards the nodes."""
        return f"sf-host{self.slot}"

    @property
    def numbers(self) -> range:
        """The nodes' numbers, from 1. The control plane lives on the first."""
        return range(1, self.nodes + 1)

    def node_name(self, number: int) -> str:
        """The name of the Node object, which the verbs take too."""
        return f"node{number}"

    def node_address(self, number: int) -> str:
        """A node's address; the first is the API server's too."""
        return str(self.node_network[number])

    def node_pods(self, number: int) -> ipaddress.IPv4Network:
        """The addresses of the pods of a node."""
        return list(self.pod_network.subnets(new_prefix=24))[number]

    def node_folder(self, number: int) -> Path:
        """Everything that a node writes."""
        return self.folder / self.node_name(number)

    def socket(self, number: int) -> Path:
        """Containerd's socket on a node."""
        return self.node_folder(number) / "containerd.sock"

    def cgroup(self, number: int) -> str:
        """The control group of a node's pods, from the root of each hierarchy."""
        return f"/stepfence-{self.name}-{number}"

    def number(self, node: str) -> int:
        """The number of a node by its name.

        Raises:
            ClusterError: there is no such node.
        """
        for number in self.numbers:
            if self.node_name(number) == node:
                return number
        names = ", ".join(map(self.node_name, self.numbers)) or "none"
        raise ClusterError(f"cluster {self.name!r} has no node {node!r}; its nodes: {names}")


def clusters_root() -> Path:
    """The folder that holds one folder for each cluster."""
    return cache_root() / "clusters"


def clusters_lock() -> Path:
    """The file whose lock is held while what all clusters share is looked at and changed."""
    return clusters_root() / ".lock"


def claim(name: str, nodes: int) -> Instance:
    """Take a slot for a new cluster and write that down. The name's folder must not exist.

    Raises:
        ClusterError: the name will not do, or no slot is free.
    """
    check_name(name)
    if not 0 <= nodes <= 9:
        raise ClusterError(f"nodes: {nodes} is not between 0 and 9")
    with locked(clusters_lock()):
        taken = {other.slot for other in recorded()}
        routes = _routed() if nodes else []
        for slot in _SLOTS:
            instance = Instance(name, nodes, slot)
            if slot not in taken and not _overlaps(instance, routes):
                instance.folder.mkdir(mode=0o700)
                _record(instance).write_text(json.dumps(asdict(instance)))
                return instance
    raise ClusterError(f"no free slot for cluster {name!r}: {len(taken)} clusters exist, or 10.90.0.0/16 is in use here")


def load(name: str) -> Instance | None:
    """The instance as its folder records it, whether it runs or is a leftover; None if there is none."""
    check_name(name)
    try:
        return Instance(**json.loads(_record(Instance(name, 0, 0)).read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def recorded() -> list[Instance]:
    """All instances of this machine, running or left over."""
    names = sorted(path.parent.name for path in clusters_root().glob("*/instance.json"))
    return [instance for name in names if (instance := load(name))]


def check_name(name: str) -> None:
    """Refuse a name that cannot be part of the names of a folder, a namespace and a cgroup."""
    if not _NAME.fullmatch(name):
        raise ClusterError(f"cluster name {name!r}: must be lower case letters, digits and '-', at most 24, a letter first")
    if len(str(Instance(name, 9, 0).socket(9))) > _SOCKET_PATH_LIMIT:
        raise ClusterError(f"{clusters_root()} is too long a path for a socket in it; set XDG_CACHE_HOME to a shorter one")


def _record(instance: Instance) -> Path:
    return instance.folder / "instance.json"


def _routed() -> list[ipaddress.IPv4Network]:
    routes = json.loads(run("ip", "-json", "-4", "route", "show", "table", "main") or "[]")
    return [ipaddress.IPv4Network(route["dst"]) for route in routes if route["dst"] != "default"]


def _overlaps(instance: Instance, routes: list[ipaddress.IPv4Network]) -> bool:
    ours = (instance.node_network, instance.pod_network, instance.service_network)
    return any(mine.overlaps(route) for mine in ours for route in routes)
