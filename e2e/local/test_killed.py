"""`stepfence local run` killed with SIGKILL before and after every write to its state file: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from e2e.local.test_refund import ONCE
from e2e.local.world import World, holds
from stepfence.core.words import Outcome

# Runs `stepfence local`, and kills itself at the given write: before it, or when it is stored and nobody has heard of it.
KILLED = """
import os, signal, sys
from stepfence.local.__main__ import main
from stepfence.stores.sqlite import Database

number, moment, write, count = int(sys.argv[1]), sys.argv[2], Database.write, 0

def end():
    os.kill(os.getpid(), signal.SIGKILL)

async def counted(self, work):
    global count
    count += 1
    mine = count == number
    if mine and moment == "before":
        end()
    answer = await write(self, work)
    if mine:
        end()
    return answer

Database.write = counted
sys.exit(main(sys.argv[3:]))
"""
# More than the processes of one refund write.
WRITES = 40


async def killed_at(world: World, number: int, moment: str, *words: str) -> int:
    command = [sys.executable, "-c", KILLED, str(number), moment, "--state", str(world.state), *words]
    code, output = await world.shell(command)
    assert code in (0, -signal.SIGKILL), output
    return code


async def ends_well(world: World, file: Path) -> None:
    run = await world.run(file)
    assert await run.over() == 0, run.lines
    assert await world.effects() == ONCE
    status = (await world.document())["status"]
    assert status["outcome"] == Outcome.SUCCEEDED
    await holds(lambda: not world.processes())


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_at_each_write_in_turn_it_goes_on_from_there(moment: str, world: World) -> None:
    """One state file: the first process dies at its first write, the second at its second, and so on until one comes through."""
    file, killed = world.refund(runID="once"), 0
    for number in range(1, WRITES):
        if await killed_at(world, number, moment, "run", str(file)) == 0:
            break
        killed += 1
    assert killed > 3
    await ends_well(world, file)


# The look at the witness, the run, what is left of others, the key of token proofs, the port, the run's identity and mark, its acceptance
# with the worker's number, the worker's row; then the claim.
CLAIM = 11


@pytest.mark.parametrize("number", range(1, CLAIM + 2))
async def test_killed_when_one_write_was_stored_the_next_process_goes_on(number: int, world: World) -> None:
    file = world.refund(runID="once")
    assert await killed_at(world, number, "after", "run", str(file)) == -signal.SIGKILL
    if number in (CLAIM - 1, CLAIM):
        assert (await world.document())["status"].get("fencingToken", 0) == (number == CLAIM), "the claim is another write by now"
    await ends_well(world, file)
