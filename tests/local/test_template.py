"""A template that cannot become a process is refused by name before anything is stored: one that is found later stops all runs."""

from __future__ import annotations

from typing import Any

import pytest

from stepfence.core.errors import Code, Refused
from stepfence.local.manifest import admit_new
from stepfence.local.template import check_template

POD = "spec.template.spec"
WORKER = f"{POD}.containers[0]"


def template(worker: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    container = {"name": "worker", "command": ["true"], **(worker or {})}
    return {"spec": {"containers": [container]}, **changes}


@pytest.mark.parametrize(
    ("worker", "field"),
    [
        ({"command": "true"}, f"{WORKER}.command"),
        ({"command": ["a", 5]}, f"{WORKER}.command[1]"),
        ({"command": ["a\0"]}, f"{WORKER}.command[0]"),
        ({"args": ["a\0b"]}, f"{WORKER}.args[0]"),
        ({"workingDir": 5}, f"{WORKER}.workingDir"),
        ({"workingDir": "a\0"}, f"{WORKER}.workingDir"),
        ({"env": {"a": "b"}}, f"{WORKER}.env"),
        ({"env": ["a"]}, f"{WORKER}.env[0]"),
        ({"env": [{"name": "A=B", "value": ""}]}, f"{WORKER}.env[0].name"),
        ({"env": [{"name": "", "value": ""}]}, f"{WORKER}.env[0].name"),
        ({"env": [{"name": "A", "value": "a\0"}]}, f"{WORKER}.env[0].value"),
        ({"env": [{"name": "A", "value": 5}]}, f"{WORKER}.env[0].value"),
        ({"lifecycle": "drain"}, f"{WORKER}.lifecycle"),
        ({"lifecycle": {"preStop": "drain"}}, f"{WORKER}.lifecycle.preStop"),
        ({"lifecycle": {"preStop": {"exec": ["drain"]}}}, f"{WORKER}.lifecycle.preStop.exec"),
        ({"lifecycle": {"preStop": {"exec": {"command": "drain"}}}}, f"{WORKER}.lifecycle.preStop.exec.command"),
        ({"lifecycle": {"preStop": {"exec": {"command": [1]}}}}, f"{WORKER}.lifecycle.preStop.exec.command[0]"),
        ({"volumeMounts": {"a": "b"}}, f"{WORKER}.volumeMounts"),
        ({"securityContext": "none"}, f"{WORKER}.securityContext"),
        ({"securityContext": {"capabilities": {"add": 5}}}, f"{WORKER}.securityContext.capabilities.add"),
        ({"name": 5}, f"{WORKER}.name"),
    ],
)
def test_a_container_that_cannot_be_started_is_refused(worker: dict[str, Any], field: str) -> None:
    refuses(template(worker), field)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"terminationGracePeriodSeconds": -1}, f"{POD}.terminationGracePeriodSeconds"),
        ({"terminationGracePeriodSeconds": True}, f"{POD}.terminationGracePeriodSeconds"),
        ({"terminationGracePeriodSeconds": 10**20}, f"{POD}.terminationGracePeriodSeconds"),
        ({"securityContext": "none"}, f"{POD}.securityContext"),
        ({"volumes": "none"}, f"{POD}.volumes"),
    ],
)
def test_a_pod_that_cannot_be_started_is_refused(changes: dict[str, Any], field: str) -> None:
    given = template()
    refuses({"spec": {**given["spec"], **changes}}, field)


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ("none", "spec.template.metadata"),
        (None, "spec.template.metadata"),
        ({"labels": "none"}, "spec.template.metadata.labels"),
        ({"annotations": ["a"]}, "spec.template.metadata.annotations"),
        ({"annotations": {"a": 5}}, "spec.template.metadata.annotations.a"),
    ],
)
def test_metadata_of_another_shape_is_refused_by_name(metadata: Any, field: str) -> None:
    given = template(metadata=metadata)
    refuses(given, field)
    manifest = {"apiVersion": "stepfence.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "run"}, "spec": {"template": given}}
    with pytest.raises(Refused) as refused:
        admit_new(manifest, "default")
    assert refused.value.field == field


def test_what_has_no_meaning_here_is_left_alone() -> None:
    nothing = dict.fromkeys(["env", "lifecycle", "workingDir", "volumeMounts", "securityContext"])
    check_template(template({**nothing, "image": "refund:1", "resources": {"limits": {"cpu": 1}}}, metadata={"labels": None}))


def refuses(given: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        check_template(given)
    assert (refused.value.code, refused.value.field) == (Code.BAD_REQUEST, field)
