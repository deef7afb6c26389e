"""A state file that is put back from an older copy does not know of the refund that was made since, and does not make it again."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal

from e2e.local.test_refund import ONCE, command_in
from e2e.local.world import World, holds

GOES_ON = '{"spec":{"suspend":null}}'


async def stopped(world: World) -> None:
    """A run that is held before its first step, and nobody who runs it."""
    run = await world.run(world.refund(runID="once", suspend=True))
    await run.until("Suspended")
    run.process.send_signal(signal.SIGINT)
    assert await run.over() == 130


async def test_the_refund_that_an_older_copy_does_not_know_is_not_made_again(world: World) -> None:
    await stopped(world)
    older = world.folder / "older.db"
    await asyncio.to_thread(shutil.copy, world.state, older)
    assert await world.local("-n", "support", "patch", "refund-4711", "-p", GOES_ON) == (0, "agentrun.stepfence.dev/refund-4711 patched\n")
    assert await (await world.run()).over() == 0
    await asyncio.to_thread(shutil.copy, older, world.state)

    for words in (("run",), ("-n", "support", "patch", "refund-4711", "-p", GOES_ON)):
        code, output = await world.local(*words)
        assert (code, "put back from an older copy" in output) == (2, True), output
    assert (await world.document())["status"].get("outcome") is None

    run = await world.run("--accept-older-state")
    asked = await run.until("HoldNeeded")
    assert "put back from an older copy" in asked["message"]
    await world.local("-n", "support", "patch", "refund-4711", "-p", GOES_ON)
    await holds(lambda: world.processes() == [])
    assert await world.effects() == ONCE
    answer = command_in(asked["message"]).replace('"Resume"', '"Abandon"')
    assert (await world.shell(["/bin/sh", "-c", answer]))[0] == 0, answer
    assert await run.over() == 1, json.dumps(run.lines)
    assert await world.effects() == ONCE
