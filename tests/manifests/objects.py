"""Reads the manifests the way kustomize finds them, without kustomize: which objects each folder installs."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"
KNOWN_FIELDS = {"apiVersion", "kind", "resources", "labels", "images", "replicas", "patches"}

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Loaded:
    """One object and the file that it stands in."""

    file: Path
    object: Manifest

    @property
    def id(self) -> str:
        meta = self.object["metadata"]
        return f"{self.object['kind']}/{meta.get('namespace', '')}/{meta['name']}"


def kustomization(folder: Path) -> Manifest:
    """Return a folder's kustomization. Raises AssertionError for a field that these tests would not see."""
    content: Manifest = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(content) <= KNOWN_FIELDS, f"{folder}: teach the tests {set(content) - KNOWN_FIELDS}"
    return content


def load(folder: Path) -> list[Loaded]:
    """Return what a folder installs, before patches."""
    found: list[Loaded] = []
    for name in kustomization(folder)["resources"]:
        path = (folder / name).resolve()
        found += load(path) if path.is_dir() else [Loaded(path, document) for document in documents(path)]
    return found


@functools.cache
def documents(file: Path) -> list[Manifest]:
    """Return a file's objects."""
    # The C loader: a CRD is a quarter of a megabyte.
    return [document for document in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader) if document is not None]


def pod_specs(item: Manifest) -> Iterator[Manifest]:
    """Yield the pod specs inside an object: those of workloads and of AgentRuns."""
    template = item.get("spec", {}).get("template") if item["kind"] in {"Deployment", "AgentRun"} else None
    if template is not None:
        yield template["spec"]
