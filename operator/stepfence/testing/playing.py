"""Plays one run of an agent under test: workers one after another, a crash where one is due, and a careful person in between."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from stepfence.core.canonical import Json, step_key
from stepfence.core.words import Settings
from stepfence.sdk import NotFinished, Options
from stepfence.sdk.connection import stop_in
from stepfence.sdk.perform import is_async
from stepfence.sdk.results import encode, round_trip
from stepfence.testing.cluster import MemoryCluster, MemoryRun, MemoryWorker
from stepfence.testing.effects import DEFAULT_HOST, Effect, Outside, Provider, default_provider
from stepfence.testing.faces import WatchedConnection, WatchedRun, in_thread, sync_face
from stepfence.testing.history import Ending, History, WorkerEnd
from stepfence.testing.life import Effects, GatewayLine, Life
from stepfence.testing.points import CrashPoint
from stepfence.testing.virtual import LoopClock, VirtualLoop

__all__ = ["Agent", "Play"]

Agent = Callable[..., Any]

_WORKER_PATIENCE = 4 * 3600.0
# Renewals are of no interest here: each one would be a stop of the virtual clock.
_LEASE = 3600
_SETTLING = 100
# The usual settle time: from then on it counts when a person says that something did not happen.
_PAUSE = 10.0
_ROUNDS = 100
_OPTIONS = Options(exit_on_stop=False, handle_sigterm=False, watch_interval=3600.0)


@dataclass
class Play:
    """One agent under test, and how it is played. `answers`: by step, what the baseline's step made of its provider's answer."""

    agent: Agent
    input: Json = None
    plan: Sequence[Mapping[str, Any]] | None = None
    provider: Provider | type | None = None
    workers: int = 10
    answers: dict[str, Any] = field(default_factory=dict)

    def run(self, point: CrashPoint | None = None) -> History:
        """Play once, in a loop of its own, which takes no time."""
        loop = VirtualLoop()
        loop.set_exception_handler(lambda _loop, _context: None)
        try:
            return loop.run_until_complete(self._whole(loop, point))
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def _whole(self, loop: VirtualLoop, point: CrashPoint | None) -> History:
        history = History(point)
        outside = Outside(self._fresh_provider(), point)
        settings = Settings(backoff_base=0, lease=_LEASE)
        async with MemoryCluster(settings=settings, clock=LoopClock(loop)) as cluster:
            spec: dict[str, Any] = {} if self.input is None else {"input": self.input}
            run = await cluster.create("agent", plan=self.plan, **spec)
            for number in range(1, self.workers + 1):
                worker = await self._next_worker(run, outside, history)
                if worker is None:
                    break
                life = Life(number, outside, loop)
                end = await self._work(worker, life)
                history.workers.append(end)
                history.plain = end.ending is Ending.RETURNED and not life.used
                if history.plain or end.ending in (Ending.HUNG, Ending.UNDEAD, Ending.NOT_FINISHED):
                    break
                worker.pod.terminated, worker.pod.exit_code = True, 137 if end.ending is Ending.KILLED else 1
            else:
                await self._next_worker(run, outside, history)
            self._note(history, outside, run)
        return history

    def _fresh_provider(self) -> Provider:
        if self.provider is None:
            return default_provider()
        if isinstance(self.provider, type):
            made: Provider = self.provider()
            return made
        return self.provider

    async def _work(self, worker: MemoryWorker, life: Life) -> WorkerEnd:
        """Let one worker live until it ends or is killed; nothing of it runs on after that."""
        crashed = asyncio.create_task(life.crashed.wait())
        body = asyncio.create_task(self._body(worker, life))
        await asyncio.wait({body, crashed}, timeout=_WORKER_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        end = WorkerEnd(Ending.HUNG)
        if body.done() and not body.cancelled() and not life.ends():
            end = body.result()
        elif life.dead and not life.exited:
            end = WorkerEnd(Ending.KILLED)
        life.alive = False
        gone = await _gone(life)
        return end if gone or end.ending is Ending.HUNG else WorkerEnd(Ending.UNDEAD)

    async def _body(self, worker: MemoryWorker, life: Life) -> WorkerEnd:
        run: WatchedRun | None = None
        returned = False
        try:
            line = GatewayLine(life, worker.transport)
            async with WatchedConnection(life, worker.settings, _OPTIONS, transport=line, exit_process=life.exit_process) as run:
                await self._agent(run, life)
                returned = True
        except NotFinished:
            return WorkerEnd(Ending.NOT_FINISHED if life.used else Ending.RETURNED)
        except BaseException as left:  # noqa: BLE001  (told in the report; what is uncaught here would break the loop)
            if stop_in(left) is None:
                return WorkerEnd(Ending.RAISED, left)
            swallowed = run.swallowed if run is not None and returned else ""
            return WorkerEnd(Ending.STOPPED, left, swallowed)
        return WorkerEnd(Ending.RETURNED)

    async def _agent(self, run: WatchedRun, life: Life) -> None:
        effects = Effects(life)
        base = f"http://{DEFAULT_HOST}"
        if is_async(self.agent):
            async with httpx.AsyncClient(transport=effects.transport, base_url=base) as http:
                await self.agent(*self._arguments(run, http, effects))
        else:
            with httpx.Client(transport=effects.transport, base_url=base) as client:
                face = sync_face(run, life)
                returned = await in_thread(life, functools.partial(self.agent, *self._arguments(face, client, effects)))
            if inspect.iscoroutine(returned):
                returned.close()
                raise TypeError("agent: it is no coroutine function and returned a coroutine: write it as `async def`")

    def _arguments(self, *offered: Any) -> tuple[Any, ...]:
        return offered[: count_of_arguments(self.agent)]

    async def _next_worker(self, run: MemoryRun, outside: Outside, history: History) -> MemoryWorker | None:
        """Answer what is asked until the next worker is wanted; None when the run is over, or nobody can help it on."""
        pause = _PAUSE
        for _ in range(_SETTLING):
            worker = await run.wanted_worker()
            if worker is not None:
                return worker
            if run.status.get("outcome"):
                return None
            if not await self._answer(run, outside, history):
                await asyncio.sleep(pause)
                pause = min(2 * pause, 8 * _PAUSE)
        return None

    async def _answer(self, run: MemoryRun, outside: Outside, history: History) -> bool:
        for key, question in run.questions.items():
            step, verdict, more = str(question["step"]), "", {}
            if question["kind"] == "Hold":
                verdict, history.holds = "Resume", history.holds + 1
            elif question["kind"] == "Approve":
                verdict = "Approve"
            else:
                effect = outside.found(step_key(str(run.status["runID"]), step))
                if effect is None and not question["acceptsDidNotHappen"]:
                    continue
                verdict = "DidNotHappen" if effect is None else "Happened"
                more = {} if effect is None else self._result(step, effect)
            history.asked.append(f"{step}: {verdict}")
            await run.answer(key, verdict, reason="looked at the provider", **more)
            return True
        return False

    def _result(self, step: str, effect: Effect) -> dict[str, Any]:
        """The answer of the provider, in the shape that the step gave it in the baseline."""
        result = self.answers.get(step, effect.answer)
        return {} if result is None else {"result": round_trip(encode(result, f"answer to {effect.name}"))}

    def _note(self, history: History, outside: Outside, run: MemoryRun) -> None:
        history.effects, history.hit, history.hits = outside.effects, outside.hit, len(outside.hits)
        status = run.status
        history.outcome, history.reason = str(status.get("outcome", "")), str(status.get("reason", "") or run.phase)
        history.message = str(status.get("message", ""))
        history.results, history.raised, history.unrecorded = outside.results, outside.raised, outside.unrecorded

    def learn(self, baseline: History) -> None:
        """Remember what each step of the baseline gave, where that is not simply its provider's answer."""
        for step, result in baseline.results.items():
            answers = [effect.answer for effect in baseline.applied if effect.step is not None and effect.step.id == step]
            if answers and answers[-1] != result:
                self.answers[step] = result


def count_of_arguments(agent: Agent) -> int:
    """Return how many of run, http, effects the agent takes. Raises `TypeError` when that cannot be."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [parameter for parameter in inspect.signature(agent).parameters.values() if parameter.kind in kinds]
    needed = [parameter for parameter in parameters if parameter.default is inspect.Parameter.empty]
    # `effects=None` is what lets the same function run in a pod.
    if len(parameters) >= 3 and parameters[2].name == "effects":
        return 3
    if not 1 <= len(needed) <= 3:
        raise TypeError(f"agent: it must take (run, http) or (run, http, effects), not {inspect.signature(agent)}")
    return len(needed)


async def _gone(life: Life) -> bool:
    """Cancel everything that the worker left behind, until nothing of it is left; return whether that came."""
    own = asyncio.current_task()
    for _ in range(_ROUNDS):
        left = [task for task in asyncio.all_tasks() if task is not own]
        threads = life.thread is not None and life.thread.is_alive()
        if not left and not threads:
            return True
        for task in left:
            task.cancel()
        for _turn in range(5):
            await asyncio.sleep(0)
        if threads and life.thread is not None:
            life.thread.join(0.01)
    return False
