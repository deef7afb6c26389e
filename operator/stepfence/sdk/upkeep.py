"""What goes on beside the user's code: the lease, the order to drain, and making the code stop when a stop comes from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from stepfence.sdk.calls import Calls, now
from stepfence.sdk.errors import CallRefused, NotInARun, Stop
from stepfence.sdk.latch import Latch, stop_from_word
from stepfence.sdk.settings import Options
from stepfence.sdk.state import StateDir
from stepfence.sdk.transport import Unavailable
from stepfence.sdk.wire import MalformedAnswer

__all__ = ["Upkeep"]

log = structlog.get_logger(__name__)

_PATIENCE_WITH_USER_CODE = 10.0


class Watched(Protocol):
    """What is looked after."""

    latch: Latch
    calls: Calls
    options: Options
    state: StateDir | None

    def drain(self) -> None: ...

    async def settle(self, budget: float | None) -> bool: ...


class Upkeep:
    """Runs until it is cancelled. `lease` in seconds; `interrupt` makes the user's code stop."""

    def __init__(self, session: Watched, lease: float, interrupt: Callable[[], None]) -> None:
        self._session = session
        self._every = lease / 3
        self._interrupt = interrupt

    async def run(self) -> None:
        """Renew, watch and usher out, together."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew())
            group.create_task(self._usher_out())
            if self._session.state is not None:
                group.create_task(self._watch_for_drain(self._session.state))

    async def _renew(self) -> None:
        """Renew the lease whenever no other call did for a third of it. Its answer also says what has come up."""
        calls = self._session.calls
        tried = calls.last_write
        while True:
            await asyncio.sleep(max(0.0, max(calls.last_write, tried) + self._every - now()))
            if now() < calls.last_write + self._every:
                continue
            tried = now()
            try:
                stop = stop_from_word((await calls.renew()).stop)
            except (Unavailable, MalformedAnswer) as error:
                log.warning("stepfence.renew.unheard", cause=str(error))
            except (CallRefused, NotInARun) as refused:
                log.warning("stepfence.renew.refused", answer=str(refused))
            except Stop:
                return
            else:
                if stop is not None:
                    self._session.latch.set(stop)

    async def _watch_for_drain(self, state: StateDir) -> None:
        while not state.draining():  # noqa: ASYNC110  (another process gives the order, by a file)
            await asyncio.sleep(self._session.options.watch_interval)
        self._session.drain()

    async def _usher_out(self) -> None:
        """After a stop: let steps settle, then make the user's code leave, at once when it has not seen the stop yet."""
        latch = self._session.latch
        await latch.event.wait()
        await self._session.settle(self._session.options.drain_budget)
        if latch.delivered:
            await asyncio.sleep(_PATIENCE_WITH_USER_CODE)
        while True:
            log.info("stepfence.interrupt", stop=type(latch.stop).__name__)
            self._interrupt()
            await asyncio.sleep(_PATIENCE_WITH_USER_CODE)
