"""Which cluster the tests and `make demo-cluster` use. The first that applies:

1. the cluster of the kubeconfig that `STEPFENCE_KUBECONFIG` names (no other place is looked at: a cluster is never guessed);
2. kind, through pytest-kind, when a Docker engine runs;
3. `e2e.cluster`: two nodes, without Docker.

Images reach a named cluster by the command in `STEPFENCE_LOAD_IMAGE`, which gets the path of a docker-archive as its last word
(say, `minikube image load`); without it they must be there already. A named cluster that `e2e.cluster` brought up is recognized.
"""

import contextlib
import os
import platform
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from e2e.cluster import Cluster, ClusterError, build, instance
from e2e.cluster.images import docker_answers
from e2e.cluster.shell import describe, run

NAMED_BY = "STEPFENCE_KUBECONFIG"
LOADED_BY = "STEPFENCE_LOAD_IMAGE"
KIND_VERSION = "v0.30.0"
_KIND_URL = "https://github.com/kubernetes-sigs/kind/releases/download/{version}/kind-{system}-{machine}"
_KIND_NODES = """\
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
- role: control-plane
- role: worker
"""
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_LOAD_SECONDS = 300.0


class Source(StrEnum):
    """Where a cluster comes from, as the report names it."""

    NAMED = "named"
    KIND = "kind"
    LOCAL = "local"


@dataclass(frozen=True)
class Target:
    """A running cluster that we may use.

    `kubectl` begins every kubectl command line. `load` brings the images of a docker-archive to every node. `faults` has the verbs for what
    may go wrong with a cluster; None where the cluster is not of our own making.
    """

    source: Source
    kubeconfig: Path
    kubectl: tuple[str, ...]
    load: Callable[[Path], None]
    faults: Cluster | None = None


def choose(environ: Mapping[str, str], docker: Callable[[], bool] = docker_answers) -> Source:
    """Say which cluster applies. Docker is asked only when none is named.

    Raises:
        ClusterError: the named kubeconfig cannot be read.
    """
    named = environ.get(NAMED_BY)
    if named:
        path = Path(named)
        if not path.is_file() or not os.access(path, os.R_OK):
            raise ClusterError(f"{NAMED_BY}: {named} is not a file that can be read")
        return Source.NAMED
    return Source.KIND if docker() else Source.LOCAL


@contextmanager
def acquire(name: str, environ: Mapping[str, str] = os.environ, *, keep: bool = False) -> Iterator[Target]:
    """Give the cluster that applies. One of our own making is called `name` and is gone afterwards, unless it is to be kept.

    A named one is left as it is.

    Raises:
        ClusterError: it cannot be had; the message says why.
    """
    source = choose(environ)
    if source is Source.NAMED:
        yield _named(Path(environ[NAMED_BY]).absolute(), environ)
    elif source is Source.KIND:
        with _kind(name, keep=keep) as target:
            yield target
    else:
        with _own(name, keep=keep) as target:
            yield target


@contextmanager
def _own(name: str, *, keep: bool) -> Iterator[Target]:
    cluster = Cluster(name, nodes=2)
    cluster.up()
    try:
        yield _local(cluster, Source.LOCAL)
    finally:
        if keep:
            cluster.release()
        else:
            cluster.down()


def _local(cluster: Cluster, source: Source) -> Target:
    return Target(source, cluster.kubeconfig, tuple(cluster.kubectl_command()), cluster.load_image, cluster)


def _named(kubeconfig: Path, environ: Mapping[str, str]) -> Target:
    ours = next((found for found in instance.recorded() if found.kubeconfig.exists() and found.kubeconfig.samefile(kubeconfig)), None)
    if ours is not None:
        return _local(Cluster.attach(ours.name), Source.NAMED)
    command = shlex.split(environ.get(LOADED_BY, ""))

    def load(archive: Path) -> None:
        if command:
            run(*command, archive, seconds=_LOAD_SECONDS)

    return Target(Source.NAMED, kubeconfig, (kubectl_program(), f"--kubeconfig={kubeconfig}"), load)


@contextmanager
def _kind(name: str, *, keep: bool) -> Iterator[Target]:
    folder = build.cache_root() / "kind"
    folder.mkdir(parents=True, exist_ok=True)
    cluster = _kind_cluster(name, folder)
    config = folder / f"{name}.yaml"
    config.write_text(_KIND_NODES)
    try:
        with contextlib.chdir(folder), _kind_download():
            cluster.create(config)
        yield _kind_target(cluster, name)
    finally:
        config.unlink()
        if not keep:
            cluster.delete()


def _kind_cluster(name: str, folder: Path) -> Any:
    from pytest_kind import KindCluster

    program = shutil.which("kind") or str(folder / f"kind-{KIND_VERSION}")
    with contextlib.chdir(folder):  # it makes a folder where it stands
        return KindCluster(name, kubeconfig=folder / f"{name}.kubeconfig", kind_path=Path(program))


@contextmanager
def _kind_download() -> Iterator[None]:
    """Have pytest-kind fetch a kind of our choice, where none is on PATH: its own default knows only old Kubernetes."""
    machine = _MACHINES.get(platform.machine(), platform.machine())
    url = _KIND_URL.format(version=KIND_VERSION, system=platform.system().lower(), machine=machine)
    given = "KIND_DOWNLOAD_URL" in os.environ
    os.environ.setdefault("KIND_DOWNLOAD_URL", url)
    try:
        yield
    finally:
        if not given:
            del os.environ["KIND_DOWNLOAD_URL"]


def _kind_target(cluster: Any, name: str) -> Target:
    def load(archive: Path) -> None:
        run(cluster.kind_path, "load", "image-archive", "--name", name, archive, seconds=_LOAD_SECONDS)

    return Target(Source.KIND, cluster.kubeconfig_path, (kubectl_program(), f"--kubeconfig={cluster.kubeconfig_path}"), load)


def kubectl_program() -> str:
    """kubectl from PATH, else the one that we build for our own clusters."""
    return shutil.which("kubectl") or str(build.kube() / "kubectl")


def kubectl(target: Target, *words: str, stdin: str | None = None, seconds: float = 60) -> str:
    """Run kubectl on a cluster; its standard output.

    Raises:
        ClusterError: a non-zero exit code, or no end within `seconds`; the message ends with what kubectl said.
    """
    try:
        return run(*target.kubectl, *words, stdin=stdin, seconds=seconds)
    except ClusterError as failed:
        raise ClusterError(f"kubectl {describe(words)}: {failed}") from failed
