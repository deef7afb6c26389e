"""Tests on a clock that jumps: minutes of back-off take no time, and nothing sleeps."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec

from stepfence.testing.virtual import VirtualLoop

P = ParamSpec("P")

# A test that waits for what never comes must fail, not spin.
_END = 50_000.0


def virtual_time(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Run an async test on a virtual clock."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(end=_END)) as runner:
            runner.run(test(*args, **kwargs))

    return run
