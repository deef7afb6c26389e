"""Use cases over ports, shared by controller, gateway and the in-process gateway of `stepfence.testing`."""

from stepfence.app.apply import Applied, Applier, Budget, Edit
from stepfence.app.bodies import Bodies
from stepfence.app.proofs import TokenProofs
from stepfence.app.worker_calls import WorkerCalls

__all__ = ["Applied", "Applier", "Bodies", "Budget", "Edit", "TokenProofs", "WorkerCalls"]
