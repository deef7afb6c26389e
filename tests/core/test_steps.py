"""The transition table: the design's rows and no others, each guard both ways, every other pair refused."""

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from stepfence.core import steps
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Answer, Attempt, Entry, StepSpec
from stepfence.core.steps import TABLE, Cue, Event, advance
from stepfence.core.words import Action, Recovery, State, Token, Verdict
from stepfence.testing.builders import at, body, seconds, step

S, E = State, Event

# From the design's table, row by row; what it says in words under "Failed with attempts left" and the like is a guard, tested below.
DESIGN = [
    ("Planned", "begin", {"InFlight", "AwaitingApproval"}),
    ("Approved", "begin", {"InFlight", "AwaitingApproval"}),
    ("Failed", "begin", {"InFlight", "AwaitingApproval"}),
    ("AwaitingApproval", "approve", {"Approved"}),
    ("AwaitingApproval", "deny", {"Denied"}),
    ("AwaitingApproval", "expire", {"Planned"}),
    ("Approved", "expire", {"Planned"}),
    ("InFlight", "complete", {"Done"}),
    ("InFlight", "fail", {"Failed", "Unknown"}),
    ("InFlight", "lose", {"Unknown"}),
    ("Unknown", "complete", {"Done"}),
    ("Failed", "complete", {"Done"}),
    ("Unknown", "probe: happened", {"Done"}),
    ("Unknown", "probe: did not happen", {"Failed"}),
    ("Unknown", "probe: cannot tell", {"Unknown"}),
    ("Unknown", "begin", {"InFlight"}),
    ("Unknown", "decision: happened", {"Done"}),
    ("Unknown", "decision: did not happen", {"Failed"}),
    ("Unknown", "decision: abandon", {"Unknown"}),
]
# docs/design/0002: a failed attempt whose step went on to ask for approval is still one that no later attempt followed.
CLARIFIED = [(state, "complete", {"Done"}) for state in ("Planned", "AwaitingApproval", "Approved", "Denied")]


def attempt(number: int = 1, **known: Any) -> Attempt:
    return Attempt(number, Token(1), f"r{number}", "pod-1-uid", seconds(0), seconds(60), **known)


def entry(state: State, *attempts: Attempt, **known: Any) -> Entry:
    made = attempts or (attempt(),)
    question = "q1" if state in (S.UNKNOWN, S.AWAITING_APPROVAL) else None
    return Entry(state, "sf1", attempt=made[-1].number, token=Token(1), open=made, question=question, asked_at=seconds(0), **known)


def cue(after: float = 100, **known: Any) -> Cue:
    return Cue(at(after), **{"attempt": 1, "token": Token(2), "request_id": "r2", "pod_uid": "pod-2-uid", "payload": body(), **known})


PAY, READ, UPSERT = step(), step(action=Action.READ), step(action=Action.UPSERT)
ASKED = step(approval_expires=50)
TRIES = step(attempts=2)
RESEND = step(recovery=Recovery.RESEND_WITH_KEY, key_ttl=300)
FAILED = attempt(failed=True)


@dataclass(frozen=True)
class Case:
    """One way through one row (`target` set), or a guard that says no (`target` None)."""

    says: str
    entry: Entry
    event: Event
    target: State | None
    step: StepSpec = PAY
    cue: Cue = field(default_factory=cue)


def _begin_cases() -> list[Case]:
    fresh = Entry(S.PLANNED, "sf1")
    failed = entry(S.FAILED, FAILED, failures=1)
    return [
        Case("a fresh step begins", fresh, E.BEGIN, S.IN_FLIGHT),
        Case("a step with approval asks first", fresh, E.BEGIN, S.AWAITING_APPROVAL, ASKED),
        Case("a Delete asks though nobody said so", fresh, E.BEGIN, S.AWAITING_APPROVAL, step(action=Action.DELETE)),
        Case("an approved step begins", entry(S.APPROVED, approved_at=seconds(60)), E.BEGIN, S.IN_FLIGHT, ASKED),
        Case("an expired approval is asked anew", entry(S.APPROVED, approved_at=seconds(50)), E.BEGIN, S.AWAITING_APPROVAL, ASKED),
        Case("a failed step with attempts left begins", failed, E.BEGIN, S.IN_FLIGHT, TRIES),
        Case("one without does not", failed, E.BEGIN, None, PAY),
        Case("one that failed for good does not", replace(failed, final=True), E.BEGIN, None, TRIES),
        Case("one within its back-off does not", replace(failed, retry_at=seconds(101)), E.BEGIN, None, TRIES),
        Case("one at the end of its back-off does", replace(failed, retry_at=seconds(100)), E.BEGIN, S.IN_FLIGHT, TRIES),
        Case("a failed step asks again once its approval is over", failed, E.BEGIN, S.AWAITING_APPROVAL, replace(ASKED, attempts=2)),
        Case("and not when no attempt is left", failed, E.BEGIN, None, ASKED),
        Case("an unknown Read begins at once", entry(S.UNKNOWN), E.BEGIN, S.IN_FLIGHT, READ, cue(1)),
        Case("an unknown Upsert begins after R1", entry(S.UNKNOWN), E.BEGIN, S.IN_FLIGHT, UPSERT, cue(70)),
        Case("and not before", entry(S.UNKNOWN), E.BEGIN, None, UPSERT, cue(69)),
        Case("an unknown Payment never begins", entry(S.UNKNOWN), E.BEGIN, None, PAY, cue(10**6)),
        Case(
            "a resend begins while the key lives",
            entry(S.UNKNOWN, first_started_at=seconds(0)),
            E.BEGIN,
            S.IN_FLIGHT,
            RESEND,
            cue(229),
        ),
        Case("and not at its end", entry(S.UNKNOWN, first_started_at=seconds(0)), E.BEGIN, None, RESEND, cue(230)),
    ]


def _report_cases() -> list[Case]:
    two = (attempt(1), attempt(2))
    cases = [
        Case("the attempt in flight completes", entry(S.IN_FLIGHT), E.COMPLETE, S.DONE),
        Case("another one does not", entry(S.IN_FLIGHT, *two), E.COMPLETE, None, cue=cue(attempt=1)),
        Case("an unknown step's last attempt completes", entry(S.UNKNOWN), E.COMPLETE, S.DONE),
        Case("an older one too", entry(S.UNKNOWN, *two), E.COMPLETE, S.DONE),
        Case("one that is not recorded does not", entry(S.UNKNOWN, *two), E.COMPLETE, None, cue=cue(attempt=3)),
        Case("an Upsert's older one not while the newer may land", entry(S.UNKNOWN, *two), E.COMPLETE, None, UPSERT, cue(69)),
        Case("and afterwards it does", entry(S.UNKNOWN, *two), E.COMPLETE, S.DONE, UPSERT, cue(70)),
        Case("the last one while the older is over", entry(S.UNKNOWN, *two), E.COMPLETE, S.DONE, UPSERT, cue(70, attempt=2)),
        Case("a failure is recorded", entry(S.IN_FLIGHT), E.FAIL, S.FAILED),
        Case("a failure on top of an older doubt is a doubt", entry(S.IN_FLIGHT, *two), E.FAIL, S.UNKNOWN, cue=cue(attempt=2)),
        Case("an older failure is not heard", entry(S.IN_FLIGHT, *two), E.FAIL, None),
        Case("a doubt is recorded", entry(S.IN_FLIGHT), E.LOSE, S.UNKNOWN),
        Case("an older doubt is not heard", entry(S.IN_FLIGHT, *two), E.LOSE, None),
    ]
    for state in (S.FAILED, S.PLANNED, S.AWAITING_APPROVAL, S.APPROVED, S.DENIED):
        after = entry(state, FAILED)
        cases.append(Case(f"the failed attempt of a step that is {state} did succeed", after, E.COMPLETE, S.DONE))
        cases.append(Case(f"an attempt that a step that is {state} never made", after, E.COMPLETE, None, cue=cue(attempt=2)))
    return cases


def _settling_cases() -> list[Case]:
    doubt, two = entry(S.UNKNOWN), entry(S.UNKNOWN, attempt(1), attempt(2))
    asked = entry(S.AWAITING_APPROVAL)
    return [
        Case("a probe found it", doubt, E.PROBE_HAPPENED, S.DONE),
        Case("a probe of another attempt", two, E.PROBE_HAPPENED, None),
        Case("a probe that started late enough found nothing", doubt, E.PROBE_DID_NOT, S.FAILED, cue=cue(asked_at=seconds(70))),
        Case("one that started a second too early", doubt, E.PROBE_DID_NOT, None, cue=cue(asked_at=seconds(69))),
        Case("one that does not say when it started", doubt, E.PROBE_DID_NOT, None),
        Case("one of another attempt", two, E.PROBE_DID_NOT, None, cue=cue(asked_at=seconds(70))),
        Case("a probe cannot tell", doubt, E.PROBE_CANNOT_TELL, S.UNKNOWN),
        Case("a probe of another attempt cannot tell", two, E.PROBE_CANNOT_TELL, None),
        Case("a person approves", asked, E.APPROVE, S.APPROVED, ASKED, cue(49)),
        Case("too late", asked, E.APPROVE, None, ASKED, cue(50)),
        Case("a request without an end can wait", asked, E.APPROVE, S.APPROVED, step(approval=True), cue(10**6)),
        Case("a person denies", asked, E.DENY, S.DENIED, ASKED),
        Case("a request expires", asked, E.EXPIRE, S.PLANNED, ASKED, cue(50)),
        Case("not before its time", asked, E.EXPIRE, None, ASKED, cue(49)),
        Case("an approval expires", entry(S.APPROVED, approved_at=seconds(10)), E.EXPIRE, S.PLANNED, ASKED, cue(60)),
        Case("and not before its time", entry(S.APPROVED, approved_at=seconds(10)), E.EXPIRE, None, ASKED, cue(59)),
        Case("one without an end never", entry(S.APPROVED, approved_at=seconds(10)), E.EXPIRE, None, step(approval=True), cue(10**6)),
        Case("a person knows that it happened", doubt, E.HAPPENED, S.DONE, cue=cue(1)),
        Case("of two attempts of an Upsert, before both are over", two, E.HAPPENED, None, UPSERT, cue(69)),
        Case("and after", two, E.HAPPENED, S.DONE, UPSERT, cue(70)),
        Case("a person knows that it did not, when that counts", doubt, E.DID_NOT_HAPPEN, S.FAILED, cue=cue(70)),
        Case("a second too early", doubt, E.DID_NOT_HAPPEN, None, cue=cue(69)),
        Case("by force", doubt, E.DID_NOT_HAPPEN, S.FAILED, cue=cue(1, force=True)),
        Case("a person abandons it", doubt, E.ABANDON, S.UNKNOWN),
    ]


CASES = [*_begin_cases(), *_report_cases(), *_settling_cases()]


def row_of(case: Case) -> steps.Row | None:
    fits = (
        row
        for row in TABLE
        if row.source is case.entry.state and row.event is case.event and (row.guard is None or row.guard(case.entry, case.step, case.cue))
    )
    return next(fits, None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_each_row_takes_effect_and_each_guard_says_no(case: Case) -> None:
    before = replace(case.entry)
    if case.target is None:
        with pytest.raises(Refused):
            advance(case.entry, case.step, case.event, case.cue)
    else:
        assert advance(case.entry, case.step, case.event, case.cue).state is case.target
    assert case.entry == before


def test_the_cases_go_through_every_row() -> None:
    assert {id(row_of(case)) for case in CASES if case.target} == {id(row) for row in TABLE}


def test_each_guard_of_a_last_row_is_seen_to_refuse() -> None:
    refused = {(case.entry.state, case.event) for case in CASES if case.target is None}
    guarded = {(row.source, row.event) for row in TABLE if row.guard is not None}
    open_end = {(row.source, row.event) for row in TABLE if row.guard is None}
    assert guarded - open_end <= refused


def test_the_table_is_the_designs() -> None:
    built: dict[tuple[str, str], set[str]] = {}
    for row in TABLE:
        built.setdefault((row.source.value, row.event.value), set()).add(row.target.value)
    assert built == {(source, event): targets for source, event, targets in [*DESIGN, *CLARIFIED]}


WITHOUT_ROW = [pair for pair in itertools.product(State, Event) if pair not in {(row.source, row.event) for row in TABLE}]


@pytest.mark.parametrize(("state", "event"), WITHOUT_ROW, ids=str)
def test_every_other_pair_is_refused(state: State, event: Event) -> None:
    answer = Answer("q1", Verdict.APPROVE, "jane", seconds(0))
    late = cue(10**6, asked_at=seconds(10**6), force=True, result=body(), answer=answer)
    for planned in (PAY, READ, UPSERT, ASKED, TRIES, RESEND, step(probe_give_up=10)):
        for begun in (entry(state), entry(state, approved_at=seconds(0)), entry(state, FAILED, failures=1)):
            with pytest.raises(Refused):
                advance(begun, planned, event, late)


def test_there_are_as_many_pairs_as_the_table_leaves_over() -> None:
    assert len(WITHOUT_ROW) == len(State) * len(Event) - len(DESIGN) - len(CLARIFIED)


@pytest.mark.parametrize(
    ("event", "named", "code"),
    [
        (E.COMPLETE, 2, Code.ATTEMPT_MISMATCH),
        (E.COMPLETE, 1, Code.NOT_IN_FLIGHT),
        (E.PROBE_DID_NOT, 1, Code.NOT_IN_FLIGHT),
        (E.APPROVE, 1, Code.NO_SUCH_QUESTION),
        (E.DID_NOT_HAPPEN, 1, Code.TOO_EARLY),
        (E.BEGIN, 1, Code.HALTED),
    ],
)
def test_a_refusal_says_why(event: Event, named: int, code: Code) -> None:
    with pytest.raises(Refused, match="'pay' is Done") as refused:
        advance(entry(S.DONE), PAY, event, cue(attempt=named))
    assert refused.value.code is code


def test_a_begin_keeps_what_is_unresolved_and_forgets_what_failed() -> None:
    doubt = entry(S.UNKNOWN, attempt(1), attempt(2, failed=True), first_started_at=seconds(0), payload=body({"amount": 1}), gave_up=True)
    again = advance(doubt, RESEND, E.BEGIN, cue(100, payload=body({"amount": 2})))
    assert [kept.number for kept in again.open] == [1, 3]
    assert (again.attempt, again.first_started_at, again.payload) == (3, seconds(0), body({"amount": 1}))
    assert (again.question, again.asked_at, again.gave_up, again.reason) == (None, None, False, "")


def test_a_read_that_is_rerun_forgets_its_older_attempts() -> None:
    again = advance(entry(S.UNKNOWN), READ, E.BEGIN, cue(1))
    assert [kept.number for kept in again.open] == [2]


def test_done_drops_the_payload_and_keeps_its_digest() -> None:
    done = advance(entry(S.IN_FLIGHT, payload=body({"amount": 1})), PAY, E.COMPLETE, cue(result=body("re_9")))
    assert done.payload == replace(body({"amount": 1}), text=None)
    assert (done.result, done.open, done.finished_at) == (body("re_9"), (), seconds(100))


def test_what_goes_back_to_planned_keeps_its_counters() -> None:
    back = advance(entry(S.AWAITING_APPROVAL, attempt(2, failed=True), failures=2), ASKED, E.EXPIRE, cue(50))
    assert (back.state, back.attempt, back.failures, back.question) == (S.PLANNED, 2, 2, None)
    over = advance(entry(S.APPROVED, attempt(2, failed=True), failures=2, approved_at=seconds(0)), ASKED, E.EXPIRE, cue(50))
    assert (over.state, over.attempt, over.failures, over.approved_at) == (S.PLANNED, 2, 2, None)


def test_an_entry_keeps_the_newest_answers_only() -> None:
    full = entry(S.UNKNOWN)
    for number in range(40):
        full = full.with_answer(Answer(f"q{number}", Verdict.APPROVE, "jane", seconds(number), refused="no"))
    assert [answer.question for answer in full.answers] == [f"q{number}" for number in range(8, 40)]
