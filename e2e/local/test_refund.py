"""The refund example without a cluster: killed workers, killed runners, and never a second refund."""

from __future__ import annotations

import json
import signal

import pytest
import yaml

from e2e.local.schema import problems
from e2e.local.world import ROOT, SECONDS, World, holds
from e2e.provider.client import matcher
from e2e.provider.wire import Fault, Happening, Route

ONCE = [Route.CREATE_REFUND, Route.CREATE_NOTIFICATION]


async def hangs(world: World) -> None:
    await world.control.wait_for(matcher(Happening.HANG), seconds=SECONDS)


def command_in(message: str) -> str:
    return message.partition("Answer with: ")[2]


async def test_what_is_printed_is_an_object_that_the_api_server_could_have_stored(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, after=Fault(hang=True))
    container = {"name": "worker", "image": "refund:1", "command": ["python", str(ROOT / "examples/refund.py")]}
    template = {"spec": {"containers": [container]}}
    run = await world.run(world.refund(runID="once", activeDeadlineSeconds=600, template=template))
    await hangs(world)
    flying = await world.document()
    await world.local("-n", "support", "kill", "refund-4711")
    asked = await run.until("NeedsReconciliation")
    await world.control.clear_rules()
    open_one = await world.document()
    assert (await world.shell(["/bin/sh", "-c", command_in(asked["message"])]))[0] == 0
    assert await run.over() == 0, run.lines
    ended = await world.document()
    assert [problems(document) for document in (flying, open_one, ended)] == [[], [], []]
    states = [document["status"]["ledger"]["refund"]["state"] for document in (flying, open_one, ended)]
    assert states == ["InFlight", "Unknown", "Done"]
    listed = yaml.safe_load((await world.local("list", "-o", "yaml"))[1])
    assert listed == {"apiVersion": "v1", "kind": "List", "items": [ended], "metadata": {"resourceVersion": ""}}
    as_json = (await world.local("-n", "support", "get", "refund-4711", "-o", "json"))[1]
    assert as_json == json.dumps(ended, indent=4, sort_keys=True, ensure_ascii=False) + "\n"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"phase": "Odd"}, ".status.phase: 'Odd' is none of"),
        ({"surprise": 1}, ".status.surprise: unknown"),
        ({"version": "1"}, ".status.version: '1' is no integer"),
        ({"fencingToken": -1}, ".status.fencingToken: -1 is out of bounds"),
        ({"startedAt": "now"}, ".status.startedAt: 'now' is no time"),
        ({"ledger": {"a": {"state": "Done"}}}, ".status.ledger.a.key: missing"),
    ],
    ids=str,
)
def test_an_object_that_it_could_not_have_stored_is_noticed(change: dict[str, object], problem: str) -> None:
    spec = {"template": {"spec": {"containers": [{"name": "worker", "image": "refund:1"}]}}}
    document = {"apiVersion": "stepfence.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "a"}, "spec": spec}
    assert problems(document) == []
    assert any(found.startswith(problem) for found in problems({**document, "status": change}))


async def test_it_refunds_once_and_succeeds(world: World) -> None:
    run = await world.run(world.refund())
    assert await run.over() == 0, run.lines
    assert await world.effects() == ONCE
    assert run.reasons()[0] == "Accepted"
    document = await world.document()
    assert (document["status"]["phase"], document["status"]["worker"]["exitReason"]) == ("Succeeded", "Finished")
    assert world.processes() == []
    code, output = await world.local("-n", "support", "logs", "refund-4711")
    assert (code, "stepfence.claimed" in output) == (0, True)


async def test_killed_between_effect_and_record_it_asks_and_the_printed_command_answers(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, after=Fault(hang=True))
    run = await world.run(world.refund())
    await hangs(world)
    code, output = await world.local("-n", "support", "kill", "refund-4711")
    assert code == 0, output
    asked = await run.until("NeedsReconciliation")
    await world.control.clear_rules()
    listed = (await world.local("list"))[1]
    assert "NeedsReconciliation" in listed
    assert (await world.document())["status"]["worker"]["message"] == "exit code 137"
    shown = (await world.local("-n", "support", "get", "refund-4711"))[1]
    assert f"patch: {command_in(asked['message'])}" in [line.strip() for line in shown.splitlines()]
    code, output = await world.shell(["/bin/sh", "-c", command_in(asked["message"])])
    assert code == 0, output
    assert await run.over() == 0, run.lines
    assert await world.effects() == ONCE
    assert (await world.document())["status"]["worker"]["number"] == 2


async def test_an_answer_is_refused_by_the_rules_of_the_definition(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, after=Fault(hang=True))
    run = await world.run(world.refund())
    await hangs(world)
    await world.local("-n", "support", "kill", "refund-4711")
    await run.until("NeedsReconciliation")
    await world.control.clear_rules()
    (question,) = (await world.document())["status"]["questions"]
    early = json.dumps({"spec": {"decisions": {question: {"verdict": "DidNotHappen"}}}})
    code, output = await world.local("-n", "support", "patch", "refund-4711", "--type=merge", "-p", early)
    assert (code, "does not count yet" in output) == (2, True), output
    code, output = await world.local("-n", "support", "patch", "refund-4711", "-p", '{"spec": {"backoffLimit": 9}}')
    assert (code, "spec.backoffLimit" in output) == (2, True), output
    forced = json.dumps({"spec": {"decisions": {question: {"verdict": "DidNotHappen", "force": True, "by": "jo"}}}})
    code, output = await world.local("-n", "support", "patch", "agentruns/refund-4711", "-p", forced)
    assert code == 0, output
    await run.until("Answered")
    assert (await world.document())["status"]["ledger"]["refund"]["answers"][0]["by"] == "jo"


@pytest.mark.parametrize("point", [1, 2, 3, 5])
async def test_stepfence_local_killed_at_any_point_loses_nothing(point: int, world: World) -> None:
    """Killed after its n-th line, again and again until the run is over."""
    file, kills = world.refund(), 0
    for _ in range(6):
        run = await world.run(file)
        for _ in range(point):
            if await run.next() is None:
                break
        else:
            kills += 1
            await run.kill()
            if (await world.document())["status"].get("outcome") is None:
                continue
        break
    final = await world.run(file)
    assert await final.over() == 0, final.lines
    assert kills
    assert await world.effects() == ONCE
    assert (await world.document())["status"]["phase"] == "Succeeded"
    assert world.processes() == []


async def test_a_worker_outlives_a_killed_stepfence_local_and_reports_to_the_next(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, before=Fault(hang=True))
    file = world.refund()
    first = await world.run(file)
    await hangs(world)
    await first.kill()
    assert world.processes()
    await world.control.release()
    second = await world.run(file)
    assert await second.over() == 0, second.lines
    status = (await world.document())["status"]
    assert (status["worker"]["number"], status["fencingToken"]) == (1, 1)
    assert await world.effects() == ONCE


async def test_a_worker_killed_while_nobody_looked_is_known_to_have_ended(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, after=Fault(hang=True))
    file = world.refund()
    first = await world.run(file)
    await hangs(world)
    await first.kill()
    await world.local("-n", "support", "kill", "refund-4711")
    await holds(lambda: not world.processes())
    await world.control.clear_rules()
    second = await world.run()
    asked = await second.until("NeedsReconciliation")
    await second.kill()
    code, output = await world.shell(["/bin/sh", "-c", command_in(asked["message"])])
    assert code == 0, output
    third = await world.run()
    assert await third.over() == 0, third.lines
    assert await world.effects() == ONCE


async def test_a_drained_worker_settles_its_step_and_another_goes_on(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, before=Fault(hang=True))
    run = await world.run(world.refund())
    await hangs(world)
    code, output = await world.local("-n", "support", "drain", "refund-4711")
    assert code == 0, output
    await run.until("Draining")
    await world.control.release()
    assert await run.over() == 0, run.lines
    assert await world.effects() == ONCE
    assert (await world.document())["status"]["worker"]["number"] == 2


async def test_interrupted_it_lets_its_worker_go_and_the_next_goes_on(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, before=Fault(hang=True))
    file = world.refund()
    first = await world.run(file)
    await hangs(world)
    first.process.send_signal(signal.SIGINT)
    await first.until("Draining")
    await world.control.release()
    assert await first.over() == 130
    assert world.processes() == []
    assert (await world.document())["status"]["ledger"]["refund"]["state"] == "Done"
    second = await world.run(file)
    assert await second.over() == 0, second.lines
    assert await world.effects() == ONCE


async def test_cancelled_it_settles_what_is_open_and_ends(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, before=Fault(hang=True))
    run = await world.run(world.refund())
    await hangs(world)
    code, output = await world.local("-n", "support", "cancel", "refund-4711")
    assert code == 0, output
    await run.until("Ending")
    await world.control.release()
    assert await run.over() == 1
    assert (await world.document())["status"]["outcome"] == "Cancelled"
    assert await world.effects() == [Route.CREATE_REFUND]


async def test_several_runs_go_on_at_once_and_a_second_command_takes_over(world: World) -> None:
    await world.control.tell(Route.CREATE_REFUND, before=Fault(hang=True), count=2)
    first = await world.run(world.refund("one"))
    await hangs(world)
    second = await world.run(world.refund("two", order="4712"))
    await world.control.wait_for(matcher(Happening.HANG, run="support/two"), seconds=SECONDS)
    await first.kill()
    await world.control.release()
    assert await second.over() == 0, second.lines
    third = await world.run()
    assert await third.over() == 0, third.lines
    await holds(lambda: not world.processes())
    assert sorted(await world.effects()) == sorted(ONCE * 2)


async def test_the_shell_example_runs_here_too(world: World) -> None:
    run = await world.run(world.manifest(["/bin/sh", str(ROOT / "examples/refund.sh")]))
    assert await run.over() == 0, (run.lines, await world.local("-n", "support", "logs", "refund-4711"))
    assert await world.effects() == ONCE
