"""Every pod that we ship meets the restricted Pod Security level and more; the network says who may talk to whom."""

from typing import Any

import pytest

from tests.manifests.objects import MANIFESTS, Loaded, load, pod_specs

WORKLOADS = [item for folder in ("base", "samples") for item in load(MANIFESTS / folder) if list(pod_specs(item.object))]
SERVERS = [item for item in WORKLOADS if item.object["metadata"].get("namespace") == "stepfence-system"]


def of(items: list[Loaded]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("item", items, ids=lambda item: item.id)


def pod(item: Loaded) -> dict[str, Any]:
    (spec,) = pod_specs(item.object)
    return spec


def test_the_workloads_are_the_ones_that_are_known() -> None:
    assert [item.id for item in WORKLOADS] == [
        "Deployment/stepfence-system/stepfence-controller",
        "Deployment/stepfence-system/stepfence-gateway",
        "Deployment//provider",
        "AgentRun//refund-4711",
        "AgentRun//refund-shell-4712",
        "AgentRun//cleanup-17",
    ]


@of(WORKLOADS)
def test_pods_run_as_nobody_in_particular_under_the_default_seccomp_profile(item: Loaded) -> None:
    context = pod(item)["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == 65532
    assert context["runAsGroup"] == 65532
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


@of(WORKLOADS)
def test_containers_cannot_gain_rights_or_write_their_root(item: Loaded) -> None:
    for container in pod(item)["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@of(WORKLOADS)
def test_pods_share_nothing_with_their_node(item: Loaded) -> None:
    spec = pod(item)
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers", "ephemeralContainers"} & set(spec)
    assert all("hostPath" not in volume for volume in spec.get("volumes", []))
    assert all("hostPort" not in port for container in spec["containers"] for port in container.get("ports", []))


@of(WORKLOADS)
def test_every_container_says_what_it_needs_and_has_a_memory_limit(item: Loaded) -> None:
    for container in pod(item)["containers"]:
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        assert set(container["resources"]["limits"]) == {"memory"}


@of(WORKLOADS)
def test_only_the_two_servers_hold_an_api_token(item: Loaded) -> None:
    assert pod(item)["automountServiceAccountToken"] is (item in SERVERS)
    assert pod(item)["enableServiceLinks"] is False


def test_service_accounts_give_no_token_to_pods_that_do_not_ask() -> None:
    accounts = [item.object for item in load(MANIFESTS / "base") if item.object["kind"] == "ServiceAccount"]
    assert [account["automountServiceAccountToken"] for account in accounts] == [False, False]


def test_the_namespace_enforces_the_restricted_level() -> None:
    (namespace,) = [item.object for item in load(MANIFESTS / "base") if item.object["kind"] == "Namespace"]
    labels = namespace["metadata"]["labels"]
    assert {labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "audit", "warn")} == {"restricted"}


@of(SERVERS)
def test_servers_have_two_replicas_that_are_spread_probed_and_rolled_one_by_one(item: Loaded) -> None:
    spec = item.object["spec"]
    container = pod(item)["containers"][0]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert pod(item)["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["startupProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_the_gateway_leaves_room_for_calls_in_flight_after_its_pause() -> None:
    (gateway,) = [item for item in SERVERS if item.object["metadata"]["name"] == "stepfence-gateway"]
    pause = pod(gateway)["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod(gateway)["terminationGracePeriodSeconds"] >= pause + 30


def policies() -> dict[str, dict[str, Any]]:
    return {
        item.object["metadata"]["name"]: item.object["spec"] for item in load(MANIFESTS / "base") if item.object["kind"] == "NetworkPolicy"
    }


METRICS = [{"namespaceSelector": {"matchLabels": {"stepfence.dev/metrics": "true"}}}]
WORKERS = [
    {
        "namespaceSelector": {},
        "podSelector": {"matchExpressions": [{"key": "stepfence.dev/run", "operator": "Exists"}]},
    }
]


def test_what_no_policy_allows_is_denied_in_both_directions() -> None:
    assert policies()["stepfence-default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("stepfence-controller", [(METRICS, ["health"])]),
        ("stepfence-gateway", [(WORKERS, ["https"]), (METRICS, ["health"])]),
    ],
)
def test_only_workers_and_scrapers_get_in(name: str, allowed: list[tuple[Any, list[str]]]) -> None:
    ingress = policies()[name]["ingress"]
    assert [(rule["from"], [port["port"] for port in rule["ports"]]) for rule in ingress] == allowed


@pytest.mark.parametrize("name", ["stepfence-controller", "stepfence-gateway"])
def test_servers_reach_names_and_the_api_server_only(name: str) -> None:
    names, api_server = policies()[name]["egress"]
    assert names["to"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]
    assert {port["port"] for port in names["ports"]} == {53}
    assert api_server == {"ports": [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 6443}]}
