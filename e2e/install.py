"""Install what is under test on a cluster: images from our Dockerfile, CRDs, manifests; and remove it again.

By hand, `python -m e2e.install` does so on the cluster that `STEPFENCE_KUBECONFIG`, else `KUBECONFIG`, names.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from e2e.choice import NAMED_BY, Source, Target, acquire, kubectl
from e2e.cluster import ClusterError, eventually
from e2e.cluster.images import build_image

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE = "stepfence-system"
DEFAULT = ROOT / "manifests" / "default"
SAMPLES = ROOT / "manifests" / "samples"
IMAGES = {"stepfence:dev": "operator", "stepfence-samples:dev": "samples"}
OLDEST_MINOR = 33
CRDS = ("agentruns.stepfence.dev", "agentrunrecords.stepfence.dev")
_MANAGER = "stepfence-e2e"
_READY_SECONDS = 180
_IMAGE_ANNOTATION = "stepfence.dev/image-archive"

Say = Callable[[str], None]


def installed(target: Target) -> bool:
    """Whether Stepfence stands on the cluster already."""
    return bool(kubectl(target, "get", "crd", CRDS[0], "--ignore-not-found", "-o", "name").strip())


def install(target: Target, kustomization: Path = DEFAULT, *, say: Say = lambda _: None) -> None:
    """Build and load the images, apply a kustomization, and wait until all of it is ready.

    Images are built from layers that are cached outside the tree. Deployments are restarted only when what they run has changed.

    Raises:
        ClusterError: the cluster is too old, a build fails, or something does not get ready; with evidence.
    """
    require_version(target)
    archives = load_images(target, say=say)
    say(f"applying {kustomization.relative_to(ROOT)}")
    objects = _rendered(target, kustomization)
    mark_image(objects, archives["stepfence:dev"].stem)
    _apply(target, [each for each in objects if each["kind"] == "CustomResourceDefinition"])
    for crd in CRDS:
        eventually(f"CRD {crd} in force", partial(_established, target, crd), seconds=60)
    _apply(target, [each for each in objects if each["kind"] != "CustomResourceDefinition"])
    say("waiting until both servers are ready")
    for server in ("controller", "gateway"):
        wait_rolled_out(target, NAMESPACE, f"stepfence-{server}")


def require_version(target: Target) -> None:
    """Refuse a Kubernetes that cannot run our CRD rules."""
    version = json.loads(kubectl(target, "version", "-o", "json"))["serverVersion"]
    minor = int("".join(filter(str.isdigit, version["minor"])))
    if (int(version["major"]), minor) < (1, OLDEST_MINOR):
        raise ClusterError(f"the cluster runs Kubernetes {version['gitVersion']}: 1.{OLDEST_MINOR} or newer is needed")


def load_images(target: Target, *, say: Say = lambda _: None) -> dict[str, Path]:
    """Build all images and bring them to the cluster; the archive of each tag."""
    say(f"building {' and '.join(IMAGES)} from the Dockerfile")
    archives = {tag: build_image(ROOT, tag, target=stage) for tag, stage in IMAGES.items()}
    say(f"loading them into the {'named' if target.source is Source.NAMED else target.source.value} cluster")
    with ThreadPoolExecutor(len(archives)) as pool:
        list(pool.map(target.load, archives.values()))
    return archives


def _rendered(target: Target, kustomization: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(kubectl(target, "kustomize", str(kustomization))) if each]


def mark_image(objects: list[dict[str, Any]], archive: str) -> None:
    """Name the image's content in each Deployment, so that a new one under the same tag brings new pods."""
    for each in objects:
        if each["kind"] == "Deployment":
            metadata = each["spec"]["template"].setdefault("metadata", {})
            metadata.setdefault("annotations", {})[_IMAGE_ANNOTATION] = archive


def _established(target: Target, crd: str) -> bool:
    """Whether the API server serves a CRD. Neither `kubectl wait` nor a JSONPath will do: both fail while there is no condition at all."""
    conditions = json.loads(kubectl(target, "get", "crd", crd, "-o", "json"))["status"].get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _apply(target: Target, objects: list[dict[str, Any]]) -> None:
    text = yaml.safe_dump_all(objects)
    kubectl(target, "apply", "--server-side", "--force-conflicts", f"--field-manager={_MANAGER}", "-f", "-", stdin=text, seconds=120)


def apply_provider(target: Target, namespace: str, *, node: str | None = None, name: str = "provider") -> None:
    """Start the sample provider in a namespace, on a node if one is named, and wait until it answers."""
    objects = [each for each in yaml.safe_load_all((SAMPLES / "provider.yaml").read_text()) if each]
    text = json.dumps(objects).replace('"provider"', json.dumps(name))
    objects = json.loads(text)
    if node is not None:
        deployment = next(each for each in objects if each["kind"] == "Deployment")
        pod = deployment["spec"]["template"]["spec"]
        pod["nodeSelector"] = {"kubernetes.io/hostname": node}
        # Its log must outlive whatever is done to the node, and be reached while the node is not heard of.
        pod["tolerations"] = [{"operator": "Exists", "effect": "NoExecute"}]
        next(each for each in objects if each["kind"] == "Service")["spec"]["publishNotReadyAddresses"] = True
    manifest = yaml.safe_dump_all(objects)
    kubectl(target, "apply", "-n", namespace, "-f", "-", stdin=manifest)
    wait_rolled_out(target, namespace, name)


def wait_rolled_out(target: Target, namespace: str, deployment: str) -> None:
    """Wait until every replica of a Deployment is ready.

    Raises:
        ClusterError: it is not; with its pods' states and last words.
    """
    try:
        kubectl(
            target,
            "rollout",
            "status",
            f"deployment/{deployment}",
            f"--namespace={namespace}",
            f"--timeout={_READY_SECONDS}s",
            seconds=_READY_SECONDS + 10,
        )
    except ClusterError as failed:
        raise ClusterError(f"{failed}\n{evidence(target, namespace)}") from failed


def evidence(target: Target, namespace: str, *, lines: int = 40) -> str:
    """What a namespace's pods and events say, for an error."""
    queries = (
        ("get", "pods", "-o", "wide"),
        ("get", "events", "--sort-by=.lastTimestamp"),
        ("logs", "-l", "app.kubernetes.io/component=controller", f"--tail={lines}", "--prefix", "--all-containers"),
        ("logs", "-l", "app.kubernetes.io/component=gateway", f"--tail={lines}", "--prefix", "--all-containers"),
    )
    said = []
    for query in queries:
        try:
            said.append(f"$ kubectl -n {namespace} {' '.join(query)}\n{kubectl(target, '-n', namespace, *query)}")
        except ClusterError as failed:
            said.append(str(failed))
    return "\n".join(said)


def uninstall(target: Target, kustomization: Path = DEFAULT) -> None:
    """Remove what `install` brought, every AgentRun with it."""
    text = kubectl(target, "kustomize", str(kustomization))
    kubectl(target, "delete", "--ignore-not-found", "--wait", "--timeout=90s", "-f", "-", stdin=text, seconds=120)


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Install on the named cluster and leave it there; the exit code."""
    argparse.ArgumentParser(prog="python -m e2e.install", description=__doc__).parse_args(arguments)
    by = next((name for name in (NAMED_BY, "KUBECONFIG") if environ.get(name)), None)
    if by is None or not Path(environ[by]).is_file():
        problem = (
            f"neither {NAMED_BY} nor KUBECONFIG names the cluster to install on" if by is None else f"{by}: {environ[by]} is not a file"
        )
        print(f"error: {problem}", file=sys.stderr)
        return 2
    try:
        with acquire("install", {**environ, NAMED_BY: environ[by]}) as target:
            install(target, say=lambda text: print(f"==> {text}", flush=True))
    except ClusterError as failed:
        print(f"error: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
