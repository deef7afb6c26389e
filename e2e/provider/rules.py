"""The instructions: which request a rule acts on, and the calls that hang in one."""

import asyncio
from dataclasses import dataclass, field

from .journal import Caller
from .wire import Match, Route, Rule, RuleState

PLAIN = Rule(match=Match(route=Route.READ_ORDER))  # what holds for a request that no rule matches: no fault


@dataclass
class _Active:
    id: int
    rule: Rule
    seen: int = 0
    applied: int = 0
    hanging: set[asyncio.Future[bool]] = field(default_factory=set)

    def state(self) -> RuleState:
        return RuleState(id=self.id, rule=self.rule, seen=self.seen, applied=self.applied, hanging=len(self.hanging))


class Rules:
    """The rules in the order in which they were given, and what became of each."""

    def __init__(self) -> None:
        self._rules: list[_Active] = []
        self._last = 0

    def add(self, rule: Rule) -> RuleState:
        """Append a rule."""
        self._last += 1
        self._rules.append(_Active(self._last, rule))
        return self._rules[-1].state()

    def states(self) -> list[RuleState]:
        """Return all rules, used up or not."""
        return [active.state() for active in self._rules]

    def take(self, caller: Caller) -> tuple[Rule, set[asyncio.Future[bool]]]:
        """Return the rule for this request, counted as used once more, and where its hanging calls stand."""
        for active in self._rules:
            if not _matches(active.rule.match, caller):
                continue
            active.seen += 1
            count = active.rule.match.count
            if active.seen > active.rule.match.skip and (count is None or active.applied < count):
                active.applied += 1
                return active.rule, active.hanging
        return PLAIN, set()

    def release(self, rule: int | None = None, *, go_on: bool = True) -> int:
        """Let hanging calls go on, or end them with a cut connection. Returns how many."""
        waiting = [f for active in self._rules if rule in (None, active.id) for f in active.hanging if not f.done()]
        for future in waiting:
            future.set_result(go_on)
        return len(waiting)

    def clear(self) -> None:
        """Forget all rules; the calls that hang in them go on."""
        self.release()
        self._rules.clear()


def _matches(match: Match, caller: Caller) -> bool:
    wanted = ((match.key, caller.key), (match.run, caller.run), (match.step, caller.step))
    return match.route == caller.route and all(want is None or want == have for want, have in wanted)
