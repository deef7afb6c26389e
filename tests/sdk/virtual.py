"""A loop whose clock jumps to the next timer when nothing else is to be done: minutes of back-off take no time, and nothing sleeps."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, ParamSpec

P = ParamSpec("P")


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer it moves the loop's clock, unless a thread works: then it waits for the thread."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(None if self.loop.threads else 0)
        if not ready:
            self.loop.now += timeout
        if self.loop.now > self.loop.end:
            # A test that waits for what never comes must fail, not spin.
            self.loop.end = float("inf")
            raise TimeoutError("virtual time ran away: what the test waits for does not come")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at time 1000."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.end = 50_000.0
        self.threads = 0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        self.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_is_done)
        return future

    def _thread_is_done(self, _future: object) -> None:
        self.threads -= 1


def virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on a virtual clock."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
