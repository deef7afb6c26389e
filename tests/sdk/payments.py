"""One payment, tried by the SDK against the real routes and core: what became of it, and who is asked."""

import asyncio
from collections.abc import Callable
from typing import Any

import stepfence
from stepfence import Action, Options, Step, StepOptions
from stepfence.testing import MemoryCluster, MemoryRun
from tests.sdk import web

PLAN: list[dict[str, Any]] = [{"id": "refund", "action": "Payment", "attempts": 3, "backoffSeconds": 0}]
QUIET = Options(exit_on_stop=False, handle_sigterm=False, backoff_base=0.01)
Perform = Callable[[Any, Step], Any]
AskedFor = tuple[str, str]


async def played(perform: Perform, *, limit: float | None = None, classifiers: Any = None, sync: bool = False) -> MemoryRun:
    """Run the step once by a worker, until it is done, failed for good, or halted."""
    async with MemoryCluster() as cluster:
        run = await cluster.create("refund", plan=PLAN, input={})
        worker = await run.worker()
        options = StepOptions(limit=limit, classifiers=classifiers)
        try:
            if sync:
                await asyncio.to_thread(_in_sync, worker, perform, options)
            else:
                async with worker.connect(QUIET) as connected:
                    await connected.step("refund", Action.PAYMENT, {}, perform, options=options)
                    await connected.finish()
        except (stepfence.Stop, stepfence.StepFailed):
            pass
        return run


def _in_sync(worker: Any, perform: Perform, options: StepOptions) -> None:
    with worker.connect_sync(QUIET) as connected:
        connected.step("refund", Action.PAYMENT, {}, perform, options=options)
        connected.finish()


def told(run: MemoryRun) -> AskedFor:
    """State of the step, and whether a person is asked."""
    return run.status["ledger"]["refund"]["state"], "asked" if any(key.startswith("refund.") for key in run.questions) else "not asked"


IN_DOUBT = ("Unknown", "asked")
FAILED = ("Failed", "not asked")


async def in_doubt(perform: Perform, provider: Any, *, applied: int = 1, **how: Any) -> None:
    """The step is in doubt, a person is asked, and the request went out once."""
    run = await played(perform, **how)
    assert told(run) == IN_DOUBT, run.status["ledger"]["refund"]
    assert len(provider.applied if isinstance(provider, web.Provider) else provider.asked) == applied
