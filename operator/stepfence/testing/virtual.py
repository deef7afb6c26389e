"""A loop whose clock jumps to the next timer when nothing else is to be done: minutes of back-off take no time, and nothing sleeps."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import datetime, timedelta
from typing import Any

from stepfence.testing.clock import EPOCH

__all__ = ["LoopClock", "VirtualLoop"]

# The loop's own wake-up pipe is always registered; anything more is a real connection of the agent under test.
_OWN_DESCRIPTORS = 1
_QUIET_SECONDS = 0.2
LONGEST_REAL_WAIT = 60.0


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer it moves the loop's clock, unless a thread or a real connection may still bring something."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        if timeout is None:
            ready = super().select(LONGEST_REAL_WAIT)
            if not ready:
                raise TimeoutError(f"nothing happened for {LONGEST_REAL_WAIT:.0f} seconds, and no timer is set")
            return ready
        if self.loop.threads > 0:
            ready = super().select(LONGEST_REAL_WAIT)
            if not ready:
                # It waits for what never comes: from now on the clock goes on without it.
                self.loop.threads = 0
            return ready
        real = len(self.get_map()) > _OWN_DESCRIPTORS
        ready = super().select(min(timeout, _QUIET_SECONDS) if real else 0)
        if not ready:
            self.loop.now += timeout
        if self.loop.now > self.loop.end:
            self.loop.end = math.inf  # what still has to be torn down may take its time
            raise TimeoutError("virtual time ran away: what is waited for does not come")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at time 1000. `threads` counts threads that work and will wake the loop: while it is above 0 the clock stands.

    `end`: the time after which it raises `TimeoutError` rather than go on for ever.
    """

    def __init__(self, *, end: float = math.inf) -> None:
        self.now, self.end = 1000.0, end
        self.threads = 0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Return virtual seconds."""
        return self.now

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run it in a thread, during which the clock stands."""
        self.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_is_done)
        return future

    def _thread_is_done(self, _future: object) -> None:
        self.threads -= 1


class LoopClock:
    """The `Clock` port on a loop's time: wall clock in milliseconds, as it is stored."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._start = loop, loop.time()

    def now(self) -> datetime:
        """Return the wall clock."""
        return EPOCH + timedelta(milliseconds=int(self.monotonic() * 1000))

    def monotonic(self) -> float:
        """Return seconds since the start."""
        return self._loop.time() - self._start
