"""The Job of a worker: one golden document, and one case for each thing that a template may say itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepfence.controller.jobs import Injection, build_job
from stepfence.core.decide import WorkerPlan
from stepfence.core.model import Run
from stepfence.core.words import Action
from stepfence.testing.builders import new_run, step

GOLDEN = Path(__file__).parent / "golden_job.json"
TOLD = Injection("https://stepfence-gateway.stepfence-system.svc:8443", "-----BEGIN CERTIFICATE-----", margin=10)
PLAN = WorkerPlan(3, "refund-d1e5b-3")


def run(*timeouts: int) -> Run:
    return new_run(*(step(f"step-{seconds}", Action.PAYMENT, timeout=seconds) for seconds in timeouts))


def made(template: dict[str, Any], *timeouts: int) -> dict[str, Any]:
    return build_job(run(*(timeouts or (60,))), template, PLAN, TOLD)


def pod(spec: dict[str, Any], *timeouts: int, **metadata: Any) -> dict[str, Any]:
    """The pod spec made of that one."""
    found: dict[str, Any] = made({"metadata": metadata, "spec": {"containers": [{"name": "main"}], **spec}}, *timeouts)["spec"]["template"][
        "spec"
    ]
    return found


def test_the_whole_job_is_as_recorded() -> None:
    template = {
        "metadata": {"labels": {"team": "support", "kueue.x-k8s.io/queue-name": "agents"}},
        "spec": {"containers": [{"name": "main", "image": "agent:1", "env": [{"name": "MODEL", "value": "m"}]}]},
    }
    assert made(template, 30, 90) == json.loads(GOLDEN.read_text())


def test_the_template_itself_is_left_alone() -> None:
    template = {"spec": {"containers": [{"name": "main", "env": [], "securityContext": {}}]}}
    before = json.dumps(template)
    made(template)
    assert json.dumps(template) == before


def test_no_container_is_started_again_in_its_pod_but_a_sidecar() -> None:
    again = {"restartPolicy": "Always", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}
    made = pod({"containers": [{"name": "main", **again}, {"name": "beside", **again}], "initContainers": [{"name": "proxy", **again}]})
    assert made["restartPolicy"] == "Never"
    assert all(not again.keys() & container.keys() for container in made["containers"])
    assert made["initContainers"][0]["restartPolicy"] == "Always"


@pytest.mark.parametrize(
    ("timeouts", "given", "grace"),
    [((30, 90), {}, 100), ((30,), {"terminationGracePeriodSeconds": 5}, 5)],
    ids=["the longest step plus the margin", "the template's own"],
)
def test_grace_is(timeouts: tuple[int, ...], given: dict[str, Any], grace: int) -> None:
    assert pod(given, *timeouts)["terminationGracePeriodSeconds"] == grace


def test_grace_of_a_run_without_a_plan_is_that_of_a_default_step() -> None:
    job = build_job(new_run(), {"spec": {"containers": [{"name": "main"}]}}, PLAN, TOLD)
    assert job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 70


@pytest.mark.parametrize(
    ("annotations", "worker"),
    [
        ({}, "first"),
        ({"kubectl.kubernetes.io/default-container": "second"}, "second"),
        ({"kubectl.kubernetes.io/default-container": "no"}, "first"),
    ],
    ids=["the first", "the default one", "the first, when the default one is not there"],
)
def test_the_worker_is_the_container_that_is(annotations: dict[str, str], worker: str) -> None:
    containers = pod({"containers": [{"name": "first"}, {"name": "second"}]}, annotations=annotations)["containers"]
    assert [item["name"] for item in containers if "env" in item] == [worker]
    assert [item["name"] for item in containers if "lifecycle" in item] == [worker]


@pytest.mark.parametrize(
    ("annotations", "lifecycle", "hook"),
    [
        ({}, {}, {"exec": {"command": ["stepfence", "drain"]}}),
        ({"stepfence.dev/prestop": "false"}, {}, None),
        ({"stepfence.dev/prestop-command": "/app/drain --now"}, {}, {"exec": {"command": ["/app/drain", "--now"]}}),
        ({}, {"preStop": {"sleep": {"seconds": 1}}}, {"sleep": {"seconds": 1}}),
        ({}, {"postStart": {"sleep": {"seconds": 1}}}, {"exec": {"command": ["stepfence", "drain"]}}),
    ],
    ids=[
        "ours",
        "none, when an annotation says so",
        "another command, when an annotation says so",
        "the template's own",
        "ours beside another hook",
    ],
)
def test_the_pre_stop_hook_is(annotations: dict[str, str], lifecycle: dict[str, Any], hook: dict[str, Any] | None) -> None:
    (container,) = pod({"containers": [{"name": "main", "lifecycle": lifecycle}]}, annotations=annotations)["containers"]
    assert container["lifecycle"].get("preStop") == hook


@pytest.mark.parametrize(
    ("spec", "container", "expected_pod", "expected_container"),
    [
        (
            {},
            {},
            {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        ),
        (
            {"runAsUser": 0, "seccompProfile": {"type": "Unconfined"}},
            {"capabilities": {"drop": ["NET_RAW"]}},
            {"runAsUser": 0, "seccompProfile": {"type": "Unconfined"}},
            {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["NET_RAW"]}},
        ),
        (
            {},
            {"runAsUser": 0, "allowPrivilegeEscalation": True, "capabilities": {"add": ["CHOWN"]}},
            {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            {"runAsUser": 0, "runAsNonRoot": False, "allowPrivilegeEscalation": True, "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}},
        ),
        (
            {"runAsNonRoot": False},
            {"privileged": True},
            {"runAsNonRoot": False, "seccompProfile": {"type": "RuntimeDefault"}},
            {"privileged": True},
        ),
        (
            {"runAsNonRoot": False},
            {"capabilities": {"add": ["SYS_ADMIN"]}},
            {"runAsNonRoot": False, "seccompProfile": {"type": "RuntimeDefault"}},
            {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}},
        ),
    ],
    ids=[
        "restricted, where nothing is said",
        "what the pod says",
        "what the container says",
        "nothing for a privileged one",
        "no contradiction",
    ],
)
def test_security_is(
    spec: dict[str, Any], container: dict[str, Any], expected_pod: dict[str, Any], expected_container: dict[str, Any]
) -> None:
    found = pod({"securityContext": spec, "containers": [{"name": "main", "securityContext": container}]})
    assert found["securityContext"] == expected_pod
    assert found["containers"][0]["securityContext"] == expected_container


def test_init_containers_are_secured_too_and_told_nothing() -> None:
    (init,) = pod({"initContainers": [{"name": "init"}]})["initContainers"]
    assert init == {"name": "init", "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}


def test_a_variable_of_ours_in_the_template_does_not_win() -> None:
    (container,) = pod({"containers": [{"name": "main", "env": [{"name": "STEPFENCE_GATEWAY", "value": "https://elsewhere"}]}]})[
        "containers"
    ]
    assert [item["value"] for item in container["env"] if item["name"] == "STEPFENCE_GATEWAY"] == [TOLD.gateway_url]


def test_labels_of_ours_in_the_template_do_not_win() -> None:
    job = made({"metadata": {"labels": {"stepfence.dev/run": "other"}}, "spec": {"containers": [{"name": "main"}]}})
    assert job["metadata"]["labels"]["stepfence.dev/run"] == "refund"
    assert job["spec"]["template"]["metadata"]["labels"]["stepfence.dev/run"] == "refund"
