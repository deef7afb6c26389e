"""What each kustomization installs, and that nothing lies beside it unseen."""

from pathlib import Path

import pytest
import yaml

from tests.manifests.objects import MANIFESTS, ROOT, documents, kustomization, load, pod_specs

FOLDERS = sorted(file.parent for file in MANIFESTS.rglob("kustomization.yaml"))
BASE_OBJECTS = {
    "ClusterRole//stepfence-controller",
    "ClusterRole//stepfence-edit",
    "ClusterRole//stepfence-gateway",
    "ClusterRole//stepfence-view",
    "ClusterRoleBinding//stepfence-controller",
    "ClusterRoleBinding//stepfence-gateway",
    "Deployment/stepfence-system/stepfence-controller",
    "Deployment/stepfence-system/stepfence-gateway",
    "Namespace//stepfence-system",
    "NetworkPolicy/stepfence-system/stepfence-controller",
    "NetworkPolicy/stepfence-system/stepfence-default-deny",
    "NetworkPolicy/stepfence-system/stepfence-gateway",
    "PodDisruptionBudget/stepfence-system/stepfence-controller",
    "PodDisruptionBudget/stepfence-system/stepfence-gateway",
    "Role/stepfence-system/stepfence-controller",
    "Role/stepfence-system/stepfence-gateway",
    "RoleBinding/stepfence-system/stepfence-controller",
    "RoleBinding/stepfence-system/stepfence-gateway",
    "Service/stepfence-system/stepfence-controller",
    "Service/stepfence-system/stepfence-gateway",
    "Service/stepfence-system/stepfence-gateway-metrics",
    "ServiceAccount/stepfence-system/stepfence-controller",
    "ServiceAccount/stepfence-system/stepfence-gateway",
}


def named(folder: Path) -> str:
    return str(folder.relative_to(MANIFESTS))


def test_the_folders_are_the_ones_that_the_docs_name() -> None:
    assert [named(folder) for folder in FOLDERS] == ["base", "default", "overlays/single-replica", "samples"]


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
def test_every_resource_of_a_kustomization_exists_and_is_unique(folder: Path) -> None:
    ids = [item.id for item in load(folder)]
    assert ids
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
def test_no_manifest_lies_beside_a_kustomization_unlisted(folder: Path) -> None:
    files = {file.name for file in folder.glob("*.yaml")} - {"kustomization.yaml"}
    listed = {name for name in kustomization(folder)["resources"] if name.endswith(".yaml")}
    assert files == listed


def test_the_base_installs_exactly_the_two_servers_and_what_they_need() -> None:
    assert {item.id for item in load(MANIFESTS / "base")} == BASE_OBJECTS


def test_the_default_installs_the_crds_and_the_base() -> None:
    crds = {f"CustomResourceDefinition//{plural}.stepfence.dev" for plural in ("agentruns", "agentrunrecords")}
    assert {item.id for item in load(MANIFESTS / "default")} == BASE_OBJECTS | crds


def test_every_object_of_the_base_is_labelled_and_in_its_namespace() -> None:
    for item in load(MANIFESTS / "base"):
        meta = item.object["metadata"]
        assert meta["labels"]["app.kubernetes.io/name"] == "stepfence", item.id
        namespaced = not item.object["kind"].startswith("Cluster") and item.object["kind"] != "Namespace"
        assert (meta.get("namespace") == "stepfence-system") == namespaced, item.id


def test_services_budgets_and_policies_select_pods_that_exist() -> None:
    items = [item.object for item in load(MANIFESTS / "base")] + [item.object for item in load(MANIFESTS / "samples")]
    pods = [item["spec"]["template"]["metadata"]["labels"] for item in items if item["kind"] == "Deployment"]
    selectors = [item["spec"]["selector"] for item in items if item["kind"] == "Service"]
    selectors += [item["spec"]["selector"]["matchLabels"] for item in items if item["kind"] == "PodDisruptionBudget"]
    selectors += [item["spec"]["podSelector"].get("matchLabels", {}) for item in items if item["kind"] == "NetworkPolicy"]
    selectors += [item["spec"]["selector"]["matchLabels"] for item in items if item["kind"] == "Deployment"]
    assert len(selectors) == 12
    for selector in selectors:
        assert any(selector.items() <= labels.items() for labels in pods), selector


def test_ports_named_by_services_probes_and_policies_exist() -> None:
    for folder in ("base", "samples"):
        items = [item.object for item in load(MANIFESTS / folder)]
        for item in items:
            if item["kind"] != "Deployment":
                continue
            labels = item["spec"]["template"]["metadata"]["labels"]
            container = item["spec"]["template"]["spec"]["containers"][0]
            ports = {port["name"] for port in container["ports"]}
            wanted = {
                container[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe") if probe in container
            }
            for other in items:
                if other["kind"] == "Service" and other["spec"]["selector"].items() <= labels.items():
                    wanted |= {port["targetPort"] for port in other["spec"]["ports"]}
                if other["kind"] == "NetworkPolicy":
                    chosen = other["spec"]["podSelector"].get("matchLabels", {})
                    if chosen and chosen.items() <= labels.items():
                        wanted |= {port["port"] for rule in other["spec"]["ingress"] for port in rule["ports"]}
            assert wanted == ports, item["metadata"]["name"]


@pytest.mark.parametrize(("folder", "image"), [("default", "stepfence"), ("samples", "stepfence-samples")])
def test_one_line_of_the_kustomization_sets_the_image_of_every_container(folder: str, image: str) -> None:
    images = kustomization(MANIFESTS / folder)["images"]
    assert images == [{"name": image, "newName": image, "newTag": "dev"}]
    used = {container["image"] for item in load(MANIFESTS / folder) for spec in pod_specs(item.object) for container in spec["containers"]}
    assert used == {f"{image}:dev"}


def test_the_images_are_the_targets_of_the_dockerfile() -> None:
    stages = [line.split() for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("FROM ")]
    assert [stage[-1] for stage in stages] == ["build", "runtime", "samples", "operator"]


def test_the_single_replica_overlay_has_no_budget_that_blocks_a_drain() -> None:
    overlay = kustomization(MANIFESTS / "overlays/single-replica")
    assert {entry["name"]: entry["count"] for entry in overlay["replicas"]} == {
        "stepfence-controller": 1,
        "stepfence-gateway": 1,
    }
    patch = yaml.safe_load(overlay["patches"][0]["patch"])
    assert overlay["patches"][0]["target"] == {"kind": "PodDisruptionBudget"}
    assert patch["$patch"] == "delete"


def test_every_manifest_parses_to_objects_with_a_kind() -> None:
    files = [file for file in MANIFESTS.rglob("*.yaml") if file.name != "kustomization.yaml"]
    assert len(files) == 13
    for file in files:
        for item in documents(file):
            assert {"apiVersion", "kind", "metadata"} <= set(item), file
