"""One claim for all commands of a script: made by the first, kept in a file, released by the one that ends the run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import httpx

from stepfence.core.errors import StepfenceError
from stepfence.sdk import wire
from stepfence.sdk.calls import Calls, now
from stepfence.sdk.errors import Draining, NotInARun, Stop
from stepfence.sdk.run import Run
from stepfence.sdk.session import Claimer, Session
from stepfence.sdk.settings import Options, Settings
from stepfence.sdk.state import ClaimFile, StateDir

__all__ = ["drain_pod", "in_script"]

_POLL_SECONDS = 0.1
_LONGEST_WAIT = 3600.0


async def in_script(
    settings: Settings, options: Options, work: Callable[[Run], Awaitable[None]], transport: httpx.AsyncBaseTransport | None
) -> None:
    """Do `work` under the script's claim. A stop, and the end of the run, release it once no other command has a step in flight."""
    if settings.state_dir is None:
        raise NotInARun("STEPFENCE_STATE_DIR is not set: the commands of a script share their claim there")
    state = StateDir(settings.state_dir)
    session = Session(settings, options, transport=transport, claimer=_claimer(settings, state))
    try:
        stop = await _work(session, state, work)
        held = session.opened or _shared(session.calls, settings, state) is not None
        if held and (stop is not None or session.ended is not None):
            await _release_when_alone(session, state, session.release_reason(stop))
    finally:
        await session.shut()
    if stop is not None:
        raise stop


async def _work(session: Session, state: StateDir, work: Callable[[Run], Awaitable[None]]) -> Stop | None:
    with state.in_flight() as free:
        try:
            if not free or state.draining():
                raise Draining("this pod was told to go")
            await session.open(lambda: None)
            session.latch.check()
            await work(Run(session))
            if isinstance(session.latch.stop, Draining):
                # This command settled its step; the next one must not begin another.
                state.order_drain()
        except Stop as stop:
            await session.settle(session.options.drain_budget)
            return stop
    return None


async def _release_when_alone(session: Session, state: StateDir, reason: str | None) -> None:
    until = now() + _LONGEST_WAIT
    while now() < until:
        with state.alone() as alone:
            if alone:
                if not state.released.exists():
                    await session.release(reason)
                return
        await asyncio.sleep(_POLL_SECONDS)


def _claimer(settings: Settings, state: StateDir) -> Claimer:
    async def claim(calls: Calls) -> wire.Claim:
        until = now() + _LONGEST_WAIT
        while now() < until:
            with state.claiming() as mine:
                if mine:
                    return _shared(calls, settings, state) or await _fresh(calls, settings, state)
            await asyncio.sleep(_POLL_SECONDS)
        raise Draining("another command of this script holds the claim for too long")

    return claim


def _shared(calls: Calls, settings: Settings, state: StateDir) -> wire.Claim | None:
    known = state.read_claim()
    if known is None or known.kind != "exec" or state.released.exists():
        return None
    if (known.run_uid, known.worker) != (settings.run_uid, settings.worker):
        return None
    calls.adopt(known.token, known.token_proof)
    return known.claim


async def _fresh(calls: Calls, settings: Settings, state: StateDir) -> wire.Claim:
    claim = await calls.claim()
    state.write_claim(
        ClaimFile(
            kind="exec",
            token=claim.token,
            token_proof=claim.token_proof,
            run_uid=settings.run_uid,
            worker=settings.worker,
            claim=claim.model_copy(update={"ledger": {}}),
        )
    )
    return claim


async def drain_pod(settings: Settings, options: Options, seconds: float, transport: httpx.AsyncBaseTransport | None) -> int:
    """Order the pod's worker to drain and wait until the run is released: 0 when it is, 1 when that took too long.

    A worker that is gone, or a script between two commands, releases nothing by itself: then it is done here.
    """
    if settings.state_dir is None:
        raise NotInARun("STEPFENCE_STATE_DIR is not set: the worker is told there")
    state = StateDir(settings.state_dir)
    state.order_drain()
    known = state.read_claim()
    if known is None:
        return 0
    session = Session(settings, options, transport=transport)
    session.calls.adopt(known.token, known.token_proof)
    try:
        with contextlib.suppress(Stop, StepfenceError):
            await session.calls.drain(min(5.0, seconds))
        return 0 if await _released(session, state, seconds) else 1
    finally:
        await session.shut()


async def _released(session: Session, state: StateDir, seconds: float) -> bool:
    until = now() + seconds
    while not state.released.exists():
        with state.alone() as alone:
            if alone and not state.released.exists():
                await session.release(Draining.release_reason)
                return True
        if now() >= until:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True
