"""The cluster by hand: `python -m e2e.cluster up`, then whatever you like, then `down`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster import build, instance
from e2e.cluster.archive import pause_image
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.images import build_image

_DEFAULT_NAME = "dev"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        return int(chosen.run(chosen) or 0)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    parser.add_argument("--name", default=_DEFAULT_NAME, help="which cluster (default: %(default)s)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        return made

    command("build", _build, "build every program into the cache (minutes from cold)")
    up = command("up", _up, "bring a cluster up, leave it running, and say how to reach it")
    up.add_argument("--nodes", type=int, default=2, help="0: a control plane alone (default: %(default)s)")
    up.add_argument("--controller-manager", action=argparse.BooleanOptionalAction, help="default: where there are nodes")
    up.add_argument("--etcd-quota-bytes", type=int)
    up.add_argument("--etcd-compaction", metavar="DURATION", help="how often the API server compacts etcd, e.g. 10s")
    up.add_argument("--apiserver-arg", action="append", default=[], metavar="FLAG", help="may be repeated")
    command("down", _down, "stop and remove a cluster, or what is left of it")
    command("status", _status, "list the clusters of this machine and their programs")
    command("env", _env, "print the shell command that points kubectl at a running cluster")
    image = command("image", _image, "build an image from a Dockerfile and print its archive, ready for load")
    image.add_argument("context", type=Path)
    image.add_argument("tag")
    image.add_argument("--target")
    command("load", _load, "import an image archive into every node").add_argument("archive", type=Path)
    for verb, text in _VERBS.items():
        command(verb, _verb(verb), text).add_argument("target")
    kubectl = command("kubectl", _kubectl, "kubectl as administrator")
    kubectl.add_argument("words", nargs=argparse.REMAINDER)
    inside = command("exec", _exec, "run a command in a node's namespaces")
    inside.add_argument("node")
    inside.add_argument("words", nargs=argparse.REMAINDER)
    return parser


_VERBS = {
    "freeze": "SIGSTOP a program",
    "thaw": "SIGCONT a program",
    "kill": "SIGKILL a program",
    "start": "start a killed program again",
    "cut": "cut a node off",
    "heal": "mend a node's network",
}


def _build(_: argparse.Namespace) -> None:
    build.build_all()
    pause_image()
    print(f"built: {build.kube()}")


def _up(chosen: argparse.Namespace) -> None:
    cluster = Cluster(
        chosen.name,
        nodes=chosen.nodes,
        controller_manager=chosen.controller_manager,
        etcd_quota_bytes=chosen.etcd_quota_bytes,
        etcd_compaction=chosen.etcd_compaction,
        apiserver_args=chosen.apiserver_arg,
    )
    cluster.up()
    cluster.release()
    _env(chosen)


def _down(chosen: argparse.Namespace) -> None:
    Cluster(chosen.name, nodes=0).down()


def _status(_: argparse.Namespace) -> None:
    for found in instance.recorded():
        print(f"{found.name}: {found.nodes} nodes, {found.folder}")
        if found.kubeconfig.exists():
            cluster = Cluster.attach(found.name)
            for program in cluster.programs():
                print(f"  {program}: {'running' if cluster.running(program) else 'ended'}")


def _env(chosen: argparse.Namespace) -> None:
    cluster = Cluster.attach(chosen.name)
    print(f"export KUBECONFIG={cluster.kubeconfig} KUBECACHEDIR={cluster.kubeconfig.parent.with_name('kubectl-cache')}")
    print(f"export PATH={build.kube()}:$PATH  # for kubectl")


def _image(chosen: argparse.Namespace) -> None:
    print(build_image(chosen.context.resolve(), chosen.tag, target=chosen.target))


def _load(chosen: argparse.Namespace) -> None:
    Cluster.attach(chosen.name).load_image(chosen.archive.resolve())


def _verb(name: str) -> object:
    def act(chosen: argparse.Namespace) -> None:
        getattr(Cluster.attach(chosen.name), name)(chosen.target)

    return act


def _kubectl(chosen: argparse.Namespace) -> None:
    command = [*Cluster.attach(chosen.name).kubectl_command(), *chosen.words]
    os.execv(command[0], command)


def _exec(chosen: argparse.Namespace) -> None:
    print(Cluster.attach(chosen.name).exec_in_node(chosen.node, *chosen.words, seconds=3600), end="")


if __name__ == "__main__":
    sys.exit(main())
