"""`connect`: the claim as a block, and what leaving it means."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

import httpx
import structlog

from stepfence.sdk.classify import Classifier
from stepfence.sdk.errors import NotFinished, Stop
from stepfence.sdk.run import Run
from stepfence.sdk.session import Claimer, Session
from stepfence.sdk.settings import Options, Settings

__all__ = ["Connection", "connect", "how_it_ends", "leave", "run", "stop_in"]

log = structlog.get_logger(__name__)


class Connection:
    """`async with` it in the program's main task. Made by `connect`."""

    def __init__(
        self,
        settings: Settings,
        options: Options,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        classifiers: Sequence[Classifier] | None = None,
        claimer: Claimer | None = None,
        exit_process: Callable[[int], NoReturn] = os._exit,
    ) -> None:
        self._settings = settings
        self._options = options
        self._transport = transport
        self._classifiers = classifiers
        self._claimer = claimer
        self._exit_process = exit_process
        self._session: Session | None = None
        self._owner: asyncio.Task[Any] | None = None
        self._interrupted = 0

    async def __aenter__(self) -> Run:
        """Claim the run. A stop that the claim brings is treated as if the block had raised it."""
        self._owner = asyncio.current_task()
        session = Session(
            self._settings,
            self._options,
            transport=self._transport,
            claimer=self._claimer,
            exit_process=self._exit_process,
        )
        try:
            await session.open(self._interrupt)
            session.latch.check()
        except Stop as stop:
            if session.opened:
                await session.close(stop)
            leave(stop, stop, self._options)
        self._session = session
        return Run(session, self._classifiers)

    async def __aexit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        """Settle, release, and end as documented: a stop ends the process with its exit code, an exception goes on."""
        session, owner = self._session, self._owner
        assert session is not None and owner is not None, "entered first"  # noqa: S101, PT018  (a fault of ours)
        self._session = None
        for _ in range(self._interrupted):
            owner.uncancel()
        stop, error = how_it_ends(session, error)
        cancelled = await _whatever_cancels(asyncio.create_task(session.close(stop or error)))
        if stop is not None:
            leave(stop, error, self._options)
        if isinstance(error, NotFinished):
            raise error
        if cancelled is not None and owner.cancelling():
            raise cancelled

    def _interrupt(self) -> None:
        """Cancel the task that holds the block, as a time-out would."""
        if self._session is not None and self._owner is not None:
            self._interrupted += 1
            self._owner.cancel("stepfence: the worker must stop")


async def _whatever_cancels(task: asyncio.Task[None]) -> asyncio.CancelledError | None:
    """Wait for a task that must not be left half done; return the cancellation that came meanwhile."""
    cancelled = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    return cancelled


def how_it_ends(session: Session, error: BaseException | None) -> tuple[Stop | None, BaseException | None]:
    """Return the stop by which the block is left, if any, and the exception: a latched stop counts whatever a framework made of it."""
    stop = stop_in(error) or (session.latch.stop if session.ended is None else None)
    if error is None and stop is None and session.ended is None:
        error = NotFinished("the block was left without run.finish, run.fail or run.halt: that is no success")
    return stop, error


def leave(stop: Stop, cause: BaseException | None, options: Options) -> NoReturn:
    """End by a stop: `SystemExit` with its code, or the stop itself when the options say so."""
    log.info("stepfence.stopped", stop=type(stop).__name__, detail=stop.detail, question=stop.question, patch=stop.patch)
    if options.exit_on_stop:
        raise SystemExit(stop.exit_code) from cause
    if cause is stop:
        raise stop
    raise stop.again() from cause


def stop_in(error: BaseException | None) -> Stop | None:
    """Return the stop that an exception is, or that a group of exceptions carries."""
    if isinstance(error, Stop):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := stop_in(inner)) is not None), None)
    return None


def connect(
    *,
    settings: Settings | None = None,
    options: Options | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    classifiers: Sequence[Classifier] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Connection:
    """Return the block that claims this worker's run: `async with stepfence.connect() as run:`.

    Raises `NotInARun` at once outside a run. `transport` replaces the network (`stepfence.testing`), `classifiers` the shipped ones.
    """
    return Connection(settings or Settings.from_environ(environ), options or Options(), transport=transport, classifiers=classifiers)


def run(main: Callable[[Run], Awaitable[None]], **how: Any) -> None:
    """Run `main(run)` as the whole program: connect, run, leave with the right exit code. `how` goes to `connect`."""

    async def whole() -> None:
        async with connect(**how) as connected:
            await main(connected)

    asyncio.run(whole())
