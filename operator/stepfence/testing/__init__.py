"""Test an agent with no cluster: the same core, gateway routes and SDK in one process.

async def test_refund():
    await drive(agent, crashes="every", input={"order": "4711"})

`MemoryCluster` is what `drive` is made of, for tests that tell a story of their own. Names are loaded when first used, so that the
pytest plugin costs nothing where it is not used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepfence.testing.clock import FakeClock, FakeIds
    from stepfence.testing.cluster import MemoryCluster, MemoryRun, MemoryWorker
    from stepfence.testing.driving import drive
    from stepfence.testing.life import Effects
    from stepfence.testing.points import CrashPoint
    from stepfence.testing.report import NotRestartSafe, Report

_HOMES = {
    "CrashPoint": "points",
    "Effects": "life",
    "FakeClock": "clock",
    "FakeIds": "clock",
    "MemoryCluster": "cluster",
    "MemoryRun": "cluster",
    "MemoryWorker": "cluster",
    "NotRestartSafe": "report",
    "Report": "report",
    "drive": "driving",
}
__all__ = [
    "CrashPoint",
    "Effects",
    "FakeClock",
    "FakeIds",
    "MemoryCluster",
    "MemoryRun",
    "MemoryWorker",
    "NotRestartSafe",
    "Report",
    "drive",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        try:
            return getattr(import_module(f"stepfence.testing.{_HOMES[name]}"), name)
        except ModuleNotFoundError as missing:
            raise ImportError(f"{missing}: stepfence.testing needs the extra: stepfence[testing]") from missing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
