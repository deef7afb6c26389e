"""What is known of workers without a cluster: the table of workers says it."""

from __future__ import annotations

from stepfence.core.errors import Code, Refused
from stepfence.core.fencing import HolderFact
from stepfence.core.model import Run
from stepfence.core.words import At
from stepfence.core.world import pod_over
from stepfence.local.workers import Workers, token_hash
from stepfence.ports import Caller, Clock, WorkerIdentity

__all__ = ["LocalGate"]


class LocalGate:
    """The `WorkerGate` of one machine: each worker has a random token of its own, in a file that only its user can read."""

    def __init__(self, workers: Workers, clock: Clock) -> None:
        self._workers, self._clock = workers, clock

    async def identify(self, bearer: str, address: str = "") -> Caller:  # noqa: ARG002  (the port's shape)
        """See `WorkerGate.identify`."""
        row = await self._workers.by_token(token_hash(bearer))
        if row is None:
            raise Refused(Code.UNAUTHENTICATED, "this token is not known")
        return Caller(row.key.namespace, row.pod, row.uid)

    async def worker_of(self, caller: Caller) -> WorkerIdentity | None:
        """See `WorkerGate.worker_of`."""
        row = await self._workers.by_uid(caller.pod_uid)
        return None if row is None else WorkerIdentity(row.key.name, row.run_uid, row.job)

    async def holder(self, run: Run) -> HolderFact:
        """See `WorkerGate.holder`. A worker is forgotten only after its end."""
        row = await self._workers.by_uid(run.holder.pod_uid) if run.holder is not None else None
        if row is None:
            return HolderFact.OVER
        return HolderFact.OVER if pod_over(row.pod_fact(), run.holder, row.lease_at, At(self._clock.now(), "")) else HolderFact.ALIVE

    async def renew(self, run: Run, caller: Caller) -> None:  # noqa: ARG002  (the port's shape)
        """See `WorkerGate.renew`."""
        await self._workers.renew(caller.pod_uid, self._clock.now())
