"""One sight of a run, with the words that tests ask in."""

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class RunView:
    """An AgentRun as the API server gave it; an empty one stands for a run that is not there."""

    raw: Object

    @property
    def status(self) -> Object:
        """`status`, empty before the first write."""
        return self.raw.get("status") or {}

    @property
    def phase(self) -> str:
        """`status.phase`."""
        return str(self.status.get("phase", ""))

    @property
    def token(self) -> int:
        """`status.fencingToken`."""
        return int(self.status.get("fencingToken", 0))

    @property
    def holder(self) -> Object:
        """`status.holder`, empty when nobody holds the run."""
        return self.status.get("holder") or {}

    @property
    def worker(self) -> Object:
        """`status.worker`."""
        return self.status.get("worker") or {}

    @property
    def questions(self) -> dict[str, Object]:
        """`status.questions` by key."""
        return self.status.get("questions") or {}

    def question(self, kind: str) -> tuple[str, Object] | None:
        """The first open question of a kind, with its key."""
        return next(((key, each) for key, each in self.questions.items() if each["kind"] == kind), None)

    def entry(self, step: str) -> Object:
        """The ledger entry of a step, empty when it was never begun."""
        return (self.status.get("ledger") or {}).get(step) or {}

    def state(self, step: str) -> str:
        """The state of a step; `Planned` when it was never begun."""
        return str(self.entry(step).get("state", "Planned"))

    def condition(self, kind: str) -> Object:
        """The condition of a type, empty when there is none."""
        found = self.status.get("conditions") or []
        return next((each for each in found if each["type"] == kind), {})

    @property
    def terminal(self) -> bool:
        """Whether it has an outcome."""
        return bool(self.status.get("outcome"))
