"""The cluster as tests see it: brought up and taken down as a context manager, with verbs for what may go wrong with it."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from e2e.cluster import build, cgroups, instance, namespaces, network, node, teardown
from e2e.cluster.api import Api
from e2e.cluster.archive import pause_image
from e2e.cluster.controlplane import ControlPlane, Settings, admin_api, wait_ready
from e2e.cluster.errors import ClusterError, eventually
from e2e.cluster.pki import Authority
from e2e.cluster.programs import Programs
from e2e.cluster.shell import attempt, describe, provide, run, without_proxies

_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "conntrack": "conntrack",
    "iptables": "iptables",
    "ip": "iproute2",
}
"""Programs of the machine that nodes need, with the Debian packages that bring them."""
_READY_SECONDS = 90.0

T = TypeVar("T")


class Cluster:
    """A cluster of our own. `nodes` 0 is a control plane alone (etcd and API server) on the machine's loopback.

    Coming up under a name first removes what an earlier cluster of that name left behind. A name that a living process
    holds is refused.

    Args:
        name: decides folder, addresses, namespaces; clusters of different names run side by side.
        nodes: 0 to 9. Without nodes no root is needed.
        controller_manager: whether one runs; by default where there are nodes.
        etcd_quota_bytes: etcd refuses writes beyond it (default: etcd's own, 2 GiB).
        etcd_compaction: how often the API server compacts etcd, a Go duration such as "10s" (default: five minutes).
        apiserver_args: further flags of the API server, which win over ours.
    """

    def __init__(
        self,
        name: str,
        *,
        nodes: int = 2,
        controller_manager: bool | None = None,
        etcd_quota_bytes: int | None = None,
        etcd_compaction: str | None = None,
        apiserver_args: Sequence[str] = (),
    ) -> None:
        instance.check_name(name)
        self.name = name
        self._nodes = nodes
        with_manager = nodes > 0 if controller_manager is None else controller_manager
        self._settings = Settings(with_manager, etcd_quota_bytes, etcd_compaction, tuple(apiserver_args))
        self._lock = contextlib.ExitStack()
        self._instance: instance.Instance | None = None
        self._api: Api | None = None
        self._programs = Programs(instance.clusters_root() / name)

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()

    @classmethod
    def attach(cls, name: str) -> Self:
        """The cluster of this name that another process brought up and left running.

        Raises:
            ClusterError: there is none.
        """
        found = instance.load(name)
        if not found or not found.kubeconfig.exists():
            raise ClusterError(f"there is no cluster {name!r}; bring it up first")
        cluster = cls(name, nodes=found.nodes)
        cluster._instance = found
        cluster._api = admin_api(found, cluster.server)
        return cluster

    # --- life -------------------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Bring it up. Returns when all nodes are Ready; takes down again what failed half way.

        Raises:
            ClusterError: a program of the machine is missing, a build fails, something does not start; with evidence.
        """
        if self._nodes:
            if os.geteuid() != 0:
                raise ClusterError("a cluster with nodes makes namespaces and mounts: it needs root")
            provide({**_PACKAGES, node.cni_bridge(): "containernetworking-plugins"})
        binaries = build.kube()
        self._hold_name()
        self._remove_leftovers()
        self._instance = instance.claim(self.name, self._nodes)
        try:
            self._start(binaries)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Stop and remove all of it. Repeatable, and right for leftovers too."""
        self._hold_name()
        self._remove_leftovers()
        self._instance = self._api = None
        self.release()

    def release(self) -> None:
        """Leave it running, for others to attach to and to take down."""
        self._lock.close()

    def _hold_name(self) -> None:
        path = instance.clusters_root() / f".{self.name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock.close()
        handle = self._lock.enter_context(path.open("a+"))
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as held:
            handle.seek(0)
            holder = handle.read() or "?"
            self._lock.close()
            raise ClusterError(f"cluster {self.name!r} is in use by process {holder}") from held
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()

    def _remove_leftovers(self) -> None:
        folder = instance.clusters_root() / self.name
        left = instance.load(self.name)
        if left is None and folder.exists():  # it died before it wrote down what it is
            left = instance.Instance(self.name, 0, 0)
        if left is not None:
            teardown.remove(left)

    def _start(self, binaries: Path) -> None:
        mine = self._mine
        authority = Authority(mine.pki)
        for number in mine.numbers:
            namespaces.create(mine, number, self._programs)
        if mine.nodes:
            network.create(mine, self._programs)
        plane = ControlPlane(mine, self._programs, authority, binaries, self._settings)
        self._api = plane.api
        plane.start()
        if not mine.nodes:
            return
        plane.start_dns(build.coredns())
        image = pause_image()
        for number in mine.numbers:
            node.Node(mine, number, self._programs).start(binaries, authority, plane.server, image)
        for name in self.nodes:
            self.wait_node(name, ready=True)
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._eventually("default service account", lambda: plane.api.exists(account), "kube-controller-manager")

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; it works anywhere on this machine."""
        return self._mine.kubeconfig

    @property
    def server(self) -> str:
        """The API server's URL."""
        return str(json.loads(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"])

    @property
    def host_address(self) -> str:
        """This machine's address as pods see it."""
        return self._mine.host_address

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes; the control plane lives on the first."""
        return tuple(map(self._mine.node_name, self._mine.numbers))

    def node_address(self, node_name: str) -> str:
        """A node's address: its NodePorts answer there."""
        return self._mine.node_address(self._mine.number(node_name))

    def programs(self) -> list[str]:
        """What can be frozen and killed: `etcd`, `kube-apiserver`, `kubelet-2` and so on."""
        return self._programs.names()

    def running(self, program: str) -> bool:
        """Whether a program has a living process (a frozen one lives)."""
        return self._programs.process(program).alive()

    def log(self, program: str) -> Path:
        """The file with a program's output."""
        return self._programs.log(program)

    # --- using it ---------------------------------------------------------------------------------------------------

    def kubectl(self, *words: str, stdin: str | None = None, seconds: float = 60) -> str:
        """kubectl as administrator; its standard output.

        Raises:
            ClusterError: a non-zero exit code, or no end within `seconds`.
        """
        done = self.try_kubectl(*words, stdin=stdin, seconds=seconds)
        if done.returncode != 0:
            raise ClusterError(f"kubectl {describe(words)}: exit code {done.returncode}\n{done.stderr or done.stdout}")
        return done.stdout

    def try_kubectl(self, *words: str, stdin: str | None = None, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """kubectl as administrator, whatever its exit code: for what is expected to be refused."""
        return attempt(*self.kubectl_command(), *words, stdin=stdin, seconds=seconds, env=without_proxies())

    def kubectl_command(self) -> list[str]:
        """The beginning of a kubectl command line that leaves no trace in the user's home."""
        cache = self._mine.folder / "kubectl-cache"
        return [str(build.kube() / "kubectl"), f"--kubeconfig={self.kubeconfig}", f"--cache-dir={cache}"]

    def load_image(self, archive: Path) -> None:
        """Import the images of a docker-archive into every node."""
        mine = self._mine
        with ThreadPoolExecutor(max_workers=max(mine.nodes, 1)) as pool:
            list(pool.map(lambda number: node.load_image(mine, number, archive), mine.numbers))

    def exec_in_node(self, node_name: str, *argv: str, seconds: float = 60) -> str:
        """Run a command of the machine in a node's namespaces; its standard output."""
        return run(*namespaces.enter(self._mine.number(node_name), self._programs), *argv, seconds=seconds)

    def wait_node(self, node_name: str, *, ready: bool, seconds: float = _READY_SECONDS) -> None:
        """Wait until a node is Ready, or is not (lost: about 13 seconds after it was cut off)."""
        number, api = self._mine.number(node_name), self._client
        wanted = {"True"} if ready else {"False", "Unknown"}
        path = f"/api/v1/nodes/{node_name}"
        what = f"{node_name} {'Ready' if ready else 'not Ready'}"
        self._eventually(what, lambda: api.condition(path, "Ready") in wanted, f"kubelet-{number}", seconds=seconds)

    # --- what may go wrong ------------------------------------------------------------------------------------------

    def freeze(self, program: str) -> None:
        """SIGSTOP: it holds its connections and answers nothing."""
        self._programs.signal(program, signal.SIGSTOP)

    def thaw(self, program: str) -> None:
        """SIGCONT."""
        self._programs.signal(program, signal.SIGCONT)

    @contextmanager
    def frozen(self, program: str) -> Iterator[None]:
        """Freeze a program for a while."""
        self.freeze(program)
        try:
            yield
        finally:
            self.thaw(program)

    def kill(self, program: str) -> None:
        """SIGKILL; returns when it is gone. The pods of a killed containerd or kubelet live on."""
        self._programs.process(program).end(grace_seconds=0)

    def stop(self, program: str) -> None:
        """SIGTERM, and SIGKILL if that is not enough; returns when it is gone."""
        self._programs.process(program).end()

    def start(self, program: str) -> None:
        """Start a program again that ended or was killed. Returns when it does its work, where that can be seen.

        The API server's work needs etcd, a kubelet's needs containerd: start those first.
        """
        self._programs.relaunch(program)
        if program in {"etcd", "kube-apiserver"}:
            wait_ready(self._client, self._programs)
        for number in self._mine.numbers:
            if program.endswith(f"-{number}"):
                node.wait_program(self._mine, number, program, self._programs)

    def cut(self, node_name: str) -> None:
        """Cut a node off: its pods live on, unreachable. Not the first node, which the control plane lives on."""
        network.cut(self._other_node(node_name), self._programs)

    def heal(self, node_name: str) -> None:
        """Undo `cut`."""
        network.heal(self._other_node(node_name), self._programs)

    @contextmanager
    def isolated(self, node_name: str) -> Iterator[None]:
        """Cut a node off for a while."""
        self.cut(node_name)
        try:
            yield
        finally:
            self.heal(node_name)

    def freeze_pod(self, name: str, namespace: str = "default") -> None:
        """SIGSTOP every process of a pod: it goes on later where it was, as after a long pause of its machine."""
        self._signal_pod(name, namespace, signal.SIGSTOP)

    def thaw_pod(self, name: str, namespace: str = "default") -> None:
        """SIGCONT."""
        self._signal_pod(name, namespace, signal.SIGCONT)

    def _signal_pod(self, name: str, namespace: str, number: signal.Signals) -> None:
        where = "jsonpath={.spec.nodeName} {.metadata.uid}"
        node_name, uid = self.kubectl("get", "pod", name, "--namespace", namespace, "-o", where).split()
        members = cgroups.processes(self._mine.cgroup(self._mine.number(node_name)), below=f"pod{uid}")
        if not [process for process in members if process.send(number)]:
            raise ClusterError(f"pod {namespace}/{name} has no process on {node_name}")

    def _other_node(self, node_name: str) -> int:
        number = self._mine.number(node_name)
        if number == 1:
            raise ClusterError(f"{node_name} holds the control plane and cannot be cut off")
        return number

    @property
    def _mine(self) -> instance.Instance:
        if self._instance is None:
            raise ClusterError(f"cluster {self.name!r} is not up")
        return self._instance

    @property
    def _client(self) -> Api:
        if self._api is None:
            raise ClusterError(f"cluster {self.name!r} is not up")
        return self._api

    def _eventually(self, what: str, probe: Callable[[], T | None], program: str, *, seconds: float = _READY_SECONDS) -> T:
        return eventually(what, probe, seconds=seconds, evidence=lambda: self._programs.tail(program))
