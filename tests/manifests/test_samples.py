"""What the samples must and must not say."""

import pytest

from tests.manifests.objects import MANIFESTS, Loaded, load

RUNS = [item for item in load(MANIFESTS / "samples") if item.object["kind"] == "AgentRun"]
# Written by people with kubectl patch: in an applied manifest, the next apply would undo what they decided.
NOT_IN_MANIFESTS = {"suspend", "cancel", "decisions", "ttlSecondsAfterFinished"}


def of_runs() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("item", RUNS, ids=lambda item: item.id)


def test_there_is_a_sample_for_each_way_to_use_it() -> None:
    assert [item.file.name for item in RUNS] == ["refund.yaml", "refund-shell.yaml", "approval.yaml"]


@of_runs()
def test_samples_leave_to_people_what_people_decide(item: Loaded) -> None:
    assert not NOT_IN_MANIFESTS & set(item.object["spec"])
    assert "status" not in item.object


@of_runs()
def test_samples_name_no_namespace_and_spend_their_identity_once(item: Loaded) -> None:
    assert "namespace" not in item.object["metadata"]
    assert item.object["spec"]["runID"] == item.object["metadata"]["name"]


@pytest.mark.parametrize("item", RUNS[:2], ids=lambda item: item.id)
def test_the_refund_reads_pays_and_tells(item: Loaded) -> None:
    steps = item.object["spec"]["plan"]["steps"]
    assert [(step["id"], step["action"]) for step in steps] == [
        ("lookup-order", "Read"),
        ("refund", "Payment"),
        ("notify", "Create"),
    ]


def test_the_approval_sample_deletes_only_after_a_persons_word() -> None:
    first = RUNS[2].object["spec"]["plan"]["steps"][0]
    assert first["action"] == "Delete"
    assert first["approval"] == {"expiresAfterSeconds": 3600}


@of_runs()
def test_workers_call_the_provider_that_the_samples_bring(item: Loaded) -> None:
    services = [other.object for other in load(MANIFESTS / "samples") if other.object["kind"] == "Service"]
    (port,) = services[0]["spec"]["ports"]
    address = f"http://{services[0]['metadata']['name']}:{port['port']}"
    (container,) = item.object["spec"]["template"]["spec"]["containers"]
    assert {"name": "PROVIDER_URL", "value": address} in container["env"]
