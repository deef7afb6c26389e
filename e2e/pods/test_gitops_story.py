"""Story 5: what GitOps tools do to a run again and again changes nothing, and what they wait by is right in every phase."""

import json
from collections.abc import Callable

import pytest

from e2e import gitops
from e2e.pods.api import Object
from e2e.pods.outside import HANG
from e2e.pods.runs import delete, notify, read, refund
from e2e.pods.world import Space
from e2e.provider.wire import Route

Way = Callable[[Space, Object], object]

WAYS: dict[str, Way] = {
    "client-side": lambda space, manifest: space.apply(manifest),
    "server-side": lambda space, manifest: space.apply(manifest, "--server-side"),
    "as Flux does": lambda space, manifest: gitops.apply(space.world.target.kubeconfig, manifest, namespace=space.namespace),
}
KSTATUS = {
    "Pending": "InProgress",
    "Scheduled": "InProgress",
    "Running": "InProgress",
    "Draining": "InProgress",
    "AwaitingApproval": "InProgress",
    "Cancelling": "InProgress",
    "Held": "InProgress",
    "NeedsReconciliation": "Failed",
    "Failed": "Failed",
    "Cancelled": "Failed",
    "Succeeded": "Current",
}


def spec_of(space: Space, name: str) -> tuple[int, Object]:
    found = json.loads(space.kubectl("get", "agentrun", name, "-o", "json"))
    return found["metadata"]["generation"], found["spec"]


@pytest.mark.parametrize("apply", WAYS.values(), ids=WAYS.keys())
def test_a_second_apply_changes_nothing_and_wipes_no_decision(space: Space, apply: Way) -> None:
    paying = space.provider.tell(Route.CREATE_REFUND, run=space.id_of("refund"), after=HANG)
    looking = space.provider.tell(Route.READ_ORDER, run=space.id_of("refund"), before=HANG)
    manifest = space.spec("refund", refund(), read(), notify()).manifest()
    apply(space, manifest)
    space.until_hanging(paying)
    space.sigkill(space.holder_pod("refund"))
    key, question = space.until_question("refund", "Reconcile")
    before = spec_of(space, "refund")
    apply(space, manifest)
    assert spec_of(space, "refund") == before, "while a question is open"
    assert space.paste(question["patch"]).returncode == 0
    assert space.patch("refund", {"suspend": True}).is_success
    space.until_phase("refund", "Held")
    decided = spec_of(space, "refund")
    assert decided[1]["decisions"] == {key: {"verdict": "Happened"}}
    apply(space, manifest)
    assert spec_of(space, "refund") == decided, "what people decided, and that they hold the run, is kept"
    assert space.patch("refund", {"suspend": False}).is_success
    space.until_hanging(looking)
    space.provider.release(looking)
    space.until_phase("refund", "Succeeded")
    apply(space, manifest)
    assert spec_of(space, "refund")[1]["decisions"] == decided[1]["decisions"], "when all is over"
    assert space.run("refund").token == 3


def test_flux_calls_the_second_apply_unchanged(space: Space) -> None:
    manifest = space.spec("calm", read()).manifest()
    subject = f"AgentRun/{space.namespace}/calm"
    assert gitops.apply(space.world.target.kubeconfig, manifest, namespace=space.namespace) == {subject: "created"}
    space.until_phase("calm", "Succeeded")
    assert gitops.apply(space.world.target.kubeconfig, manifest, namespace=space.namespace) == {subject: "unchanged"}


def test_kstatus_is_right_in_every_phase(space: Space) -> None:
    _through_drain_and_doubt_to_failed(space)
    _through_approval_and_hold_to_cancelled(space)
    space.start(space.spec("short", read()))
    space.until_phase("short", "Succeeded")
    seen = space.world.watcher.first_in_phase(space.namespace)
    assert seen.keys() == KSTATUS.keys()
    verdicts = gitops.status_of(*seen.values())
    assert {phase: verdict.status for phase, verdict in zip(seen, verdicts, strict=True)} == KSTATUS
    subjects = [f"agentruns.stepfence.dev/{space.namespace}/{name}" for name in ("short", "doubtful", "asking")]
    live = gitops.status(space.world.target.kubeconfig, *subjects)
    assert [verdict.status for verdict in live] == ["Current", "Failed", "Failed"]


def _through_drain_and_doubt_to_failed(space: Space) -> None:
    paying = space.provider.tell(Route.CREATE_REFUND, run=space.id_of("doubtful"), after=HANG)
    space.start(space.spec("doubtful", refund()))
    space.until_hanging(paying)
    space.delete_pod(space.holder_pod("doubtful"))
    key, _ = space.until_question("doubtful", "Reconcile")
    assert space.answer("doubtful", key, "Abandon").is_success
    space.until_phase("doubtful", "Failed")


def _through_approval_and_hold_to_cancelled(space: Space) -> None:
    deleting = space.provider.tell(Route.DELETE_RECORD, run=space.id_of("asking"), after=HANG)
    space.start(space.spec("asking", delete(), grace=30))
    space.until_phase("asking", "AwaitingApproval")
    key, _ = space.until_question("asking", "Approve")
    assert space.patch("asking", {"suspend": True}).is_success
    space.until_phase("asking", "Held")
    assert space.patch("asking", {"suspend": False, "decisions": {key: {"verdict": "Approve"}}}).is_success
    space.until_hanging(deleting)
    assert space.patch("asking", {"cancel": True}).is_success
    space.until_phase("asking", "Cancelling")
    space.provider.release(deleting)
    space.until_phase("asking", "Cancelled")
