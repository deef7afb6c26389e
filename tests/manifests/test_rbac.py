"""The rights, as a table: a right that is not in it must not be in the manifests, and the other way round."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.manifests.objects import MANIFESTS, Loaded, load

Right = tuple[str, str, str, str]  # scope: cluster or the namespace; resource.group; name or *; verb

CONTROLLER = {
    "cluster agentruns.stepfence.dev *": "get list watch patch",
    "cluster agentruns/status.stepfence.dev *": "update",
    "cluster agentrunrecords.stepfence.dev *": "get list create patch delete",
    "cluster jobs.batch *": "get list watch create delete",
    "cluster pods *": "get list watch delete",
    "cluster events *": "list",
    "cluster events.events.k8s.io *": "create",
    "cluster leases.coordination.k8s.io *": "get",
    "stepfence-system leases.coordination.k8s.io *": "create",
    "stepfence-system leases.coordination.k8s.io stepfence-controller": "get update",
    "stepfence-system secrets *": "create",
    "stepfence-system secrets stepfence-ca": "get update",
    "stepfence-system secrets stepfence-gateway-tls": "get update",
}
GATEWAY = {
    "cluster agentruns.stepfence.dev *": "get",
    "cluster agentruns/status.stepfence.dev *": "update",
    "cluster agentrunrecords.stepfence.dev *": "get create patch",
    "cluster pods *": "get",
    "cluster jobs.batch *": "get",
    "cluster leases.coordination.k8s.io *": "get create patch",
    "cluster tokenreviews.authentication.k8s.io *": "create",
    "stepfence-system endpointslices.discovery.k8s.io *": "list",
}
PEOPLE = {
    "stepfence-view": {
        "cluster agentruns.stepfence.dev *": "get list watch",
        "cluster agentrunrecords.stepfence.dev *": "get list watch",
    },
    "stepfence-edit": {"cluster agentruns.stepfence.dev *": "create update patch delete"},
}
BASE = load(MANIFESTS / "base")


def objects(kind: str) -> Iterator[dict[str, Any]]:
    return (item.object for item in BASE if item.object["kind"] == kind)


def rights(role: dict[str, Any]) -> set[Right]:
    scope = role["metadata"].get("namespace", "cluster")
    return {
        (scope, f"{resource}.{group}".rstrip("."), name, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", ["*"])
        for verb in rule["verbs"]
    }


def table(rows: dict[str, str]) -> set[Right]:
    found: set[Right] = set()
    for row, verbs in rows.items():
        scope, resource, name = row.split()
        found |= {(scope, resource, name, verb) for verb in verbs.split()}
    return found


def bound_to(account: str) -> set[Right]:
    found: set[Right] = set()
    for kind in ("Role", "ClusterRole"):
        roles = {role["metadata"]["name"]: role for role in objects(kind)}
        for binding in objects(f"{kind}Binding"):
            assert binding["roleRef"]["kind"] == kind
            if {(subject["kind"], subject["name"], subject["namespace"]) for subject in binding["subjects"]} == {
                ("ServiceAccount", account, "stepfence-system")
            }:
                found |= rights(roles[binding["roleRef"]["name"]])
    return found


@pytest.mark.parametrize(("account", "rows"), [("stepfence-controller", CONTROLLER), ("stepfence-gateway", GATEWAY)])
def test_a_server_has_exactly_the_rights_of_the_table(account: str, rows: dict[str, str]) -> None:
    assert bound_to(account) == table(rows)


def test_every_binding_binds_one_of_the_two_servers_and_nobody_else() -> None:
    bindings = [*objects("RoleBinding"), *objects("ClusterRoleBinding")]
    assert len(bindings) == 4
    for binding in bindings:
        (subject,) = binding["subjects"]
        assert subject["name"] in {"stepfence-controller", "stepfence-gateway"}
        assert subject["name"] == binding["metadata"]["name"]


def test_no_right_is_a_wildcard() -> None:
    for role in [*objects("Role"), *objects("ClusterRole")]:
        for rule in role["rules"]:
            assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"], role["metadata"]["name"]


def test_only_the_two_servers_write_a_status() -> None:
    writers = {
        role["metadata"]["name"]
        for role in [*objects("Role"), *objects("ClusterRole")]
        for _, resource, _, _ in rights(role)
        if resource.startswith("agentruns/status")
    }
    assert writers == {"stepfence-controller", "stepfence-gateway"}


def test_only_the_controller_deletes_records_and_nobody_replaces_one() -> None:
    by_verb = {verb: set[str]() for verb in ("delete", "deletecollection", "update")}
    for role in [*objects("Role"), *objects("ClusterRole")]:
        for _, resource, _, verb in rights(role):
            if resource.startswith("agentrunrecords") and verb in by_verb:
                by_verb[verb].add(role["metadata"]["name"])
    assert by_verb == {"delete": {"stepfence-controller"}, "deletecollection": set(), "update": set()}


@pytest.mark.parametrize("name", PEOPLE)
def test_people_get_runs_through_the_clusters_own_roles(name: str) -> None:
    (role,) = [role for role in objects("ClusterRole") if role["metadata"]["name"] == name]
    assert rights(role) == table(PEOPLE[name])
    assert role["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{name.removeprefix('stepfence-')}"] == "true"


def test_every_cluster_role_is_a_servers_or_for_people() -> None:
    names = {role["metadata"]["name"] for role in objects("ClusterRole")}
    assert names == {"stepfence-controller", "stepfence-gateway", *PEOPLE}


def test_a_right_that_is_not_in_the_table_is_seen() -> None:
    (role,) = [role for role in objects("ClusterRole") if role["metadata"]["name"] == "stepfence-gateway"]
    widened = {**role, "rules": [*role["rules"], {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]}
    assert rights(widened) - table(GATEWAY) == {("cluster", "secrets", "*", "get")}


def test_the_gateway_mounts_its_certificate_and_may_read_no_secret() -> None:
    assert not any(resource == "secrets" for _, resource, _, _ in bound_to("stepfence-gateway"))
    (gateway,) = [item for item in BASE if item.id == "Deployment/stepfence-system/stepfence-gateway"]
    assert secrets_of(gateway) == {"stepfence-gateway-tls"}


def test_no_pod_mounts_the_key_of_the_ca() -> None:
    for item in BASE:
        assert "stepfence-ca" not in secrets_of(item)


def secrets_of(item: Loaded) -> set[str]:
    if item.object["kind"] != "Deployment":
        return set()
    volumes = item.object["spec"]["template"]["spec"].get("volumes", [])
    return {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
