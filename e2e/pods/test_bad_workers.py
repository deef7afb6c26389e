"""Workers that cannot start, and input that cannot be taken: said in a condition within a minute, and given up at the limit."""

from typing import Any

from e2e.pods.runs import read
from e2e.pods.world import Space

MINUTE = 60


def until_told(space: Space, name: str, *words: str) -> None:
    """Wait until the condition WorkerReady is False with one of the words in its reason or message."""

    def told(status: Any) -> bool:
        condition = status.condition("WorkerReady")
        text = f"{condition.get('reason')} {condition.get('message')}"
        return condition.get("status") == "False" and any(word in text for word in words)

    space.until_run(name, f"condition that says {' or '.join(words)}", told, seconds=MINUTE)


def until_given_up(space: Space, name: str, *words: str) -> None:
    """Wait until the run is Failed at the limit with the last worker's reason kept."""
    run = space.until_phase(name, "Failed", seconds=2 * MINUTE)
    assert run.status["reason"] == "BackoffLimitExceeded"
    assert any(word in run.status["message"] for word in words), run.status["message"]
    stalled = run.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "BackoffLimitExceeded")


def test_an_image_that_does_not_exist_is_told_and_given_up(space: Space) -> None:
    missing = space.spec("lost", read(), image="localhost/no-such-image:dev", spec={"backoffLimit": 0})
    space.start(missing)
    until_told(space, "lost", "ImagePullBackOff", "ErrImagePull", "no-such-image")
    until_given_up(space, "lost", "Image", "no-such-image")


def test_a_pod_that_quota_refuses_is_told_and_starts_when_there_is_room(space: Space) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    space.apply(quota)
    space.until("quota in force", lambda: "pods" in space.kubectl("get", "quota", "none", "-o", "jsonpath={.status.hard}"))
    space.start(space.spec("waits", read()))
    until_told(space, "waits", "PodCreateRefused")
    assert "exceeded quota" in space.run("waits").condition("WorkerReady")["message"]
    space.kubectl("delete", "quota", "none")
    space.until_phase("waits", "Succeeded", seconds=120)


def test_a_pod_that_pod_security_refuses_is_told_and_given_up(space: Space) -> None:
    space.start(space.spec("rooted", read(), pod={"hostNetwork": True}, spec={"backoffLimit": 0}))
    until_told(space, "rooted", "PodCreateRefused")
    assert "violates PodSecurity" in space.run("rooted").condition("WorkerReady")["message"]
    until_given_up(space, "rooted", "PodSecurity")


def test_a_crash_at_start_is_told_backed_off_and_given_up(space: Space) -> None:
    crashing = space.spec("crash", read(), command=("sh", "-c", "echo no such module >&2; exit 3"), spec={"backoffLimit": 1})
    space.start(crashing)
    until_told(space, "crash", "Crashed", "exit code 3")
    until_given_up(space, "crash", "exit code 3")
    assert len(space.pods("crash")) == 2, "the limit is for retries"


def test_a_worker_that_ends_well_without_finish_has_not_succeeded(space: Space) -> None:
    space.start(space.spec("silent", read(), command=("sh", "-c", "exit 0"), spec={"backoffLimit": 0}))
    until_given_up(space, "silent", "exit code 0 without finish")


def test_a_broken_image_is_mended_by_the_template_without_losing_the_ledger(space: Space) -> None:
    spec = space.spec("mended", read(), image="localhost/no-such-image:dev")
    space.start(spec)
    until_told(space, "mended", "ImagePullBackOff", "ErrImagePull", "no-such-image")
    spec.image = space.spec("mended").image
    mended = space.patch("mended", {"template": spec.manifest()["spec"]["template"]})
    assert mended.is_success, mended.text
    space.until_phase("mended", "Succeeded", seconds=120)


def test_input_over_64_kib_fails_with_the_reason_before_any_pod_starts(space: Space) -> None:
    spec = space.spec("large", {**read(), "body": {"text": "x" * (64 * 1024)}})
    space.start(spec)
    run = space.until_phase("large", "Failed")
    assert run.status["reason"] == "InvalidSpec"
    assert "input" in run.status["message"]
    assert space.pods("large") == []
    assert space.world.api.items(f"/apis/batch/v1/namespaces/{space.namespace}/jobs") == []
