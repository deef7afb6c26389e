"""Reviews of tokens, remembered: what anybody sends costs the API server a bounded number of calls."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from stepfence.core.errors import Code, Refused
from stepfence.ports import Caller, Clock
from stepfence.stores.rates import Rates
from stepfence.stores.ttl_cache import TtlCache

__all__ = ["ReviewLimits", "Reviews"]

_GOOD_SECONDS = 60.0
# Short: a token may be read a moment before the API server takes it. A worker asks again for half a minute.
_BAD_SECONDS = 5.0
_CACHED = 4096
_BURST_SECONDS = 5
# Of the connections to the API server: the others are for what is known already.
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class ReviewLimits:
    """Reviews a second that may come to nothing, and five times as many at once: in all, and for one address."""

    per_second: int = 50
    per_address: int = 10


class Reviews:
    """Asks about a token once, however many calls bring it at the same time. Only hashes of tokens are kept.

    A review that finds a pod is not counted against its address: many workers may share one, behind a NAT.
    """

    def __init__(self, ask: Callable[[str], Awaitable[Caller]], clock: Clock, limits: ReviewLimits | None = None) -> None:
        self._ask, self._clock = ask, clock
        self._limits = limits or ReviewLimits()
        self._good: TtlCache[bytes, Caller] = TtlCache(_CACHED)
        # Apart, so that a flood of wrong tokens pushes no good one out.
        self._bad: TtlCache[bytes, str] = TtlCache(_CACHED)
        self._running: dict[bytes, asyncio.Task[Caller]] = {}
        self._by_address: Rates[str] = Rates(self._limits.per_address, self._limits.per_address * _BURST_SECONDS)
        self._in_all: Rates[None] = Rates(self._limits.per_second, self._limits.per_second * _BURST_SECONDS)
        self._places = asyncio.Semaphore(_AT_ONCE)
        self.asked = self.remembered = self.limited = 0

    async def caller(self, bearer: str, address: str) -> Caller:
        """Return whose token it is. Raises `Refused`: UNAUTHENTICATED, or OVER_BUDGET when too many wrong ones came; `Unknown`."""
        token = hashlib.sha256(bearer.encode(errors="replace")).digest()
        now = self._clock.monotonic()
        caller = self._good.get(token, now)
        if caller is not None:
            return caller
        wrong = self._bad.get(token, now)
        if wrong is not None:
            self.remembered += 1
            raise Refused(Code.UNAUTHENTICATED, wrong)
        if token not in self._running:
            self._take(address, now)
            task = self._running[token] = asyncio.create_task(self._review(token, bearer, address), name="token review")
            task.add_done_callback(lambda done: self._forget(token, done))
        # Others may wait for the same review: it goes on when this call is given up.
        return await asyncio.shield(self._running[token])

    def _take(self, address: str, now: float) -> None:
        wait = self._by_address.take(address, now)
        if not wait:
            wait = self._in_all.take(None, now)
            if wait:
                self._by_address.give_back(address)
        if wait:
            self.limited += 1
            detail = "too many tokens that are not known were sent from here: repeat this call"
            raise Refused(Code.OVER_BUDGET, detail, retry_after=max(1.0, math.ceil(wait)))

    async def _review(self, token: bytes, bearer: str, address: str) -> Caller:
        try:
            async with self._places:
                self.asked += 1
                began = self._clock.monotonic()
                caller = await self._ask(bearer)
        except Refused as refused:
            if refused.code is Code.UNAUTHENTICATED:
                self._bad.put(token, refused.detail, self._clock.monotonic() + _BAD_SECONDS)
            raise
        self._good.put(token, caller, began + _GOOD_SECONDS)
        self._by_address.give_back(address)
        self._in_all.give_back(None)
        return caller

    def _forget(self, token: bytes, done: asyncio.Task[Caller]) -> None:
        del self._running[token]
        if not done.cancelled():
            done.exception()  # read, though all who waited may be gone
