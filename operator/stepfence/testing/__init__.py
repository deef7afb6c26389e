"""Test an agent with no cluster: the same core, gateway routes and SDK in one process.

async def test_refund():
    async with MemoryCluster() as cluster:
        run = await cluster.create(plan=[{"id": "refund", "action": "Payment"}])
        worker = await run.worker()
        async with worker.connect() as connection:
            ...
"""

from stepfence.testing.clock import FakeClock, FakeIds
from stepfence.testing.cluster import MemoryCluster, MemoryRun, MemoryWorker

__all__ = ["FakeClock", "FakeIds", "MemoryCluster", "MemoryRun", "MemoryWorker"]
