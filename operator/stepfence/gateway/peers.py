"""How many gateways share the byte budget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from stepfence.app.budget import ByteBudget
from stepfence.core.errors import StepfenceError
from stepfence.gateway.metrics import Metrics

__all__ = ["follow_share"]

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 10.0


async def follow_share(budget: ByteBudget, metrics: Metrics, count: Callable[[], Awaitable[int]]) -> None:
    """Keep this gateway's share of the budget up to date, until cancelled. Where nothing can be learnt, the last share stays."""
    while True:
        try:
            ready = await count()
        except StepfenceError as error:
            log.warning("gateway.share.unknown", error=str(error))
        else:
            # A gateway that is not listed yet takes part all the same.
            budget.share(max(1, ready))
        metrics.budget_rate.set(budget.rate)
        await asyncio.sleep(_LOOK_SECONDS)
