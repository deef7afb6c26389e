"""What GitOps tools do to a cluster, done with their own packages by a small Go program beside this file.

`apply` is one reconciliation by Flux's kustomize-controller: server-side apply, after taking over the fields of managers whose
names begin with `kubectl`. `status` is kstatus, which Flux (and kapp, Helm and others) wait by. The program is built on first use
and cached as the programs of the cluster are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from e2e.cluster.build import GoProgram
from e2e.cluster.errors import ClusterError
from e2e.cluster.shell import run

Action = Literal["created", "configured", "unchanged", "skipped"]
Status = Literal["InProgress", "Failed", "Current", "Terminating", "NotFound", "Unknown"]


@dataclass(frozen=True)
class Verdict:
    """What kstatus says of one object, and why."""

    subject: str
    status: Status
    message: str


def build() -> Path:
    """The program's file in the cache, built first when it lacks (a minute or two from cold)."""
    return GoProgram("gitops", source=Path(__file__).parent).build()


def apply(kubeconfig: Path, *manifests: Mapping[str, Any] | str, namespace: str = "default") -> dict[str, Action]:
    """Apply manifests (objects, or YAML text) as Flux does.

    Returns what became of each object, by its subject `Kind/namespace/name` (`Kind/name` without a namespace).

    Raises:
        ClusterError: the API server refuses an object; the message says which and why.
    """
    said = _run("apply", f"-kubeconfig={kubeconfig}", f"-namespace={namespace}", "-f=-", stdin=_stream(manifests))
    return {entry["subject"]: _one_of(entry["action"], get_args(Action)) for entry in said}


def status(kubeconfig: Path, *subjects: str) -> list[Verdict]:
    """What kstatus says of objects of a cluster, each named `kind/namespace/name`; the kind may carry its group.

    Raises:
        ClusterError: there is no such kind, or the API server does not answer.
    """
    return _verdicts(_run("status", f"-kubeconfig={kubeconfig}", *subjects))


def status_of(*objects: Mapping[str, Any] | str) -> list[Verdict]:
    """What kstatus says of objects as they are given: no cluster is asked."""
    return _verdicts(_run("status", "-f=-", stdin=_stream(objects)))


def _run(command: str, *words: str, stdin: str | None = None) -> list[dict[str, Any]]:
    found = json.loads(run(build(), command, *words, stdin=stdin, seconds=90))
    if not isinstance(found, list):
        raise ClusterError(f"gitops {command} answers no list: {found!r}")
    return found


def _verdicts(said: list[dict[str, Any]]) -> list[Verdict]:
    return [Verdict(entry["subject"], _one_of(entry["status"], get_args(Status)), entry["message"]) for entry in said]


def _one_of(word: str, known: Sequence[Any]) -> Any:
    if word not in known:
        raise ClusterError(f"gitops says {word!r}, which is none of {', '.join(known)}")
    return word


def _stream(manifests: Sequence[Mapping[str, Any] | str]) -> str:
    texts = [manifest if isinstance(manifest, str) else json.dumps(manifest) for manifest in manifests]
    return "\n---\n".join(texts)
