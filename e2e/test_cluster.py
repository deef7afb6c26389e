"""The cluster that needs no Docker, tried on itself: pods, DNS, faults, and that nothing of it stays."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from e2e.cluster import Cluster, ClusterError, cgroups, eventually, instance, teardown
from e2e.cluster.images import build_image

pytestmark = [
    pytest.mark.pods,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="a cluster with nodes needs Linux and root"),
]

IMAGE = "localhost/stepfence-e2e-selftest:1"
DOCKERFILE = """
ARG BASE=python:3.12-slim
FROM ${BASE}
USER 65532:65532
CMD ["python3", "-u", "-m", "http.server", "8000", "--directory", "/etc"]
"""
WEB_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {
        "containers": [{"name": "web", "image": IMAGE, "imagePullPolicy": "Never"}],
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],  # it stays while its node is lost
    },
}
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web"},
    "spec": {"selector": {"app": "web"}, "type": "NodePort", "ports": [{"port": 80, "targetPort": 8000}]},
}
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode().strip())"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    context = tmp_path_factory.mktemp("image")
    (context / "Dockerfile").write_text(DOCKERFILE)
    return build_image(context, IMAGE)


@pytest.fixture(scope="module")
def cluster(image: Path) -> Iterator[Cluster]:
    with Cluster("selftest", nodes=2) as made:
        made.load_image(image)
        made.kubectl("apply", "-f", "-", stdin=json.dumps(SERVICE))
        for node, name in zip(made.nodes, ("web1", "web2"), strict=True):
            made.kubectl("apply", "-f", "-", stdin=json.dumps(web_pod(name, node)))
        made.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s", seconds=70)
        yield made


def web_pod(name: str, node: str) -> dict[str, object]:
    metadata = {"name": name, "labels": {"app": "web", "web": name}}
    return {**WEB_POD, "metadata": metadata, "spec": {**WEB_POD["spec"], "nodeSelector": {"kubernetes.io/hostname": node}}}  # type: ignore[dict-item]


def pod_address(cluster: Cluster, name: str) -> str:
    return cluster.kubectl("get", "pod", name, "-o", "jsonpath={.status.podIP}")


def fetch(cluster: Cluster, pod: str, url: str) -> subprocess.CompletedProcess[str]:
    return cluster.try_kubectl("exec", pod, "--", "python3", "-c", FETCH, url)


def answers(cluster: Cluster, pod: str, url: str) -> bool:
    return fetch(cluster, pod, url).returncode == 0


def eventually_answers(cluster: Cluster, pod: str, url: str) -> None:
    def evidence() -> str:
        return f"{fetch(cluster, pod, url)}\n{cluster.kubectl('get', 'pods', '-o', 'wide')}"

    eventually(f"answer from {url} in {pod}", lambda: answers(cluster, pod, url), seconds=30, evidence=evidence)


def machine_fetches(url: str) -> bool:
    return subprocess.run([sys.executable, "-c", FETCH, url], capture_output=True, check=False).returncode == 0


def test_a_pod_runs_on_each_node(cluster: Cluster) -> None:
    shown = cluster.kubectl("get", "pods", "-o", "jsonpath={range .items[*]}{.spec.nodeName}={.status.phase} {end}")
    assert shown.split() == ["node1=Running", "node2=Running"]


@pytest.mark.parametrize("pod", ["web1", "web2"])
def test_a_service_resolves_and_answers_by_its_name(cluster: Cluster, pod: str) -> None:
    url = "http://web.default.svc.cluster.local/hostname"
    eventually_answers(cluster, pod, url)


def test_the_machine_reaches_pods_services_and_node_ports(cluster: Cluster) -> None:
    service = json.loads(cluster.kubectl("get", "service", "web", "-o", "json"))["spec"]
    hosts = (
        f"{pod_address(cluster, 'web2')}:8000",
        service["clusterIP"],
        f"{cluster.node_address('node2')}:{service['ports'][0]['nodePort']}",
    )
    for host in hosts:
        eventually(f"answer from {host}", partial(machine_fetches, f"http://{host}/hostname"), seconds=20)


def test_pods_on_two_nodes_reach_each_other(cluster: Cluster) -> None:
    url = f"http://{pod_address(cluster, 'web2')}:8000/hostname"
    assert answers(cluster, "web1", url)


def test_a_node_that_is_cut_off_is_lost_while_its_pod_lives_on(cluster: Cluster) -> None:
    url = f"http://{pod_address(cluster, 'web2')}:8000/hostname"
    with cluster.isolated("node2"):
        cluster.wait_node("node2", ready=False, seconds=60)
        assert not answers(cluster, "web1", url)
        assert cluster.exec_in_node("node2", sys.executable, "-c", FETCH, url)
        assert cluster.running("kubelet-2")
    cluster.wait_node("node2", ready=True, seconds=60)
    eventually_answers(cluster, "web1", url)


def test_the_first_node_holds_the_control_plane_and_cannot_be_cut_off(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="control plane"):
        cluster.cut("node1")


def test_a_frozen_api_server_answers_nothing_until_it_is_thawed(cluster: Cluster) -> None:
    with cluster.frozen("kube-apiserver"):
        done = cluster.try_kubectl("get", "--raw", "/readyz", "--request-timeout=2s")
        assert done.returncode != 0
    assert cluster.kubectl("get", "--raw", "/readyz") == "ok"


def test_a_killed_api_server_is_gone_until_it_is_started(cluster: Cluster) -> None:
    cluster.kill("kube-apiserver")
    assert not cluster.running("kube-apiserver")
    assert cluster.try_kubectl("get", "--raw", "/readyz").returncode != 0
    cluster.start("kube-apiserver")
    assert cluster.kubectl("get", "--raw", "/readyz") == "ok"


def test_pods_survive_the_death_of_their_kubelet_and_containerd(cluster: Cluster) -> None:
    url = f"http://{pod_address(cluster, 'web2')}:8000/hostname"
    for program in ("kubelet-2", "containerd-2"):
        cluster.kill(program)
    assert answers(cluster, "web1", url)
    for program in ("containerd-2", "kubelet-2"):
        cluster.start(program)
    cluster.wait_node("node2", ready=True, seconds=60)
    eventually_answers(cluster, "web2", url)
    assert cluster.kubectl("get", "pod", "web2", "-o", "jsonpath={.status.containerStatuses[0].restartCount}") == "0"


def test_a_frozen_pod_answers_nothing_until_it_is_thawed(cluster: Cluster) -> None:
    url = f"http://{pod_address(cluster, 'web2')}:8000/hostname"
    cluster.freeze_pod("web2")
    assert not answers(cluster, "web1", url)
    cluster.thaw_pod("web2")
    assert answers(cluster, "web1", url)


def test_an_unknown_program_is_refused_with_the_names_that_exist(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="kube-apiserver"):
        cluster.freeze("kube-apisrever")


def test_a_name_that_a_living_process_holds_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match=f"in use by process {os.getpid()}"):
        Cluster(cluster.name, nodes=0).up()
    assert cluster.kubectl("get", "--raw", "/readyz") == "ok"


def test_a_second_cluster_runs_beside_the_first(cluster: Cluster) -> None:
    with Cluster("selftest-beside", nodes=1) as other:
        other.kubectl("create", "configmap", "here")
        assert cluster.try_kubectl("get", "configmap", "here").returncode != 0
        assert other.server != cluster.server
    assert cluster.kubectl("exec", "web1", "--", "python3", "-c", "print('alive')") == "alive\n"


def test_a_control_plane_alone_needs_no_nodes() -> None:
    with Cluster("selftest-alone", nodes=0) as alone:
        alone.kubectl("create", "configmap", "here")
        assert alone.nodes == ()
        assert alone.programs() == ["etcd", "kube-apiserver"]


def test_a_program_that_does_not_come_up_is_shown_with_its_last_words() -> None:
    broken = Cluster("selftest-broken", nodes=0, apiserver_args=["--no-such-flag"])
    with pytest.raises(ClusterError, match=r"kube-apiserver ended by itself(?s:.*)unknown flag: --no-such-flag"):
        broken.up()
    assert instance.load("selftest-broken") is None


def test_etcd_refuses_writes_beyond_the_quota() -> None:
    with Cluster("selftest-quota", nodes=0, etcd_quota_bytes=8 << 20, etcd_compaction="1h") as small:
        body = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big"}, "data": {"x": "x" * 900_000}})
        small.kubectl("create", "-f", "-", stdin=body)

        def refused() -> str:
            done = small.try_kubectl("replace", "-f", "-", stdin=body.replace('"x": "x', f'"x": "{os.urandom(8).hex()}'))
            return done.stderr if done.returncode else ""

        assert "database space exceeded" in eventually("refusal", refused, seconds=60)


def test_a_cgroup_of_version_2_is_made_with_the_controllers_that_a_kubelet_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids misc\n")
    (tmp_path / "cgroup.subtree_control").write_text("memory\n")
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    cgroups.create("/stepfence-fake-1")
    assert (tmp_path / "cgroup.subtree_control").read_text().split() == ["+cpu", "+cpuset", "+io", "+pids"]
    assert cgroups.groups("/stepfence-fake-1") == [tmp_path / "stepfence-fake-1"]


LEAVE_BEHIND = """
import os, sys
from pathlib import Path
from e2e.cluster import Cluster
cluster = Cluster(sys.argv[1], nodes=1)
cluster.up()
cluster.load_image(Path(sys.argv[2]))
cluster.kubectl("run", "left", "--image", sys.argv[3], "--image-pull-policy=Never")
cluster.kubectl("wait", "--for=condition=Ready", "pod", "left", "--timeout=60s", seconds=70)
os._exit(7)
"""


def test_what_a_run_that_died_left_behind_is_removed_whole(image: Path) -> None:
    name = "selftest-left"
    died = subprocess.run([sys.executable, "-c", LEAVE_BEHIND, name, image, IMAGE], timeout=300, check=False)
    assert died.returncode == 7
    left = instance.load(name)
    assert left is not None
    before = teardown.traces(left)
    namespaces = namespaces_of(left.folder)
    assert {trace.split()[0] for trace in before} == {"process", "cgroup", "link", "folder"}
    assert len(namespaces) == 2

    Cluster(name, nodes=0).down()

    assert teardown.traces(left) == []
    assert not namespaces & namespaces_in_use()


def namespaces_of(folder: Path) -> set[str]:
    """The network and the mount namespace of the first node of a cluster."""
    pid = json.loads((folder / "programs" / "node-1.json").read_text())["pid"]
    return {str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in ("net", "mnt")}


def namespaces_in_use() -> set[str]:
    found = set()
    for kind in ("net", "mnt"):
        for path in Path("/proc").glob(f"[0-9]*/ns/{kind}"):
            try:
                found.add(str(path.readlink()))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found
