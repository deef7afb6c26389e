"""How an agent under test gets its run: the SDK's own connection, watched, and for plain functions the synchronous face in a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

from stepfence.core.words import Action
from stepfence.sdk import Connection, SyncRun
from stepfence.sdk.perform import Ended, Perform, Performance, Raised, Returned, Starter, is_async
from stepfence.sdk.probing import ProbeFunction
from stepfence.sdk.run import Run, StepOptions
from stepfence.sdk.session import Session
from stepfence.sdk.step import Step
from stepfence.sdk.stepcall import StepCall
from stepfence.testing.life import Killed, Life
from stepfence.testing.virtual import VirtualLoop

__all__ = ["WatchedConnection", "in_thread", "sync_face"]


class WatchedRun(Run):
    """A run that lets the outside know which step an effect belongs to."""

    def __init__(self, session: Session, life: Life) -> None:
        super().__init__(session)
        self._life = life

    def prepare(
        self,
        step_id: str,
        action: Action,
        payload: Any,
        perform: Perform,
        *,
        probe: ProbeFunction | None,
        options: StepOptions,
        start: Starter,
    ) -> StepCall:
        """See `Run.prepare`."""
        planned = self.planned.step(step_id) if self.planned else None
        recovery = str(planned.recovery or "") if planned else ""
        marked = self._life.marking(start, Action(action), recovery)
        return super().prepare(step_id, action, payload, perform, probe=probe, options=options, start=marked)

    @property
    def swallowed(self) -> str:
        """The name of the stop that was raised to the program, empty when none was."""
        latch = self._session.latch
        return type(latch.stop).__name__ if latch.stop is not None and latch.delivered else ""


class WatchedConnection(Connection):
    """The block of `stepfence.connect()`, giving a `WatchedRun`."""

    def __init__(self, life: Life, *how: Any, **more: Any) -> None:
        super().__init__(*how, **more)
        self._life = life

    async def __aenter__(self) -> WatchedRun:
        """See `Connection`."""
        await super().__aenter__()
        assert self._session is not None, "just entered"  # noqa: S101  (a fault of ours)
        return WatchedRun(self._session, self._life)


def sync_face(run: WatchedRun, life: Life) -> SyncRun:
    """Return the run for programs without a loop. Its calls are carried out in the running, virtual loop."""
    return SyncRun(_CountingRun(run), cast(Any, _Portal(life)))


class _CountingRun(WatchedRun):
    """The clock stands while a thread of the agent runs a step's function."""

    def __init__(self, run: WatchedRun) -> None:
        super().__init__(run._session, run._life)  # noqa: SLF001  (the same run, in another way)

    def prepare(self, *what: Any, start: Starter, **more: Any) -> StepCall:
        """See `Run.prepare`."""
        loop = self._life.loop

        def counted(perform: Perform, payload: Any, step: Step) -> Performance:
            performance = start(perform, payload, step)
            return performance if is_async(perform) else _Counted(performance, loop)

        return super().prepare(*what, start=counted, **more)


class _Counted(Performance):
    """A function in a thread of the agent: until it has ended the clock stands."""

    def __init__(self, performance: Performance, loop: VirtualLoop) -> None:
        self._performance, self._loop, self._working = performance, loop, True
        loop.threads += 1

    @property
    def can_be_stopped(self) -> bool:
        """See `Performance`."""
        return self._performance.can_be_stopped

    def cancel(self) -> None:
        """See `Performance`."""
        self._performance.cancel()

    async def wait(self, until: float) -> Ended | None:
        """See `Performance`."""
        try:
            return await self._performance.wait(until)
        finally:
            self._loop.threads -= self._working
            self._working = False


class _Portal:
    """What `SyncRun` asks: as in the SDK, but into the virtual loop, which must know when the agent's threads wait for it."""

    def __init__(self, life: Life) -> None:
        self._life, self._loop, self._waiting = life, life.loop, 0

    def ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the loop and wait for it in this thread."""
        return self._value(self._submit(work))

    def serve(self, work: Coroutine[Any, Any, Any], desk: Any) -> Any:
        """Run a coroutine in the loop; meanwhile this thread runs what is laid on the desk."""
        future = self._submit(work)
        future.add_done_callback(lambda _done: desk.close())
        desk.work()
        return self._value(future)

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Any:
        if not self._life.alive:
            work.close()
            self._life.kill_thread()
        return asyncio.run_coroutine_threadsafe(self._ended(work), self._loop)

    async def _ended(self, work: Coroutine[Any, Any, Any]) -> Ended:
        self._waiting += 1
        self._loop.threads -= self._waiting == 1
        try:
            return Returned(await work)
        except BaseException as error:  # noqa: BLE001  (raised again in the calling thread)
            return Raised(error)
        finally:
            self._waiting -= 1
            self._loop.threads += self._waiting == 0

    def _value(self, future: Any) -> Any:
        try:
            ended = future.result()
        except (asyncio.CancelledError, concurrent.futures.CancelledError) as error:
            raise Killed from error
        if not self._life.alive:
            self._life.kill_thread()
        if isinstance(ended, Raised):
            raise ended.error
        return ended.value


async def in_thread(life: Life, function: Callable[[], Any]) -> Any:
    """Run the agent in a thread of its own, which does not keep the process alive."""
    loop = life.loop
    future: asyncio.Future[Ended] = loop.create_future()

    def body() -> None:
        try:
            ended: Ended = Returned(function())
        except BaseException as error:  # noqa: BLE001  (raised again in the loop)
            ended = Raised(error)
        with contextlib.suppress(RuntimeError):
            # The loop is closed when the thread outlived its run.
            loop.call_soon_threadsafe(_tell, future, ended)

    loop.threads += 1
    future.add_done_callback(functools.partial(_uncount, loop))
    life.thread = threading.Thread(target=body, name=f"agent-{life.number}", daemon=True)
    life.thread.start()
    ended = await future
    if isinstance(ended, Raised):
        raise ended.error
    return ended.value


def _tell(future: asyncio.Future[Ended], ended: Ended) -> None:
    if not future.done():
        future.set_result(ended)


def _uncount(loop: VirtualLoop, _future: object) -> None:
    loop.threads -= 1
