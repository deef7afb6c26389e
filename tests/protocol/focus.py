"""For each rule a small world in which its hole lies close: the steps and the kinds of trouble that the hole is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepfence.core.entry import StepSpec
from stepfence.core.words import Action, Recovery
from tests.protocol import rules
from tests.protocol import violations as v
from tests.protocol.rules import TakenOut
from tests.protocol.scenario import Scenario, quick


@dataclass(frozen=True)
class Focus:
    """One hole of the protocol: the rule against it, where to look, and what must be seen once the rule is out."""

    hole: str
    out: TakenOut
    scenario: Scenario
    kinds: frozenset[str]

    @property
    def name(self) -> str:
        """The name of the test."""
        return f"{self.hole}-{self.out.__name__}"


def _focus(hole: str, out: TakenOut, trouble: str, *kinds: str, steps: tuple[StepSpec, ...] = (), **world: Any) -> Focus:
    made = steps or (quick("a", Action.PAYMENT),)
    return Focus(hole, out, Scenario(made, trouble=frozenset(trouble.split()), **world), frozenset(kinds))


_RESEND = quick("a", Action.PAYMENT, attempts=2, recovery=Recovery.RESEND_WITH_KEY, key_ttl=8)
_PROBE = quick("a", Action.PAYMENT, probe_give_up=6)
_TRIES = (quick("a", Action.PAYMENT, attempts=3),)
_UPSERTS = (quick("a", Action.UPSERT), quick("b", Action.UPSERT))
# The kinds of move that a hole is made of, where there are too many others to meet it by chance within seconds.
_FAIL_AFTER_DOUBT = r"claim$|begin$|sends \((mute|refused)\)|report$|lands"
_LATE_COPY = r"claim$|begin$|t send$|sends \((mute|refused)\)|report( \(deaf\))?$|late copy|lands|time: 1"
_LATE_GO = r"claim$|begin( \(deaf\))?$|t send$|reconciles|time: [13]|answers"
_WRONG_POD = r"claim$|begin$|\(mute\)|report$|lands|reconciles|time: 1|killed|erased|kubelet|answers"
_END_OF_LIFE = r"claim$|begin$|t send$|\(broken\)|report$|time: [13]"
_TWO_UPSERTS = r"claim$|begin$|t send$|\(mute\)|report$|lands"
_LATE_WORD = ("t claim", "t begin", "t send", "time: 7", "u begin", "u .*mute", "u report", "t report", "t begin", "t send", "lands")


FOCUSES = (
    _focus("V1", rules.settle_time, "send kill people", v.DOUBLE_EFFECT, v.FALSE_FAILED, honours=False),
    _focus("V2", rules.early_no_of_a_probe, "send probe", v.DOUBLE_EFFECT, v.FALSE_FAILED, steps=(_PROBE,), honours=False),
    _focus("V2", rules.early_no_of_a_person, "send people", v.DOUBLE_EFFECT, v.FALSE_FAILED, honours=False),
    _focus("V3", rules.one_request_id, "", v.SHARED_ATTEMPT, v.DOUBLE_EFFECT, program="twice", honours=False),
    _focus("V3", rules.compare_and_swap, "slow", v.SHARED_ATTEMPT, v.DOUBLE_EFFECT, program="twice", honours=False),
    _focus("V4", rules.older_doubt, "send", v.FALSE_FAILED, v.DOUBLE_EFFECT, steps=(_RESEND,), only=_FAIL_AFTER_DOUBT),
    _focus("V5", rules.named_attempt, "send net", v.FALSE_FAILED, v.DOUBLE_EFFECT, steps=_TRIES, honours=False, only=_LATE_COPY),
    _focus("V6", rules.fresh_question_ids, "send people stale", v.WRONG_ANSWER, v.DOUBLE_EFFECT, honours=False),
    _focus("V7", rules.fresh_question_ids, "send people force", v.WRONG_ANSWER, v.DOUBLE_EFFECT, honours=False),
    _focus("V8", rules.no_go_after_the_deadline, "net people", v.FALSE_FAILED, v.DOUBLE_EFFECT, honours=False, only=_LATE_GO),
    _focus("V9", rules.pod_of_each_attempt, "send kill erase people", v.FALSE_FAILED, v.DOUBLE_EFFECT, honours=False, only=_WRONG_POD),
    _focus("V10", rules.life_of_the_key, "send", v.DOUBLE_EFFECT, steps=(_RESEND,), only=_END_OF_LIFE),
    _focus("V11", rules.expiry, "people", v.STALE_APPROVAL, steps=(quick("a", Action.DELETE, approval_expires=6),)),
    _focus("V12", rules.settle_before_the_end, "send cancel people", v.ENDED_OPEN),
    _focus("V13", rules.welcome_truth, "send vanish", v.LOST_TRUTH),
    _focus("V14", rules.overdue_is_lost, "hang send", v.STUCK),
    _focus("V15", rules.active_run, "cancel suspend drain halt", v.NOT_ACTIVE),
    _focus("V16", rules.settle_before_an_upsert_is_rerun, "send", v.LOST_ORDER, steps=_UPSERTS, honours=False, only=_TWO_UPSERTS),
    _focus("V17", rules.success_alone, "send", v.LOST_ORDER, steps=_UPSERTS, honours=False, program="twice", guide=_LATE_WORD),
    _focus("V18", rules.surely_not_is_sure, "send", v.FALSE_FAILED, v.DOUBLE_EFFECT, steps=_TRIES, honours=False),
)
