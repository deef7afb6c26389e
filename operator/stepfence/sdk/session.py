"""A worker's hold on its run from claim to release: lease, stops from outside, leaving in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import httpx
import structlog

from stepfence.sdk import wire
from stepfence.sdk.calls import Calls, now
from stepfence.sdk.engine import Engine
from stepfence.sdk.errors import Draining, Fenced, Halted, Stop
from stepfence.sdk.latch import Latch, stop_from_word
from stepfence.sdk.perform import Ended
from stepfence.sdk.settings import Options, Settings
from stepfence.sdk.state import ClaimFile, StateDir
from stepfence.sdk.transport import Transport
from stepfence.sdk.upkeep import Upkeep

__all__ = ["Claimer", "Session"]

log = structlog.get_logger(__name__)

_RELEASE_SECONDS = 10.0
_LAST_RELEASE_SECONDS = 2.0

Claimer = Callable[[Calls], Awaitable[wire.Claim]]


class Session:
    """One claim. Made and used inside one event loop; `open` first, `close` last.

    `interrupt` makes the user's code stop when a stop comes from outside; `exit_process` is `os._exit`.
    """

    def __init__(
        self,
        settings: Settings,
        options: Options,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        claimer: Claimer | None = None,
        exit_process: Callable[[int], NoReturn] = os._exit,
    ) -> None:
        self.options = options
        self.latch = Latch()
        self._settings = settings
        self._transport = Transport(settings, transport)
        self.calls = Calls(self._transport, self.latch, options)
        self._claimer = claimer
        self._exit_process = exit_process
        self.state = StateDir(settings.state_dir) if settings.state_dir else None
        self.pool = ThreadPoolExecutor(options.concurrency, thread_name_prefix="stepfence")
        self.slots = asyncio.Semaphore(options.concurrency)
        self.ended: str | None = None
        self._claim: wire.Claim | None = None
        self._engine: Engine | None = None
        self._upkeep: asyncio.Task[None] | None = None
        self._signals = False
        self._files = contextlib.ExitStack()

    @property
    def claim(self) -> wire.Claim:
        """The answer to the claim."""
        assert self._claim is not None, "open() comes first"  # noqa: S101  (a fault of ours)
        return self._claim

    @property
    def opened(self) -> bool:
        """Whether the claim was answered, so that there is something to release."""
        return self._claim is not None

    @property
    def engine(self) -> Engine:
        """Carries out steps."""
        assert self._engine is not None, "open() comes first"  # noqa: S101
        return self._engine

    async def open(self, interrupt: Callable[[], None]) -> None:
        """Claim the run and begin to look after it. Raises a `Stop` when the claim says so, `CallRefused`, `NotInARun`."""
        self._listen_to_sigterm()
        try:
            self._claim = await (self._claimer(self.calls) if self._claimer else self._claim_alone())
        except BaseException:
            await self.shut()
            raise
        self._engine = Engine(self.calls, self.latch, self.options, margin=self.claim.margin_seconds, die=self._die)
        self._engine.plan = self.claim.plan
        stop = stop_from_word(self.claim.stop)
        if stop is not None:
            self.latch.set(stop)
        log.info("stepfence.claimed", run=self.claim.run_id, token=self.claim.token, stop=type(stop).__name__ if stop else None)
        self._upkeep = asyncio.create_task(Upkeep(self, self.claim.lease_seconds, interrupt).run(), name="stepfence:upkeep")
        self._upkeep.add_done_callback(self._upkeep_ended)

    def _upkeep_ended(self, task: asyncio.Task[None]) -> None:
        # It never ends by itself. A fault in it must not leave a worker that nobody can stop.
        if not task.cancelled():
            log.error("stepfence.upkeep.failed", exc_info=task.exception())
            self.latch.set(Draining("the SDK cannot look after the claim any more"))

    async def _claim_alone(self) -> wire.Claim:
        if self.state is not None and (self.state.draining() or not self._files.enter_context(self.state.in_flight())):
            raise Draining("this pod was told to go")
        claim = await self.calls.claim()
        if self.state is not None:
            mine = ClaimFile(
                kind="process", token=claim.token, token_proof=claim.token_proof, run_uid=claim.uid, worker=self._settings.worker
            )
            self.state.write_claim(mine)
        return claim

    def drain(self) -> None:
        """Begin nothing new from now on."""
        self.latch.set(Draining("the worker was told to go"))

    async def settle(self, budget: float | None) -> bool:
        """Wait until no step is in flight; return whether that came within `budget` seconds (None: however long steps may take)."""
        active = self._others()
        if active:
            log.info("stepfence.settling", steps=len(active))
            await asyncio.wait(active, timeout=budget)
        return not self._others()

    async def close(self, error: BaseException | None) -> None:
        """Settle what is in flight, release the run with the reason that `error` gives, and let go of everything."""
        try:
            if self._engine is not None:
                self._engine.leave()
            await self.settle(self.options.drain_budget)
            await self.release(self.release_reason(error))
        finally:
            await self.shut()

    def release_reason(self, error: BaseException | None) -> str | None:
        """Return why the run is let go, None when there is nothing to tell."""
        if isinstance(self.latch.stop, Fenced):
            return None
        if self.ended is not None:
            return self.ended
        stop = error if isinstance(error, Stop) else self.latch.stop
        return stop.release_reason if stop is not None else "Error"

    async def release(self, reason: str | None, seconds: float = _RELEASE_SECONDS) -> None:
        """Let the run go, and say so to the other processes of the pod. None: there is nothing to tell the gateway."""
        if reason is not None:
            await self.calls.release(reason, seconds)
        if self.state is not None:
            self.state.mark_released()

    async def shut(self) -> None:
        """Let go of loop, connections and files; what is not released stays claimed."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait({self._upkeep})
        if self._signals:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        self.pool.shutdown(wait=False, cancel_futures=True)
        self._files.close()
        await self._transport.aclose()

    def _listen_to_sigterm(self) -> None:
        # Only the main thread may; elsewhere the drain file and the gateway still say it.
        if self.options.handle_sigterm and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.drain)
            self._signals = True

    def _others(self) -> set[asyncio.Task[Ended]]:
        active = set() if self._engine is None else set(self._engine.active)
        current = asyncio.current_task()
        return {task for task in active if task is not current}

    async def _die(self, detail: str, until: float) -> NoReturn:
        """End the process: a thread that may still send must be gone before its deadline plus margin (assumption A)."""
        log.error("stepfence.exit", detail=detail)
        self.latch.set(Halted(detail))
        await self.settle(max(0.0, until - _LAST_RELEASE_SECONDS - now()))
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_LAST_RELEASE_SECONDS):
                await self.release(None if isinstance(self.latch.stop, Fenced) else "Error", _LAST_RELEASE_SECONDS)
        self._exit_process(Halted.exit_code)
