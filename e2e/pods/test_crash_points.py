"""A worker dies at each point around one action. What the provider did is counted by its own log."""

from e2e.pods.outside import HANG
from e2e.pods.runs import notify, read, refund
from e2e.pods.view import RunView
from e2e.pods.world import Space
from e2e.provider.wire import Happening, Route


def paid(space: Space, name: str = "refund") -> int:
    return len(space.provider.effects(run=space.id_of(name), step="pay"))


def test_killed_before_the_effect_the_run_asks_and_the_effect_comes_only_after_the_answer(space: Space) -> None:
    rule = space.provider.tell(Route.CREATE_REFUND, run=space.id_of("refund"), before=HANG)
    space.start(space.spec("refund", refund(), notify()))
    space.until_hanging(rule)
    space.sigkill(space.holder_pod("refund"))
    key, _ = space.until_question("refund", "Reconcile")
    assert paid(space) == 0
    space.until_run("refund", "question that accepts", lambda run: run.questions.get(key, {}).get("acceptsDidNotHappen"))
    assert space.answer("refund", key, "DidNotHappen").is_success
    space.until_phase("refund", "Succeeded")
    assert paid(space) == 1


def test_killed_after_the_effect_the_run_asks_and_the_effect_is_not_repeated(space: Space) -> None:
    rule = space.provider.tell(Route.CREATE_REFUND, run=space.id_of("refund"), after=HANG)
    space.start(space.spec("refund", refund(), notify()))
    space.until_hanging(rule)
    space.delete_pod(space.holder_pod("refund"), grace=0)
    key, _ = space.until_question("refund", "Reconcile")
    assert paid(space) == 1
    assert space.answer("refund", key, "Happened").is_success
    space.until_phase("refund", "Succeeded")
    assert paid(space) == 1


def test_killed_after_done_the_run_goes_on_without_asking(space: Space) -> None:
    rule = space.provider.tell(Route.READ_ORDER, run=space.id_of("refund"), before=HANG)
    space.start(space.spec("refund", refund(), read(), notify()))
    space.until_hanging(rule)
    space.sigkill(space.holder_pod("refund"))
    run = space.until_phase("refund", "Succeeded")
    assert (paid(space), run.entry("pay")["attempt"]) == (1, 1)
    assert "NeedsReconciliation" not in space.world.watcher.phases(space.namespace, "refund")


def test_a_drain_waits_for_the_payment_in_flight_and_the_run_goes_on_elsewhere(space: Space) -> None:
    rule = space.provider.tell(Route.CREATE_REFUND, run=space.id_of("refund"), after=HANG)
    space.start(space.spec("refund", refund(), notify(), grace=60))
    space.until_hanging(rule)
    pod = space.holder_pod("refund")
    space.delete_pod(pod)
    space.until_phase("refund", "Draining")
    space.provider.release(rule)
    run = space.until_phase("refund", "Succeeded")
    assert run.entry("pay")["attempt"] == 1
    answered = {entry.step: entry.pod for entry in space.provider.entries(Happening.ANSWER, run=space.id_of("refund"))}
    assert answered["pay"] == pod
    assert answered["tell"] != pod
    assert "NeedsReconciliation" not in space.world.watcher.phases(space.namespace, "refund")


def test_killed_during_its_drain_with_a_payment_in_flight_the_run_asks(space: Space) -> None:
    rule = space.provider.tell(Route.CREATE_REFUND, run=space.id_of("refund"), after=HANG)
    space.start(space.spec("refund", refund(), notify(), grace=3))
    space.until_hanging(rule)
    space.delete_pod(space.holder_pod("refund"))
    space.until_phase("refund", "Draining", "NeedsReconciliation")
    key, question = space.until_question("refund", "Reconcile")
    space.until_run("refund", "confirmed end of the worker", lambda run: run.questions.get(key, {}).get("workerTerminated"))
    assert space.answer("refund", key, "Happened").is_success, question
    space.until_phase("refund", "Succeeded")


def test_a_process_started_anew_in_its_pod_claims_anew_and_goes_on(space: Space) -> None:
    rule = space.provider.tell(Route.READ_ORDER, run=space.id_of("refund"), before=HANG)
    space.start(space.spec("refund", refund(), read(), notify(), restarts=True))
    space.until_hanging(rule)
    pod = space.holder_pod("refund")
    space.sigkill(pod)
    run = space.until_phase("refund", "Succeeded")
    assert (run.token, run.worker["number"]) == (2, 1)
    answered = {entry.pod for entry in space.provider.entries(Happening.ANSWER, run=space.id_of("refund"))}
    assert answered == {pod}


def test_a_process_started_anew_in_its_pod_does_not_repeat_the_payment_in_flight(space: Space) -> None:
    rule = space.provider.tell(Route.CREATE_REFUND, run=space.id_of("refund"), after=HANG)
    space.start(space.spec("refund", refund(), notify(), restarts=True))
    space.until_hanging(rule)
    space.sigkill(space.holder_pod("refund"))
    key, _ = space.until_question("refund", "Reconcile")
    space.until("end of every worker", lambda: not space.living_pods("refund"))
    assert space.answer("refund", key, "Happened").is_success
    space.until_phase("refund", "Succeeded")


def test_a_worker_that_hangs_past_its_deadline_is_removed_and_a_person_is_asked(space: Space) -> None:
    rule = space.provider.tell(Route.CREATE_REFUND, run=space.id_of("refund"), after=HANG)
    space.start(space.spec("refund", refund(), notify(), planned={"pay": {"timeoutSeconds": 5}}))
    space.until_hanging(rule)
    space.signal(space.holder_pod("refund"), "STOP")
    key, question = space.until_question("refund", "Reconcile")
    assert question["step"] == "pay"
    space.until("end of every worker", lambda: not space.living_pods("refund"))
    assert space.answer("refund", key, "Happened").is_success
    space.until_phase("refund", "Succeeded")


def test_siblings_side_by_side_settle_one_by_one_and_only_the_doubtful_one_is_asked_about(space: Space) -> None:
    rule = space.provider.tell(Route.CREATE_REFUND, run=space.id_of("refund"), step="pay", after=HANG)
    side_by_side = {"parallel": [refund(), read(), notify(), refund("pay-more")]}
    space.start(space.spec("refund", side_by_side))

    def others_done(run: RunView) -> bool:
        return [run.state(step) for step in ("look", "tell", "pay-more")] == ["Done"] * 3

    space.until_run("refund", "three of four done", others_done)
    space.until_hanging(rule)
    space.sigkill(space.holder_pod("refund"))
    key, question = space.until_question("refund", "Reconcile")
    assert (question["step"], len(space.run("refund").questions)) == ("pay", 1)
    assert space.answer("refund", key, "Happened").is_success
    space.until_phase("refund", "Succeeded")
