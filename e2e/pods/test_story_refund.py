"""Story 2: an applied run goes from Pending to Succeeded, and tells what it does."""

import json

from e2e.install import SAMPLES, wait_rolled_out
from e2e.pods.outside import HANG
from e2e.pods.world import Space
from e2e.provider.wire import Route

STORY = ["Pending", "Scheduled", "Running", "Succeeded"]


def test_an_applied_refund_goes_from_pending_to_succeeded_and_kubectl_shows_how(space: Space) -> None:
    space.use_own_provider()
    rule = space.provider.tell(Route.CREATE_REFUND, before=HANG)
    space.apply(SAMPLES / "refund.yaml")
    space.until_hanging(rule)
    columns, row = space.kubectl("get", "agentruns").splitlines()
    assert columns.split() == ["NAME", "PHASE", "STEPS", "TOKEN", "OPEN", "AGE"]
    assert row.split()[:5] == ["refund-4711", "Running", "1/3", "1", "refund"]
    space.provider.release(rule)
    run = space.until_phase("refund-4711", "Succeeded")
    assert space.world.watcher.phases(space.namespace, "refund-4711") == STORY
    assert [space.run("refund-4711").state(step) for step in ("lookup-order", "refund", "notify")] == ["Done"] * 3
    assert [(effect.route, effect.key) for effect in space.provider.effects()] == [
        (Route.CREATE_REFUND, run.entry("refund")["key"]),
        (Route.CREATE_NOTIFICATION, run.entry("notify")["key"]),
    ]
    assert json.loads(run.status["result"]), "the run's own result is kept"
    assert space.kubectl("get", "arun", "refund-4711", "--no-headers").split()[1:3] == ["Succeeded", "3/3"]
    space.kubectl("wait", "agentrun/refund-4711", "--for=condition=Ready", "--timeout=5s")
    space.kubectl("wait", "agentrun/refund-4711", "--for=condition=Finished", "--timeout=5s")


def test_describe_tells_the_story_in_events(space: Space) -> None:
    space.start(space.spec("told", {"step": "look", "action": "Read", "call": "order"}))
    space.until_phase("told", "Succeeded")
    space.until("Event about the end", lambda: "Succeeded" in space.kubectl("describe", "agentrun", "told"))
    told = space.kubectl("describe", "agentrun", "told").rpartition("Events:")[2]
    for reason in ("WorkerStarted", "Claimed", "Succeeded"):
        assert reason in told, told


def test_the_samples_run_as_they_are_under_the_restricted_pod_security_level(space: Space) -> None:
    space.kubectl("apply", "-k", str(SAMPLES))
    wait_rolled_out(space.world.target, space.namespace, "provider")
    space.use_own_provider(start=False)
    for name in ("refund-4711", "refund-shell-4712"):
        space.until_phase(name, "Succeeded", seconds=90)
    key, question = space.until_question("cleanup-17", "Approve")
    assert question["step"] == "delete-record"
    assert space.answer("cleanup-17", key, "Approve").is_success
    space.until_phase("cleanup-17", "Succeeded")
    made = [effect.route for effect in space.provider.effects()]
    assert sorted(made) == sorted([Route.CREATE_REFUND] * 2 + [Route.CREATE_NOTIFICATION] * 3 + [Route.DELETE_RECORD])
