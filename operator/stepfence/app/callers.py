"""Which pods may speak of a run; those that may not are remembered for a moment, so that their calls cost no read."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from stepfence.app.apply import Applier
from stepfence.core import fencing
from stepfence.core.errors import Code, Refused
from stepfence.ports import Caller, RunKey, WorkerGate

__all__ = ["Callers"]

# As long as a pod without owners is taken for one.
_SECONDS = 10.0
_RUNS = 4
_PODS = 4096


@dataclass(slots=True)
class _Seen:
    until: float
    runs: set[RunKey] = field(default_factory=set)


class _Strangers:
    """By the pod's uid. Time comes in as monotonic seconds. At most `_PODS` are kept, the one seen first goes first."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def knows(self, pod_uid: str, run: RunKey, now: float) -> bool:
        """Whether that pod was refused at that run a moment ago. Raises `Refused(OVER_BUDGET)` when it goes from run to run."""
        seen = self._seen.get(pod_uid)
        if seen is None or now >= seen.until:
            return False
        if run in seen.runs:
            return True
        if len(seen.runs) >= _RUNS:
            # Not a no: it may be the worker of this one.
            raise Refused(Code.OVER_BUDGET, f"this pod asked for {_RUNS} runs of others", retry_after=max(1.0, seen.until - now))
        return False

    def note(self, pod_uid: str, run: RunKey, now: float) -> None:
        """Remember that the pod is no worker of that run."""
        seen = self._seen.get(pod_uid)
        if seen is None or now >= seen.until:
            self._seen.pop(pod_uid, None)
            seen = self._seen[pod_uid] = _Seen(now + _SECONDS)
        seen.runs.add(run)
        while len(self._seen) > _PODS:
            self._seen.popitem(last=False)


class Callers:
    """Tells the workers of a run from all other pods."""

    def __init__(self, applier: Applier, gate: WorkerGate) -> None:
        self._applier, self._gate = applier, gate
        self._strangers = _Strangers()

    async def works_for(self, caller: Caller, key: RunKey) -> bool:
        """Whether the pod is a worker of that run: by its owners, or by the run's own word once they are gone.

        Raises `Unknown`, `Refused(OVER_BUDGET)` when a pod without owners goes from run to run.
        """
        identity = await self._gate.worker_of(caller)
        if identity is not None:
            return identity.run == key.name
        known = self._applier.known(key)
        if known is not None and fencing.vouches(known.run, caller.pod_uid):
            return True
        if self._strangers.knows(caller.pod_uid, key, self._applier.monotonic()):
            return False
        if await self._vouched(caller, key):
            return True
        self._strangers.note(caller.pod_uid, key, self._applier.monotonic())
        return False

    async def _vouched(self, caller: Caller, key: RunKey) -> bool:
        try:
            known = await self._applier.read(key)
        except Refused as refused:
            if refused.code is Code.NOT_FOUND:
                return False
            if refused.code is not Code.HELD:
                raise
            # The store went back in time: that is told to none but a worker, and its report may be true all the same (R13).
            held = self._applier.known(key)
            return held is not None and fencing.vouches(held.run, caller.pod_uid)
        return fencing.vouches(known.run, caller.pod_uid)
