"""A node: containerd, kubelet and kube-proxy in namespaces and a cgroup of their own."""

import json
import os
import platform
from pathlib import Path

from e2e.cluster import cgroups, namespaces
from e2e.cluster.errors import eventually
from e2e.cluster.instance import Instance
from e2e.cluster.pki import Authority
from e2e.cluster.programs import Programs
from e2e.cluster.shell import attempt, run

PAUSE_IMAGE = "localhost/stepfence-pause:1"
_KUBELET_PORT = 10250
_CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")


class Node:
    """Starts one node of an instance, whose namespaces and network are there."""

    def __init__(self, instance: Instance, number: int, programs: Programs) -> None:
        self._instance = instance
        self._number = number
        self._programs = programs
        self._folder = instance.node_folder(number)
        self._enter = namespaces.enter(number, programs)

    def start(self, binaries: Path, authority: Authority, server: str, pause_image: Path) -> None:
        """Start the node's programs. It is Ready some seconds later."""
        cgroups.create(self._instance.cgroup(self._number))
        self._start_containerd()
        load_image(self._instance, self._number, pause_image)
        self._start_kubelet(binaries, authority, server)
        self._start_proxy(binaries, authority, server)

    def _name(self, program: str) -> str:
        return f"{program}-{self._number}"

    def _start_containerd(self) -> None:
        folder, number = self._folder, self._number
        network = {
            "cniVersion": "1.0.0",
            "name": f"stepfence-{self._instance.name}-{number}",
            "plugins": [self._bridge(), {"type": "portmap", "capabilities": {"portMappings": True}}],
        }
        (folder / "cni").mkdir()
        (folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        (folder / "containerd.toml").write_text(self._containerd_settings())
        name = self._name("containerd")
        self._programs.launch(name, "containerd", "--config", folder / "containerd.toml", enter=self._enter)
        wait_program(self._instance, number, name, self._programs)

    def _bridge(self) -> dict[str, object]:
        pods = str(self._instance.node_pods(self._number))
        addresses = {
            "type": "host-local",
            "dataDir": str(self._folder / "addresses"),
            "ranges": [[{"subnet": pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        # Hairpin mode: a pod may reach itself through its own Service.
        return {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True, "ipam": addresses}

    def _containerd_settings(self) -> str:
        folder = self._folder
        # A root without CAP_SYS_RESOURCE cannot lower a process's OOM score, which every container would need.
        return f"""
version = 2
root = "{folder / "containerd"}"
state = "{folder / "containerd-state"}"
[grpc]
  address = "{self._instance.socket(self._number)}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder / "containerd-opt"}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{Path(cni_bridge()).parent}"
    conf_dir = "{folder / "cni"}"
"""

    def _start_kubelet(self, binaries: Path, authority: Authority, server: str) -> None:
        folder, name = self._folder, self._instance.node_name(self._number)
        address = self._instance.node_address(self._number)
        user = f"system:node:{name}"
        pair = authority.issue(name, user, organization="system:nodes", hosts=(name, address, "127.0.0.1"))
        settings = {**self._kubelet_settings(), "tlsCertFile": str(pair.certificate), "tlsPrivateKeyFile": str(pair.key)}
        settings["authentication"] = {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority.pair.certificate)},
        }
        (folder / "kubelet.json").write_text(json.dumps(settings))
        self._programs.launch(
            self._name("kubelet"),
            binaries / "kubelet",
            f"--config={folder / 'kubelet.json'}",
            f"--kubeconfig={authority.kubeconfig(name, pair, server)}",
            f"--hostname-override={name}",
            f"--node-ip={address}",
            f"--root-dir={folder / 'kubelet'}",
            f"--cert-dir={folder / 'kubelet-pki'}",
            enter=self._enter,
        )

    def _kubelet_settings(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self._instance.socket(self._number)}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self._instance.cgroup(self._number),
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [self._instance.node_address(1)],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "podLogsDir": str(self._folder / "pod-logs"),
            "volumePluginDir": str(self._folder / "volume-plugins"),
            "enforceNodeAllocatable": ["pods"],
            # With the controller manager's grace of 12 s a lost node is noticed soon, and a slow one is not taken for lost.
            "nodeStatusUpdateFrequency": "2s",
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "healthzPort": 0,
        }

    def _start_proxy(self, binaries: Path, authority: Authority, server: str) -> None:
        name = self._name("kube-proxy")
        login = authority.kubeconfig(name, authority.issue(name, "system:kube-proxy"), server)
        settings = {
            "mode": "iptables",
            "clusterCIDR": str(self._instance.pod_network),
            "hostnameOverride": self._instance.node_name(self._number),
            "clientConnection": {"kubeconfig": str(login)},
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
        path = self._folder / "proxy.yaml"
        # The kind comes first and bare: a file that begins with a brace is read by stricter rules, as JSON.
        head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
        path.write_text(head + "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
        self._programs.launch(name, binaries / "kube-proxy", f"--config={path}", enter=self._enter)


def wait_program(instance: Instance, number: int, name: str, programs: Programs) -> None:
    """Wait until a program of a node does its work, where that can be seen from outside it.

    Raises:
        ClusterError: it ended, or the time is up; the message has the end of its log.
    """

    def works() -> bool:
        programs.check(name)
        if name.startswith("containerd-"):
            socket = instance.socket(number)
            return socket.exists() and attempt("ctr", "-a", socket, "version", seconds=10).returncode == 0
        return programs.process(name).listens(_KUBELET_PORT)

    if name.startswith(("containerd-", "kubelet-")):
        eventually(f"sign of work from {name}", works, seconds=30, evidence=lambda: programs.tail(name))


def load_image(instance: Instance, number: int, archive: Path) -> None:
    """Import the images of a docker-archive into a node."""
    socket = instance.socket(number)
    run("ctr", "-a", socket, "-n", "k8s.io", "images", "import", archive, seconds=300)


def architecture() -> str:
    """This machine's architecture, as images name it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def cni_bridge() -> str:
    """The bridge plugin of the machine; where Debian puts it, if there is none yet."""
    found = (f"{folder}/bridge" for folder in _CNI_FOLDERS if os.access(f"{folder}/bridge", os.X_OK))
    return next(found, f"{_CNI_FOLDERS[0]}/bridge")
