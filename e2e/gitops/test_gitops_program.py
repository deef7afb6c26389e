"""That the program of this folder does what Flux and kstatus do, shown on objects that everyone knows."""

import json
from collections.abc import Iterator

import pytest

from e2e import gitops
from e2e.cluster import Cluster, ClusterError

pytestmark = pytest.mark.gitops

SETTINGS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"colour": "red"}}
SUBJECT = "ConfigMap/default/settings"
JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once", "namespace": "default"}}


@pytest.fixture(scope="module")
def api() -> Iterator[Cluster]:
    with Cluster("gitops-program", nodes=0) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _clean(api: Cluster) -> None:
    api.kubectl("delete", "configmap", "settings", "--ignore-not-found")


def stored(api: Cluster) -> dict[str, str]:
    return dict(json.loads(api.kubectl("get", "configmap", "settings", "-o", "json"))["data"])


def test_a_second_apply_of_the_same_manifest_changes_nothing(api: Cluster) -> None:
    assert gitops.apply(api.kubeconfig, SETTINGS) == {SUBJECT: "created"}
    version = api.kubectl("get", "configmap", "settings", "-o", "jsonpath={.metadata.resourceVersion}")
    assert gitops.apply(api.kubeconfig, SETTINGS) == {SUBJECT: "unchanged"}
    assert api.kubectl("get", "configmap", "settings", "-o", "jsonpath={.metadata.resourceVersion}") == version


@pytest.mark.parametrize("words", [("patch", "--type=merge"), ("apply",), ("apply", "--server-side")], ids=" ".join)
def test_what_a_person_set_with_kubectl_is_taken_over_and_removed(api: Cluster, words: tuple[str, ...]) -> None:
    gitops.apply(api.kubeconfig, SETTINGS)
    extra = {"data": {"size": "large"}}
    if words[0] == "patch":
        api.kubectl("patch", "configmap", "settings", *words[1:], "-p", json.dumps(extra))
    else:
        api.kubectl(*words, "-f", "-", stdin=json.dumps({**SETTINGS, **extra}))
    assert stored(api)["size"] == "large"
    assert gitops.apply(api.kubeconfig, SETTINGS) == {SUBJECT: "configured"}
    assert stored(api) == {"colour": "red"}


def test_what_another_manager_set_stays(api: Cluster) -> None:
    gitops.apply(api.kubeconfig, SETTINGS)
    patch = ("patch", "configmap", "settings", "--type=merge", "-p", json.dumps({"data": {"size": "large"}}))
    api.kubectl(*patch, "--field-manager=stepfence")
    assert gitops.apply(api.kubeconfig, SETTINGS) == {SUBJECT: "unchanged"}
    assert stored(api) == {"colour": "red", "size": "large"}


def test_a_manifest_that_the_api_server_refuses_is_an_error_that_names_it(api: Cluster) -> None:
    bad = {**SETTINGS, "data": {"not a key": "x"}}
    with pytest.raises(ClusterError, match="ConfigMap/default/settings"):
        gitops.apply(api.kubeconfig, bad)


def test_kstatus_of_objects_in_a_cluster(api: Cluster) -> None:
    gitops.apply(api.kubeconfig, SETTINGS)
    found = gitops.status(api.kubeconfig, "configmap/default/settings", "ConfigMap/default/missing")
    assert [(verdict.subject, verdict.status) for verdict in found] == [
        (SUBJECT, "Current"),
        ("ConfigMap/default/missing", "NotFound"),
    ]


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ({}, "InProgress"),
        ({"startTime": "2026-01-01T00:00:00Z", "active": 1}, "Current"),
        ({"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}, "Failed"),
    ],
    ids=["a Job that has not started", "a Job that runs", "a Job that failed"],
)
def test_kstatus_of_objects_as_they_are_given(status: dict[str, object], verdict: str) -> None:
    assert [found.status for found in gitops.status_of({**JOB, "status": status})] == [verdict]
