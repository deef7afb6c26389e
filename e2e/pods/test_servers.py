"""The controller, the gateway and the API server die or stop while runs are under way; runs go on and repeat nothing."""

import itertools

import pytest

from e2e.install import NAMESPACE, wait_rolled_out
from e2e.pods import processes
from e2e.pods.outside import HANG
from e2e.pods.runs import notify, read, refund
from e2e.pods.world import Space
from e2e.provider.wire import Fault, Happening, Route


def start_many(space: Space, count: int) -> list[str]:
    """Start runs that pay and tell."""
    return [space.start(space.spec(f"refund-{number}", read(), refund(), notify())) for number in range(count)]


def require_all_done_once(space: Space, names: list[str]) -> None:
    for name in names:
        space.until_phase(name, "Succeeded", seconds=120)
    expected = {(name, step): 1 for name in names for step in ("pay", "tell")}
    assert space.provider.effects_by_step(space.namespace) == expected


def kill_server(space: Space, pod: str) -> None:
    processes.sigkill(space.world, NAMESPACE, pod)


def test_the_leading_controller_is_killed_mid_reconcile_and_every_run_goes_on(space: Space) -> None:
    names = start_many(space, 5)
    leader = space.until("leader", space.world.leader)
    space.until("first worker", lambda: any(space.run(name).worker for name in names))
    kill_server(space, leader)
    require_all_done_once(space, names)
    jobs = space.world.api.items(f"/apis/batch/v1/namespaces/{space.namespace}/jobs")
    assert len(jobs) == len({(job["metadata"]["labels"]["stepfence.dev/run-uid"], job["metadata"]["name"]) for job in jobs})


def test_both_controllers_are_killed_and_a_run_in_doubt_is_settled_by_the_next_leader(space: Space) -> None:
    rule = space.provider.tell(Route.CREATE_REFUND, run=space.id_of("refund"), after=HANG)
    space.start(space.spec("refund", refund(), notify()))
    space.until_hanging(rule)
    worker = space.holder_pod("refund")
    for pod in space.world.servers("controller"):
        kill_server(space, pod["metadata"]["name"])
    space.sigkill(worker)
    key, _ = space.until_question("refund", "Reconcile", seconds=90)
    assert space.answer("refund", key, "Happened").is_success
    space.until_phase("refund", "Succeeded", seconds=90)
    wait_rolled_out(space.world.target, NAMESPACE, "stepfence-controller")


def test_a_gateway_is_killed_mid_request_and_the_worker_repeats_its_call_at_another(space: Space) -> None:
    steps = [notify(f"tell-{number}") for number in range(12)]
    space.provider.tell(Route.CREATE_NOTIFICATION, run=space.id_of("many"), before=Fault(delay_seconds=0.3), count=None)
    space.start(space.spec("many", *steps))
    for number, pod in zip((2, 6), itertools.cycle(space.world.servers("gateway")), strict=False):
        space.until_done("many", f"tell-{number}")
        kill_server(space, pod["metadata"]["name"])
    run = space.until_phase("many", "Succeeded", seconds=90)
    assert (run.worker["number"], run.token) == (1, 1), "the worker lived through it"
    asked = [entry.step for entry in space.provider.entries(Happening.REQUEST, run=space.id_of("many"))]
    assert asked == [f"tell-{number}" for number in range(12)]
    wait_rolled_out(space.world.target, NAMESPACE, "stepfence-gateway")


def test_every_gateway_is_killed_while_it_has_the_report_in_hand_and_the_payment_is_recorded_once(space: Space) -> None:
    processes.require_faults(space.world)
    space.provider.tell(Route.CREATE_REFUND, run=space.id_of("slow"), after=Fault(delay_seconds=1))
    space.start(space.spec("slow", refund(), notify()))
    space.provider.wait_for(Happening.EFFECT, run=space.id_of("slow"), step="pay")
    gateways = [processes.of_pod(space.world, NAMESPACE, pod["metadata"]["name"]) for pod in space.world.servers("gateway")]
    with processes.frozen_api_server(space):
        # The report has come in, and cannot be written; its gateway dies with it.
        processes.let_pass(3)
        for pids in gateways:
            processes.kill(pids)
    run = space.until_phase("slow", "Succeeded", seconds=90)
    assert (run.entry("pay")["attempt"], run.worker["number"], run.token) == (1, 1, 1)
    wait_rolled_out(space.world.target, NAMESPACE, "stepfence-gateway")


def test_the_api_server_is_paused_for_twenty_seconds_and_every_run_goes_on(space: Space) -> None:
    processes.require_faults(space.world)
    space.provider.tell(Route.CREATE_REFUND, run=space.id_of("slow"), after=Fault(delay_seconds=2))
    space.start(space.spec("slow", read(), refund(), notify()))
    names = [*start_many(space, 2), "slow"]
    space.provider.wait_for(Happening.EFFECT, run=space.id_of("slow"), step="pay")
    with processes.frozen_api_server(space):
        processes.let_pass(20)
    require_all_done_once(space, names)
    run = space.run("slow")
    assert run.entry("pay")["attempt"] == 1, "what was done while nothing could be recorded was recorded when it could be"
    assert "NeedsReconciliation" not in space.world.watcher.phases(space.namespace, "slow")
    for server in ("controller", "gateway"):
        wait_rolled_out(space.world.target, NAMESPACE, f"stepfence-{server}")


def test_while_no_gateway_answers_nothing_is_begun(space: Space) -> None:
    rule = space.provider.tell(Route.READ_ORDER, run=space.id_of("refund"), before=HANG)
    space.start(space.spec("refund", read(), refund()))
    space.until_hanging(rule)
    scale = "deployment/stepfence-gateway"
    space.world.kubectl("-n", NAMESPACE, "scale", scale, "--replicas=0")
    try:
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        space.until("end of every gateway", lambda: not space.world.api.items(pods, "app.kubernetes.io/component=gateway"))
        space.provider.release(rule)
        space.provider.wait_for(Happening.ANSWER, run=space.id_of("refund"), step="look")
        with pytest.raises(TimeoutError):
            space.provider.wait_for(Happening.REQUEST, run=space.id_of("refund"), step="pay", seconds=4)
    finally:
        space.world.kubectl("-n", NAMESPACE, "scale", scale, "--replicas=2")
    wait_rolled_out(space.world.target, NAMESPACE, "stepfence-gateway")
    run = space.until_phase("refund", "Succeeded", seconds=90)
    assert run.worker["number"] == 1
