"""etcd, the API server and what belongs to them: on the first node, or alone on the machine's loopback."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import namespaces
from e2e.cluster.api import Api
from e2e.cluster.errors import ClusterError, eventually
from e2e.cluster.instance import Instance
from e2e.cluster.pki import Authority, Pair
from e2e.cluster.programs import Programs

_READY_SECONDS = 90.0
_COREDNS_ROLE = "stepfence-e2e:coredns"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(frozen=True)
class Settings:
    """How a control plane differs from the plain one."""

    controller_manager: bool = True
    etcd_quota_bytes: int | None = None
    etcd_compaction: str | None = None
    """How often the API server compacts etcd, as a Go duration ("10s"); its default is five minutes."""
    apiserver_args: tuple[str, ...] = ()


class ControlPlane:
    """Starts the programs of the control plane of one instance, in order, each when the one before it is ready."""

    def __init__(self, instance: Instance, programs: Programs, authority: Authority, binaries: Path, settings: Settings) -> None:
        self._instance = instance
        self._programs = programs
        self._authority = authority
        self._binaries = binaries
        self._settings = settings
        self._alone = instance.nodes == 0
        self._address = "127.0.0.1" if self._alone else instance.node_address(1)
        self._port, self._etcd, self._etcd_peer = _free_ports(3) if self._alone else (6443, 2379, 2380)
        self._enter = () if self._alone else namespaces.enter_network(1, programs)
        self.server = f"https://{self._address}:{self._port}"
        self._admin = authority.issue("admin", "admin", organization="system:masters")
        authority.kubeconfig("admin", self._admin, self.server)
        self.api = Api(self.server, authority.pair.certificate, self._admin)

    def start(self) -> None:
        """Bring it up. Returns when the API server is ready."""
        self._start_etcd()
        self._start_apiserver()
        self._wait_ready()
        if self._settings.controller_manager:
            self._start_controller_manager()
        if not self._alone:
            self._start_scheduler()

    def start_dns(self, coredns: Path) -> None:
        """Start cluster DNS on the first node, with a right of its own to read what it serves."""
        login = self._login("coredns", "system:coredns")
        rule = {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]}
        slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
        meta = {"name": _COREDNS_ROLE}
        kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta}
        self.api.create(f"{_RBAC}/clusterroles", {**kind, "kind": "ClusterRole", "rules": [rule, slices]})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": _COREDNS_ROLE}
        user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:coredns"}
        binding = {**kind, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [user]}
        self.api.create(f"{_RBAC}/clusterrolebindings", binding)
        zones = "cluster.local in-addr.arpa ip6.arpa"
        corefile = self._instance.folder / "Corefile"
        corefile.write_text(
            f".:53 {{\n  bind {self._address}\n  errors\n  kubernetes {zones} {{\n    kubeconfig {login}\n  }}\n  cache 5\n}}\n"
        )
        self._launch("coredns", coredns, "-conf", corefile)

    def _start_etcd(self) -> None:
        clients, peers = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._etcd_peer}"
        quota = self._settings.etcd_quota_bytes
        self._launch(
            "etcd",
            self._binaries / "etcd",
            f"--data-dir={self._instance.folder / 'etcd'}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--log-level=warn",
            *([f"--quota-backend-bytes={quota}"] if quota is not None else []),
        )

    def _start_apiserver(self) -> None:
        compaction = self._settings.etcd_compaction
        self._launch(
            "kube-apiserver",
            self._binaries / "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            *([f"--etcd-compaction-interval={compaction}"] if compaction is not None else []),
            f"--secure-port={self._port}",
            f"--bind-address={self._address}",
            f"--advertise-address={self._address}",
            # The address of a Service may not be a loopback one, so nothing can be published for a control plane alone.
            *(["--endpoint-reconciler-type=none"] if self._alone else []),
            f"--service-cluster-ip-range={self._instance.service_network}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            # With the controller manager's grace below: a lost node is NotReady after 13 s, its pods go 10 s later.
            "--default-not-ready-toleration-seconds=10",
            "--default-unreachable-toleration-seconds=10",
            *self._apiserver_identity(),
            *self._settings.apiserver_args,
        )

    def _apiserver_identity(self) -> Sequence[str]:
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
        first_service = str(self._instance.service_network[1])
        hosts = ("localhost", *names, "127.0.0.1", self._address, first_service)
        serving = self._authority.issue("apiserver", "kube-apiserver", hosts=hosts)
        kubelets = self._authority.issue("apiserver-kubelet", "apiserver-kubelet", organization="system:masters")
        proxy = self._authority.issue("front-proxy", "front-proxy-client")
        tokens = self._authority.key_pair("service-accounts")
        authority = self._authority.pair.certificate
        return (
            f"--client-ca-file={authority}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--cert-dir={self._instance.pki}",
            f"--kubelet-client-certificate={kubelets.certificate}",
            f"--kubelet-client-key={kubelets.key}",
            f"--kubelet-certificate-authority={authority}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--proxy-client-cert-file={proxy.certificate}",
            f"--proxy-client-key-file={proxy.key}",
            f"--requestheader-client-ca-file={authority}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--service-account-key-file={tokens.certificate}",
            f"--service-account-signing-key-file={tokens.key}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        )

    def _start_controller_manager(self) -> None:
        login = self._login("controller-manager", "system:kube-controller-manager")
        authority = self._authority.pair
        self._launch(
            "kube-controller-manager",
            self._binaries / "kube-controller-manager",
            *self._client_flags(login),
            f"--root-ca-file={authority.certificate}",
            f"--service-account-private-key-file={self._instance.pki / 'service-accounts.key'}",
            "--use-service-account-credentials=true",
            f"--cluster-signing-cert-file={authority.certificate}",
            f"--cluster-signing-key-file={authority.key}",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=12s",
        )

    def _start_scheduler(self) -> None:
        login = self._login("scheduler", "system:kube-scheduler")
        self._launch("kube-scheduler", self._binaries / "kube-scheduler", *self._client_flags(login))

    def _client_flags(self, login: Path) -> Sequence[str]:
        # A control plane alone shares the machine's loopback with others: no port of its own to serve metrics on.
        port = ["--secure-port=0"] if self._alone else ["--bind-address=127.0.0.1"]
        names = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        return (*(f"--{name}={login}" for name in names), *port, "--leader-elect=false")

    def _login(self, name: str, user: str) -> Path:
        return self._authority.kubeconfig(name, self._authority.issue(name, user), self.server)

    def _launch(self, name: str, *argv: str | Path) -> None:
        self._programs.launch(name, *argv, enter=self._enter)

    def _wait_ready(self) -> None:
        wait_ready(self.api, self._programs)


def wait_ready(api: Api, programs: Programs, *, seconds: float = _READY_SECONDS) -> None:
    """Wait until the API server is ready.

    Raises:
        ClusterError: it or etcd ended, or the time is up; the message has the end of their logs.
    """

    def ready() -> bool:
        programs.check("etcd")
        programs.check("kube-apiserver")
        return api.ready()

    def logs() -> str:
        return f"{programs.tail('etcd')}\n{programs.tail('kube-apiserver')}"

    eventually("ready API server", ready, seconds=seconds, evidence=logs)


def admin_api(instance: Instance, server: str) -> Api:
    """The client of an instance that is up, from its files."""
    pki = instance.pki
    return Api(server, pki / "ca.crt", Pair(pki / "admin.crt", pki / "admin.key"))


def _free_ports(count: int) -> tuple[int, ...]:
    sockets = []
    try:
        for _ in range(count):
            listener = socket.socket()
            listener.bind(("127.0.0.1", 0))
            sockets.append(listener)
        return tuple(listener.getsockname()[1] for listener in sockets)
    except OSError as refused:
        raise ClusterError(f"no free port on the loopback: {refused}") from refused
    finally:
        for listener in sockets:
            listener.close()
