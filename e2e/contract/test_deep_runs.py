"""One object that is nested too deep keeps no controller from its work: with a real API server, which takes 10,000 levels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Cluster, eventually
from e2e.contract.controllers import ControllerProcess, allow_controllers
from e2e.contract.kube import GROUP_VERSION, TEMPLATE, crd, install_crds

_SECONDS = 60.0
# The object itself, `spec` and `input` are three of what the API server takes.
_DEEPEST = 10_000 - 3
_CUT = 'stepfence_watch_troubles_total{kind="cut"}'


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """An API server of our own: a controller sees all of it."""
    with Cluster("contract-deep", nodes=0) as cluster:
        install_crds(cluster, crd("agentruns"), crd("agentrunrecords"))
        yield cluster


def run(name: str, levels: int = 0) -> str:
    """The manifest of a run whose input has that many levels below its member."""
    manifest = {
        "apiVersion": GROUP_VERSION,
        "kind": "AgentRun",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"input": {"a": "HERE"}, "template": TEMPLATE, "plan": {"steps": [{"id": "look", "action": "Read"}]}},
    }
    return json.dumps(manifest).replace('"HERE"', "[" * levels + "1" + "]" * levels)


def create(cluster: Cluster, *manifests: str) -> None:
    for manifest in manifests:
        cluster.kubectl("create", "--raw", f"/apis/{GROUP_VERSION}/namespaces/default/agentruns", "-f", "-", stdin=manifest)


def status(cluster: Cluster, name: str) -> dict[str, Any]:
    # Of a deep one the whole cannot be read here either.
    told = cluster.kubectl("get", "agentrun", name, "-o", "jsonpath={.status}")
    found: dict[str, Any] = json.loads(told or "{}")
    return found


def worked(cluster: Cluster, controller: ControllerProcess, name: str) -> bool:
    controller.require_alive()
    return "worker" in status(cluster, name)


def ended(cluster: Cluster, controller: ControllerProcess, name: str) -> bool:
    controller.require_alive()
    return "outcome" in status(cluster, name)


def wait(what: str, probe: Any, controller: ControllerProcess) -> None:
    eventually(what, probe, seconds=_SECONDS, evidence=lambda: controller.log.read_text()[-4000:])


def test_a_run_of_any_depth_ends_by_name_and_the_others_go_on_in_the_watch_and_after_a_restart(cluster: Cluster, tmp_path: Path) -> None:
    kubeconfig = allow_controllers(cluster, tmp_path)
    # Told by a list at first, one behind the other in a page.
    create(cluster, run("first"), run("listed", 2_000), run("last"))
    with ControllerProcess("one", tmp_path, kubeconfig) as one:
        one.ready()
        for name in ("first", "last"):
            wait(f"a worker of {name}", partial(worked, cluster, one, name), one)
        wait("an end of listed", partial(ended, cluster, one, "listed"), one)
        # Then by a watch.
        create(cluster, run("watched", _DEEPEST), run("later"))
        wait("a worker of later", partial(worked, cluster, one, "later"), one)
        wait("an end of watched", partial(ended, cluster, one, "watched"), one)
        assert one.figure(_CUT) >= 2
        assert one.figure("stepfence_unreadable_runs") == 0
    for name in ("listed", "watched"):
        ending = status(cluster, name)
        assert (ending["outcome"], ending["reason"]) == ("Failed", "InvalidSpec")
        assert ending["message"] == "spec.input: nested deeper than 64 levels"
        assert "worker" not in ending
    told = cluster.kubectl("get", "events", "--field-selector", "involvedObject.name=watched", "-o", "jsonpath={.items[*].message}")
    assert "spec.input: nested deeper than 64 levels" in told
    # And when all of them are there before it starts.
    create(cluster, run("new"))
    with ControllerProcess("two", tmp_path, kubeconfig) as two:
        two.ready()
        wait("a worker of new", partial(worked, cluster, two, "new"), two)


def test_the_api_server_refuses_what_is_deeper_than_the_controller_is_tried_with(cluster: Cluster) -> None:
    with pytest.raises(Exception, match="exceeded max depth"):
        create(cluster, run("too-deep", _DEEPEST + 1))
