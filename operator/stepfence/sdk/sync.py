"""The synchronous twin: the same engine in a loop of its own thread, with the user's functions run in the thread that calls.

Calls from several threads may be in flight at once; each runs its own functions.
"""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, TypeVar, overload

import httpx
from pydantic import JsonValue

from stepfence.core.words import Action
from stepfence.sdk import wire
from stepfence.sdk.classify import Classifier
from stepfence.sdk.connection import how_it_ends, leave
from stepfence.sdk.errors import Stop
from stepfence.sdk.perform import Ended, Perform, Performance, Raised, Returned, is_async, outcome_of
from stepfence.sdk.planning import PlanStep
from stepfence.sdk.probing import ProbeFunction
from stepfence.sdk.results import check_kind, read_result
from stepfence.sdk.run import Run, StepOptions
from stepfence.sdk.session import Session
from stepfence.sdk.settings import Options, Settings
from stepfence.sdk.step import Step

__all__ = ["SyncConnection", "SyncRun", "connect_sync"]

T = TypeVar("T")
_DEFAULTS = StepOptions()


class _Portal:
    """A loop in a thread, and a way to ask it. `inside` counts calls of the main thread, which a signal must not break."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="stepfence-loop", daemon=True)
        self._thread.start()
        self.inside = 0

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it in this thread."""
        main = threading.current_thread() is threading.main_thread()
        self.inside += main
        try:
            ended = asyncio.run_coroutine_threadsafe(_ended(work), self.loop).result()
        finally:
            self.inside -= main
        return _value(ended)  # type: ignore[no-any-return]

    def serve(self, work: Coroutine[Any, Any, Any], desk: _Desk) -> Any:
        """Run a coroutine in the loop; meanwhile this thread runs what the coroutine lays on the desk."""
        main = threading.current_thread() is threading.main_thread()
        self.inside += main
        try:
            future = asyncio.run_coroutine_threadsafe(_ended(work), self.loop)
            future.add_done_callback(lambda _done: desk.close())
            desk.work()
            return _value(future.result())
        finally:
            self.inside -= main

    def close(self) -> None:
        """Stop the loop and wait for its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _ended(work: Coroutine[Any, Any, Any]) -> Ended:
    try:
        return Returned(await work)
    except BaseException as error:  # noqa: BLE001  (raised again in the calling thread: SystemExit here would break the loop)
        return Raised(error)


def _value(ended: Ended) -> Any:
    if isinstance(ended, Raised):
        raise ended.error
    return ended.value


class _Desk:
    """Where the engine lays functions for the calling thread."""

    def __init__(self, run: Run) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._local = run.starter

    def start(self, perform: Perform, payload: JsonValue, step: Step) -> Performance:
        """Start a function in the calling thread; coroutine functions run in the loop."""
        if is_async(perform):
            return self._local(perform, payload, step)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Ended] = loop.create_future()

        def job() -> None:
            ended = outcome_of(functools.partial(perform, payload, step))
            loop.call_soon_threadsafe(_settle, future, ended)

        self._jobs.put(job)
        return Performance(future, None)

    def work(self) -> None:
        """Run what is laid down until the call is over. An interruption from the keyboard waits for that (the settle rule)."""
        interruption: KeyboardInterrupt | None = None
        while True:
            try:
                job = self._jobs.get()
            except KeyboardInterrupt as error:
                interruption = error
                continue
            if job is None:
                break
            job()
        if interruption is not None:
            raise interruption

    def close(self) -> None:
        """The call is over."""
        self._jobs.put(None)


def _settle(future: asyncio.Future[Ended], ended: Ended) -> None:
    if not future.done():
        future.set_result(ended)


class SyncRun:
    """One claimed run, for programs without a loop. Made by `connect_sync`. Every method is that of `Run`."""

    def __init__(self, run: Run, portal: _Portal) -> None:
        self._run = run
        self._portal = portal

    @property
    def run_id(self) -> str:
        """The stable identity of the run."""
        return self._run.run_id

    @property
    def input(self) -> Any:
        """`spec.input`, plain JSON."""
        return self._run.input

    @property
    def remaining(self) -> wire.Remaining:
        """Room that was left in the run's record at the claim."""
        return self._run.remaining

    @property
    def stopping(self) -> Stop | None:
        """The stop that has latched, if any."""
        return self._run.stopping

    @property
    def planned(self) -> wire.Plan | None:
        """The recorded plan, None before one is submitted."""
        return self._run.planned

    def plan(self, steps: Sequence[PlanStep | Mapping[str, JsonValue]]) -> wire.Plan:
        """Submit the plan; see `Run.plan`."""
        return self._portal.ask(self._run.plan(steps))

    @overload
    def step(
        self,
        step_id: str,
        action: Action,
        payload: Any,
        perform: Perform,
        *,
        probe: ProbeFunction | None = ...,
        result: type[T],
        options: StepOptions = ...,
    ) -> T: ...
    @overload
    def step(
        self,
        step_id: str,
        action: Action,
        payload: Any,
        perform: Perform,
        *,
        probe: ProbeFunction | None = ...,
        result: Any = ...,
        options: StepOptions = ...,
    ) -> Any: ...
    def step(
        self,
        step_id: str,
        action: Action,
        payload: Any,
        perform: Perform,
        *,
        probe: ProbeFunction | None = None,
        result: Any = None,
        options: StepOptions = _DEFAULTS,
    ) -> Any:
        """Do one planned step, or return its recorded result; see `Run.step`. `perform` and `probe` run in this thread."""
        check_kind(result, step_id)
        desk = _Desk(self._run)
        call = self._run.prepare(step_id, action, payload, perform, probe=probe, options=options, start=desk.start)
        return read_result(step_id, self._portal.serve(self._run.perform(call), desk), result)

    def finish(self, result: Any = None) -> None:
        """Record success; see `Run.finish`."""
        self._portal.ask(self._run.finish(result))

    def fail(self, reason: str, message: str = "") -> NoReturn:
        """End the run as Failed; see `Run.fail`."""
        self._portal.ask(self._run.fail(reason, message))

    def halt(self, reason: str, message: str = "") -> NoReturn:
        """Ask a person; see `Run.halt`."""
        self._portal.ask(self._run.halt(reason, message))


class SyncConnection:
    """`with` it in the main thread, so that SIGTERM can drain. Made by `connect_sync`."""

    def __init__(
        self,
        settings: Settings,
        options: Options,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        classifiers: Sequence[Classifier] | None = None,
        exit_process: Callable[[int], NoReturn] = os._exit,
    ) -> None:
        self._settings = settings
        self._options = options
        self._transport = transport
        self._classifiers = classifiers
        self._exit_process = exit_process
        self._before: Any = None
        self._handling = False

    def __enter__(self) -> SyncRun:
        """Claim the run. A stop that the claim brings is treated as if the block had raised it."""
        self._portal = _Portal()
        try:
            self._session = self._portal.ask(self._make())
            self._listen_to_sigterm()
            self._portal.ask(self._session.open(self._interrupt))
            self._session.latch.check()
        except BaseException as error:
            self._end(error)
            if isinstance(error, Stop):
                leave(error, error, self._options)
            raise
        return SyncRun(Run(self._session, self._classifiers), self._portal)

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        """Settle, release, and end as documented for `connect`."""
        given = error
        stop, error = how_it_ends(self._session, error)
        self._end(stop or error)
        if stop is not None:
            leave(stop, error, self._options)
        if error is not None and error is not given:
            raise error

    async def _make(self) -> Session:
        return Session(self._settings, self._options, transport=self._transport, exit_process=self._exit_process)

    def _end(self, error: BaseException | None) -> None:
        self._portal.inside += 1
        try:
            if self._session.opened:
                self._portal.ask(self._session.close(error))
        finally:
            if self._handling:
                signal.signal(signal.SIGTERM, self._before)
            self._portal.close()

    def _listen_to_sigterm(self) -> None:
        if self._options.handle_sigterm and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_sigterm)
            self._handling = True

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        """First drain; once everything has settled, `_interrupt` comes back here to break what the user's code is waiting for."""
        latch = self._session.latch
        if latch.stop is None:
            self._portal.loop.call_soon_threadsafe(self._session.drain)
        elif not self._portal.inside:
            latch.check()

    def _interrupt(self) -> None:
        if self._handling:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def connect_sync(
    *,
    settings: Settings | None = None,
    options: Options | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    classifiers: Sequence[Classifier] | None = None,
    environ: Mapping[str, str] | None = None,
) -> SyncConnection:
    """Return the block that claims this worker's run: `with stepfence.connect_sync() as run:`. See `connect`."""
    return SyncConnection(settings or Settings.from_environ(environ), options or Options(), transport=transport, classifiers=classifiers)
