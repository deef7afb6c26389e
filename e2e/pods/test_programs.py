"""What programs bring: plans of their own, shell scripts, large bodies, identities that are spent once."""

import hashlib
import json

from e2e.install import SAMPLES
from e2e.pods.api import RUNS
from e2e.pods.outside import HANG
from e2e.pods.runs import notify, read, refund
from e2e.pods.world import Space
from e2e.provider.wire import Happening, Route


def test_a_shell_script_of_wrapped_commands_runs_end_to_end(space: Space) -> None:
    space.use_own_provider()
    space.apply(SAMPLES / "refund-shell.yaml")
    run = space.until_phase("refund-shell-4712", "Succeeded", seconds=90)
    made = {effect.route: effect.key for effect in space.provider.effects()}
    assert made == {Route.CREATE_REFUND: run.entry("refund")["key"], Route.CREATE_NOTIFICATION: run.entry("notify")["key"]}
    assert run.token == 1, "the calls of one script share one claim"


def test_a_shell_script_whose_pod_dies_mid_payment_asks_and_does_not_pay_again(space: Space) -> None:
    space.use_own_provider()
    rule = space.provider.tell(Route.CREATE_REFUND, after=HANG)
    space.apply(SAMPLES / "refund-shell.yaml")
    space.until_hanging(rule, seconds=90)
    space.delete_pod(space.holder_pod("refund-shell-4712"), grace=0)
    key, question = space.until_question("refund-shell-4712", "Reconcile")
    assert question["step"] == "refund"
    assert space.answer("refund-shell-4712", key, "Happened", result={"id": "re_1", "amount": 4200}).is_success
    space.until_phase("refund-shell-4712", "Succeeded", seconds=90)
    assert len(space.provider.effects(route=Route.CREATE_REFUND)) == 1


def test_a_plan_that_the_worker_brings_is_recorded_once_and_only_grows(space: Space) -> None:
    planned = [{"id": "look", "action": "Read"}, {"id": "pay", "action": "Payment"}]
    longer = [*planned, {"id": "tell", "action": "Create"}]
    script = ({"plan": planned}, read(), refund(), {"plan": longer}, notify())
    space.start(space.spec("dynamic", *script, by_worker=True))
    run = space.until_phase("dynamic", "Succeeded")
    assert run.status["plan"]["source"] == "Worker"
    assert [step["id"] for step in run.status["plan"]["steps"]] == ["look", "pay", "tell"]


def test_large_payloads_and_results_are_kept_in_records_and_replayed(space: Space) -> None:
    rule = space.provider.tell(Route.READ_ORDER, run=space.id_of("large"), step="hold", before=HANG)
    space.start(space.spec("large", refund(pad=20_000), read("hold"), notify()))
    space.until_hanging(rule)
    entry = space.run("large").entry("pay")
    assert "result" not in entry
    record = space.world.api.get(f"{RUNS}/namespaces/{space.namespace}/agentrunrecords/{entry['resultRecord']}")
    assert record is not None
    data = record["spec"]["data"]
    assert len(data) > 20_000
    assert f"sha256:{hashlib.sha256(data.encode()).hexdigest()}" == entry["resultDigest"]
    space.sigkill(space.holder_pod("large"))
    run = space.until_phase("large", "Succeeded")
    assert json.loads(run.status["result"])["pay"] == json.loads(data)["id"], "the next worker got it back whole"
    assert len(json.dumps(run.raw)) < 30_000


def test_a_result_too_large_to_keep_leaves_the_step_done(space: Space) -> None:
    space.start(space.spec("huge", refund(huge=300_000), notify()))
    run = space.until_phase("huge", "Succeeded")
    entry = run.entry("pay")
    assert entry["state"] == "Done"
    assert "result" not in entry
    assert "resultRecord" not in entry
    assert entry["resultBytes"] > 300_000
    assert entry["resultDigest"].startswith("sha256:")


def test_two_runs_of_one_run_id_the_second_fails_with_already_ran_and_starts_no_pod(space: Space) -> None:
    identity = {"runID": "refund-4711"}
    space.start(space.spec("first", refund(), spec=identity))
    space.until_phase("first", "Succeeded")
    space.start(space.spec("second", refund(), spec=identity))
    run = space.until_phase("second", "Failed")
    assert run.status["reason"] == "AlreadyRan"
    assert space.pods("second") == []
    assert space.provider.entries(Happening.REQUEST, run=space.id_of("second")) == []


def test_a_run_that_was_deleted_and_applied_again_under_its_run_id_does_not_run_again(space: Space) -> None:
    spec = space.spec("refund", refund(), spec={"runID": "refund-4711"})
    space.start(spec)
    space.until_phase("refund", "Succeeded")
    space.kubectl("delete", "agentrun", "refund", "--timeout=30s")
    space.until("end of the run", lambda: not space.run("refund").raw)
    space.start(spec)
    run = space.until_phase("refund", "Failed")
    assert run.status["reason"] == "AlreadyRan"


def test_a_deleted_run_takes_its_workers_with_it_and_wedges_nothing(space: Space) -> None:
    rule = space.provider.tell(Route.READ_ORDER, run=space.id_of("gone"), before=HANG)
    space.start(space.spec("gone", read(), refund()))
    space.until_hanging(rule)
    space.kubectl("delete", "agentrun", "gone", "--timeout=30s")
    space.until("end of every worker", lambda: not space.pods("gone"))
    assert space.provider.entries(Happening.REQUEST, run=space.id_of("gone"), step="pay") == []
