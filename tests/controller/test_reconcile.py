"""Whole passes over the memory store and a cluster in memory."""

from __future__ import annotations

import pytest

from stepfence.app.apply import Applier
from stepfence.controller.cluster import NotCreated
from stepfence.controller.reconcile import Again, NotLeading
from stepfence.core.fencing import Release, release
from stepfence.core.ledger import Begin, begin
from stepfence.core.words import Settings
from stepfence.core.world import job_name
from stepfence.testing.builders import body
from tests.controller.fake_cluster import Killed
from tests.controller.harness import KEY, Controller, World


@pytest.fixture
def world() -> World:
    return World()


def jobs(world: World, number: int) -> str:
    return job_name(KEY.name, world.store.document(KEY)["metadata"]["uid"], number)


async def test_a_new_run_becomes_a_job_with_its_number_written_first(world: World) -> None:
    world.create()
    order: list[str] = []
    world.store.on_call = world.cluster.on_call = order.append
    await Controller(world).settle()
    assert world.cluster.made == [jobs(world, 1)]
    assert order.index("after mark") < order.index("before save") < order.index("before create")
    assert world.reasons()[:2] == ["Accepted", "WorkerStarted"]


async def test_at_rest_a_pass_writes_nothing_and_asks_the_cluster_nothing(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    await world.claim(jobs(world, 1))
    await controller.settle()
    writes, events = world.store.writes, len(world.cluster.events)
    world.cluster.reads.clear()
    for _ in range(5):
        await controller.reconciler.reconcile(KEY)
    assert (world.store.writes, len(world.cluster.events), world.cluster.reads) == (writes, events, [])


async def test_a_crash_is_counted_and_the_next_worker_waits_for_its_back_off(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    world.clock.advance(3)
    world.cluster.end_pod(jobs(world, 1), 1)
    wake = await controller.settle()
    run = await world.run()
    assert run.worker is not None
    assert (run.worker.exit_reason, run.worker.failures, wake) == ("Crashed", 1, run.worker.retry_at)
    world.clock.advance(5)
    await controller.settle()
    assert world.cluster.made == [jobs(world, 1), jobs(world, 2)]


async def test_a_step_that_a_dead_worker_leaves_in_doubt_is_counted_once(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    await world.claim(jobs(world, 1))
    run = await world.run()
    assert run.holder is not None
    call = Begin("pay", run.token, run.holder.pod_uid, "request", body({}))
    await Applier(world.store, world.clock, world.ids, Settings()).apply(KEY, lambda run, at: begin(run, call, at))
    world.cluster.end_pod(jobs(world, 1), 1)
    await controller.settle()
    assert controller.metrics.registry.get_sample_value("stepfence_steps_unknown_total", {"action": "Payment", "image": "agent:1"}) == 1


async def test_what_a_gateway_wrote_meanwhile_is_told_too(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    await world.claim(jobs(world, 1))
    await controller.settle()
    assert "Claimed" in world.reasons()


async def test_a_second_controller_that_lags_behind_makes_no_second_job(world: World) -> None:
    world.create()
    lagging = Controller(world)
    await Controller(world).settle()
    await lagging.settle()
    assert world.cluster.made == [jobs(world, 1)]


async def test_a_pod_whose_last_state_came_with_its_deletion_is_still_confirmed(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    await world.claim(jobs(world, 1))
    await controller.settle()
    world.cluster.end_pod(jobs(world, 1), 137)
    world.cluster.vanish(jobs(world, 1))
    await controller.settle()
    run = await world.run()
    assert run.holder is None
    assert run.worker is not None
    assert run.worker.message.startswith("exit code 137")
    assert controller.cache.pods(run.uid) == ()


async def test_a_holder_that_no_watch_shows_is_looked_up_before_it_is_called_gone(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    world.cluster.watcher = None
    await world.claim(jobs(world, 1))
    deaf = Controller(world)
    deaf.cache._pods.clear()
    await deaf.reconciler.reconcile(KEY)
    assert (await world.run()).holder is not None
    assert "pod" in world.cluster.reads
    world.cluster.pods.clear()
    await deaf.reconciler.reconcile(KEY)
    assert (await world.run()).holder is None


async def test_a_pod_that_a_watch_wrongly_shows_is_found_gone_when_its_lease_runs_out(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    await world.claim(jobs(world, 1))
    await controller.settle()
    world.cluster.pods.clear()
    await controller.settle()
    assert (await world.run()).holder is not None
    world.clock.advance(61)
    await controller.settle()
    assert (await world.run()).holder is None


async def test_a_holder_that_lost_its_label_is_looked_up_before_it_is_called_gone(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    await world.claim(jobs(world, 1))
    await controller.settle()
    # To a watch by label a pod without the label is deleted.
    controller.cache.see_pod(world.cluster.pod_of(jobs(world, 1)), deleted=True)
    await controller.settle()
    assert (await world.run()).holder is not None
    world.cluster.pods.clear()
    await controller.settle()
    assert (await world.run()).holder is None


async def test_a_name_that_is_taken_by_another_object_costs_one_number(world: World) -> None:
    world.create()
    name = jobs(world, 1)
    world.cluster.jobs[name] = {"metadata": {"name": name, "namespace": KEY.namespace, "uid": "foreign"}, "spec": {}, "status": {}}
    controller = Controller(world)
    # The watch shows no foreign Job, so that nothing else would call for the next pass.
    with pytest.raises(Again):
        await controller.reconciler.reconcile(KEY)
    await controller.settle()
    world.clock.advance(6)
    await controller.settle()
    assert world.cluster.made == [jobs(world, 2)]
    assert world.cluster.jobs[name]["metadata"]["uid"] == "foreign"


async def test_a_refused_job_is_shown_and_tried_again_under_the_same_number(world: World) -> None:
    world.create()
    world.cluster.refuse_jobs = NotCreated("namespace support is being terminated", invalid=False)
    controller = Controller(world)
    for _ in range(3):
        with pytest.raises(Again):
            await controller.reconciler.reconcile(KEY)
    run = await world.run()
    assert run.worker_problem == ("JobCreateRefused", "namespace support is being terminated")
    world.cluster.refuse_jobs = None
    await controller.settle()
    assert world.cluster.made == [jobs(world, 1)]
    assert (await world.run()).worker_problem is None


async def test_a_template_that_no_api_server_takes_ends_at_the_limit(world: World) -> None:
    world.create(backoffLimit=0)
    world.cluster.refuse_jobs = NotCreated("Job is invalid: spec.template.spec.containers[0].image: Required value", invalid=True)
    controller = Controller(world)
    with pytest.raises(Again):
        await controller.reconciler.reconcile(KEY)
    await controller.settle()
    run = await world.run()
    assert run.reason == "BackoffLimitExceeded"
    assert "Required value" in run.message


async def test_a_refused_pod_is_asked_for_after_ten_seconds_and_shown(world: World) -> None:
    world.create()
    world.cluster.refuse_pods = "exceeded quota: pods=0"
    controller = Controller(world)
    await controller.settle()
    world.clock.advance(9)
    await controller.settle()
    assert "events" not in world.cluster.reads
    world.clock.advance(1)
    await controller.settle()
    assert (await world.run()).worker_problem == ("PodCreateRefused", "exceeded quota: pods=0")


async def test_a_job_that_has_a_pod_is_not_called_refused_because_the_cache_lags(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    world.cluster.refuse_pods = "an old event"
    controller.cache._pods.clear()
    world.clock.advance(60)
    await controller.settle()
    run = await world.run()
    assert run.worker_problem is None
    assert run.worker is not None
    assert run.worker.ended_at is None


async def test_a_run_id_that_another_object_spent_ends_without_a_job(world: World) -> None:
    world.create(runID="once")
    await Controller(world).settle()
    world.store.delete(KEY)
    world.create(runID="once")
    await Controller(world).settle()
    run = await world.run()
    assert (run.outcome, run.reason) == ("Failed", "AlreadyRan")
    assert len(world.cluster.made) == 1


async def test_a_restored_object_waits_for_a_person_and_then_goes_on(world: World) -> None:
    world.create(metadata={"annotations": {"stepfence.dev/identity": "an-older-one"}}, runID="once")
    controller = Controller(world)
    await controller.settle()
    held = await world.run()
    assert held.hold is not None
    assert held.hold.reason == "LedgerMissing"
    assert world.cluster.made == []
    world.store.patch_spec(KEY, {"decisions": {f"run.{held.hold.question}": {"verdict": "Resume"}}})
    await controller.settle()
    assert len(world.cluster.made) == 1
    assert world.store.document(KEY)["metadata"]["annotations"]["stepfence.dev/identity"] == held.uid
    assert "Held" in world.reasons()
    assert "Answered" in world.reasons()


async def test_an_answer_with_a_large_result_stores_it_before_the_ledger_refers_to_it(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    await world.claim(jobs(world, 1))
    run = await world.run()
    assert run.holder is not None
    call = Begin("pay", run.token, run.holder.pod_uid, "request", body({}))
    await Applier(world.store, world.clock, world.ids, Settings()).apply(KEY, lambda stored, at: begin(stored, call, at))
    world.cluster.end_pod(jobs(world, 1), 137)
    await controller.settle()
    (question,) = world.store.document(KEY)["status"]["questions"]
    world.store.patch_spec(KEY, {"decisions": {question: {"verdict": "Happened", "result": {"text": "x" * 2000}}}})
    await controller.settle()
    result = (await world.run()).ledger["pay"].result
    assert result is not None
    assert result.record is not None
    assert "xxx" in await world.records.get(await world.run(), result.record)


async def test_a_suspended_run_is_drained_and_goes_on_under_the_next_number(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    world.clock.advance(10)
    world.store.patch_spec(KEY, {"suspend": True})
    await controller.settle()
    assert world.cluster.deleted == [f"{jobs(world, 1)}-x"]
    world.cluster.end_pod(jobs(world, 1), 143)
    await controller.settle()
    world.store.patch_spec(KEY, {"suspend": None})
    await controller.settle()
    assert world.cluster.made == [jobs(world, 1), jobs(world, 2)]


async def test_the_pod_of_a_worker_that_let_go_does_not_hold_up_the_next(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    await world.claim(jobs(world, 1))
    world.clock.advance(10)
    applier = Applier(world.store, world.clock, world.ids, Settings())
    await applier.apply(KEY, lambda run, at: (release(run, Release.DRAINED, at), None))
    await controller.settle()
    assert world.cluster.made == [jobs(world, 1), jobs(world, 2)]


async def test_a_replica_that_lost_the_lead_touches_nothing(world: World) -> None:
    world.create()
    controller = Controller(world)
    controller.leads = False
    with pytest.raises(NotLeading):
        await controller.reconciler.reconcile(KEY)
    assert (world.store.writes, world.cluster.made) == (0, [])


async def test_a_run_that_is_gone_is_forgotten(world: World) -> None:
    world.create()
    controller = Controller(world)
    await controller.settle()
    world.store.delete(KEY)
    assert await controller.reconciler.reconcile(KEY) is None
    assert controller.reconciler._told == {}


CALLS = [
    *("before mark", "after mark", "before save", "after save", "before create", "after create"),
    *("before save", "after save"),
    *("before save", "after save", "before create", "after create"),
    *("before save", "after save", "before delete pod", "after delete pod"),
    *("before save", "after save"),
]


class Mortal:
    """A controller that is killed at one call and started again with empty caches."""

    def __init__(self, world: World, stop_at: int) -> None:
        self.world, self.stop_at, self.calls = world, stop_at, 0
        self.killed_at: list[str] = []
        self.controller = Controller(world)

    def count(self, call: str) -> None:
        self.calls += 1
        if self.calls - 1 == self.stop_at:
            self.killed_at.append(call)
            raise Killed

    async def go_on(self) -> None:
        calls = (self.world.store, self.world.cluster)
        for where in calls:
            where.on_call = self.count
        try:
            await self.controller.settle()
        except Killed:
            for where in calls:
                where.on_call = lambda _: None
            self.controller = Controller(self.world)
            for job in list(self.world.cluster.jobs.values()):
                if not job["status"]:
                    self.world.cluster._start_pod(job)  # the Job controller lives on
            await self.controller.settle()
        for where in calls:
            where.on_call = lambda _: None


@pytest.mark.parametrize("stop_at", range(len(CALLS)))
async def test_a_controller_that_is_killed_between_any_two_actions_leaves_nothing_doubled_or_undone(world: World, stop_at: int) -> None:
    """The story: a run starts, its worker crashes, the next is claimed, the run is suspended. Each call may be the last one."""
    world.create()
    mortal = Mortal(world, stop_at)
    await mortal.go_on()
    world.cluster.end_pod(jobs(world, 1), 1)
    await mortal.go_on()
    world.clock.advance(6)
    await mortal.go_on()
    await world.claim(jobs(world, 2))
    await mortal.go_on()
    world.store.patch_spec(KEY, {"suspend": True})
    await mortal.go_on()
    run = await world.run()
    assert world.cluster.made == [jobs(world, 1), jobs(world, 2)]
    assert run.worker is not None
    assert (run.worker.number, run.worker.failures, run.token) == (2, 1, 1)
    assert world.cluster.deleted == [f"{jobs(world, 2)}-x"]
    assert mortal.killed_at == [CALLS[stop_at]]
