"""What a history starts from: steps, provider, program, and which kinds of trouble may strike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from stepfence.core.model import StepSpec
from stepfence.core.words import Action, Recovery, Settings
from stepfence.testing.builders import step

SETTINGS = Settings(margin=2, lease=5, unresponsive=15, backoff_base=1, backoff_cap=4)
TROUBLE = frozenset(
    {"net", "slow", "send", "kill", "vanish", "erase", "hang", "extra", "people", "force", "stale", "wrong", "cancel", "suspend", "drain"}
    | {"halt", "probe"}
)
# These end or stall many a history early, so most go without.
_SOMETIMES = ("cancel", "suspend", "drain", "halt", "wrong", "force", "kill", "erase", "hang", "net", "slow", "vanish")


@dataclass(frozen=True)
class Scenario:
    """`program`: the steps in a row, two `exec` calls of one claim that do the same, or one thread a step."""

    steps: tuple[StepSpec, ...]
    honours: bool = True
    program: str = "row"
    active_deadline: int | None = None
    # Whether the real decision drives pods, or a short model of it.
    decides: bool = False
    trouble: frozenset[str] = TROUBLE
    settings: Settings = field(default=SETTINGS)
    # Directed search: only moves whose label matches may be made.
    only: str = ""
    # Guided search: three of four moves follow this order while they can, the fourth is any.
    guide: tuple[str, ...] = ()


def quick(name: str, action: Action, **asked: Any) -> StepSpec:
    """Return a step with a life short enough that everything can happen to it in a few dozen moves."""
    return step(name, action, **{"timeout": 4, "settle": 2, "backoff": 1, **asked})


def _kinds() -> list[Callable[[str, int, bool], StepSpec]]:
    return [
        lambda name, tries, ask: quick(name, Action.PAYMENT, attempts=tries, approval=ask),
        lambda name, tries, ask: quick(name, Action.CREATE, attempts=tries, approval_expires=5 if ask else None),
        lambda name, tries, _: quick(name, Action.READ, attempts=tries),
        lambda name, tries, ask: quick(name, Action.UPSERT, attempts=tries, approval_expires=9 if ask else None),
        lambda name, tries, _: quick(name, Action.PAYMENT, attempts=tries, probe_give_up=4),
        lambda name, tries, ask: quick(name, Action.DELETE, attempts=tries, approval_expires=6 if ask else None),
        lambda name, tries, ask: quick(name, Action.PAYMENT, attempts=tries, recovery=Recovery.RESEND_WITH_KEY, key_ttl=14, approval=ask),
        lambda name, tries, _: quick(name, Action.UPSERT, attempts=tries, recovery=Recovery.HALT),
        lambda name, tries, _: quick(name, Action.CREATE, attempts=tries, recovery=Recovery.RERUN),
    ]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Draw any mixture of step kinds, recoveries, programs and limits."""
    kinds = _kinds()
    made = tuple(
        kinds[draw(st.integers(0, len(kinds) - 1))](name, draw(st.integers(1, 2)), draw(st.booleans()))
        for name in ("a", "b")[: draw(st.integers(1, 2))]
    )
    resends = any(one.recovery is Recovery.RESEND_WITH_KEY for one in made)
    return Scenario(
        steps=made,
        honours=resends or draw(st.booleans()),
        program=draw(st.sampled_from(("row", "twice", "together"))),
        decides=draw(st.booleans()),
        active_deadline=draw(st.sampled_from((None, None, None, 12))),
        trouble=(TROUBLE - frozenset(_SOMETIMES)) | draw(st.sets(st.sampled_from(_SOMETIMES), max_size=5)),
    )
