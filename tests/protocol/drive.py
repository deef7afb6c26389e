"""Histories: choose among the moves that are possible, then drive fairly to an end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial

from stepfence.core.summary import QuestionKind
from stepfence.core.words import Verdict
from tests.protocol import people, workers
from tests.protocol import violations as v
from tests.protocol.actors import Does, Status
from tests.protocol.scenario import Scenario
from tests.protocol.violations import Violation
from tests.protocol.world import Move, Rules, World

ROUNDS = 120
_CALLS_A_ROUND = 12


def moves(world: World) -> list[Move]:
    """Return everything that may happen next."""
    found = [*workers.moves(world), *people.moves(world)]
    only = world.scenario.only
    # Undirected, what is usual is offered several times; directed, each move once.
    return [(label, move) for label, move in dict(found).items() if re.search(only, label)] if only else found


def play(scenario: Scenario, choices: Iterable[int], rules: Rules | None = None, *, to_the_end: bool = True) -> World:
    """Play a history: each choice picks one of the possible moves. Raises `Violation` with the history in its text."""
    world = World(scenario, rules or Rules())
    try:
        people.reconcile(world)
        guide = list(scenario.guide)
        for choice in choices:
            possible = moves(world) or [("nothing", lambda: None)]
            guided = [move for move in possible if guide and choice % 4 and re.search(guide[0], move[0])]
            guide = guide[1:] if guided else guide
            world.make(*(guided or possible)[choice % len(guided or possible)])
        if to_the_end:
            drive_to_the_end(world)
    except Violation as violation:
        violation.add_note("\n".join([str(scenario), *world.trace]))
        raise
    return world


def drive_to_the_end(world: World) -> None:
    """Everybody who can act acts, truthfully and in time: the run must reach an outcome."""
    world.trace.append("--- from here on everybody acts fairly")
    for _ in range(ROUNDS):
        if world.run.terminal:
            return
        people.unhold(world)
        for flight in list(world.flights):
            workers.land(world, flight)
        _work(world)
        for pod in world.pods:
            pod.reported = pod.reported or pod.status is Status.TERMINAL
        _controller(world)
        _answer_all(world)
        _controller(world)
        world.tick(1)
    raise Violation(v.STUCK, f"no outcome after {ROUNDS} rounds")


def _controller(world: World) -> None:
    people.reconcile(world)
    if not world.scenario.decides and not world.running() and people.wants_worker(world):
        world.start_pod()


def _work(world: World) -> None:
    for pod in world.running():
        for _ in range(_CALLS_A_ROUND):
            for thread in pod.threads:
                move = workers.usual(world, thread) if pod.alive else None
                if move is not None:
                    world.make(f"{thread} {thread.does}", move)
        if pod.alive and all(thread.does is Does.STOPPED for thread in pod.threads):
            world.make(f"{pod.name} leaves", partial(workers.leave, world, pod))


def _answer_all(world: World) -> None:
    for question in list(world.questions.values()):
        verdict = people.truth(world, question)
        waits = question.kind is QuestionKind.RECONCILE and verdict is Verdict.DID_NOT_HAPPEN and not question.accepts_did_not_happen
        if not waits:
            world.make(f"a person answers {question.key}", partial(people.answer, world, question, verdict))
