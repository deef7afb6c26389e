"""What can go wrong with a cluster of ours, and the one way to wait for something."""

import time
from collections.abc import Callable
from typing import TypeVar

_POLL_SECONDS = 0.05

T = TypeVar("T")


class ClusterError(RuntimeError):
    """The cluster, or a program that it needs, did not do what was asked; the message says what and shows the evidence."""


class ClusterTimeout(ClusterError):
    """A fact did not come true before its deadline."""


def eventually(
    what: str,
    probe: Callable[[], T | None],
    *,
    seconds: float,
    evidence: Callable[[], str] = lambda: "",
) -> T:
    """Poll `probe` until it gives something true, and return that.

    `what` names the fact for the error; `evidence` is called for the error only (say, the tail of a log). A probe that
    raises ends the wait at once: it knows that the fact cannot come true any more.

    Raises:
        ClusterTimeout: the fact is not there `seconds` seconds from now.
    """
    deadline = time.monotonic() + seconds
    while True:
        if found := probe():
            return found
        if time.monotonic() > deadline:
            raise ClusterTimeout(f"no {what} after {seconds:g} s\n{evidence()}".rstrip())
        time.sleep(_POLL_SECONDS)
