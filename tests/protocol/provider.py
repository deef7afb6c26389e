"""The outside provider with a log of its own: what really happened, and who can see it when."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from stepfence.core.canonical import canonical
from stepfence.core.model import StepSpec


@dataclass
class Flight:
    """A request on its way: it lands before `bound` or never (assumption A)."""

    step: StepSpec
    attempt: int
    key: str
    pod_uid: str
    deadline: datetime
    thread: object = None

    def __str__(self) -> str:
        return f"{self.step.id}#{self.attempt}"


@dataclass
class Effect:
    """One effect. A probe or a person sees it once it is visible, at the latest at the bound of its flight."""

    flight: Flight
    at: datetime
    answer: str
    visible: bool = False


@dataclass
class Provider:
    """Counts effects. With `honours`, a known key gets the first answer and no second effect for as long as the key lives."""

    honours: bool = True
    effects: list[Effect] = field(default_factory=list)
    answers: dict[str, set[str]] = field(default_factory=dict)
    _known: dict[str, tuple[datetime, str]] = field(default_factory=dict)

    def land(self, flight: Flight, now: datetime) -> tuple[str, Effect | None]:
        """Receive a request; return the answer, and the effect if it had one."""
        life = flight.step.key_ttl
        known = self._known.get(flight.key)
        if self.honours and known is not None and (life is None or (now - known[0]).total_seconds() < life):
            return known[1], None
        answer = canonical({"id": f"{flight.key[:8]}-{len(self.effects) + 1}"})
        self._known.setdefault(flight.key, (now, answer))
        if known is not None:
            self._known[flight.key] = (now, answer)
        effect = Effect(flight, now, answer)
        self.effects.append(effect)
        self.answers.setdefault(flight.step.id, set()).add(answer)
        return answer, effect

    def of(self, step: str) -> list[Effect]:
        """Return the effects of a step."""
        return [effect for effect in self.effects if effect.flight.step.id == step]

    def look(self, step: str) -> str | None:
        """Return what the log shows of a step at this moment: the answer of its first visible effect, or nothing."""
        return next((effect.answer for effect in self.of(step) if effect.visible), None)
