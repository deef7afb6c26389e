"""What people read: phase by precedence, kstatus in every phase, questions only when no machine may settle."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stepfence.core import fencing, lifecycle
from stepfence.core.entry import Entry, StepSpec
from stepfence.core.errors import Refused
from stepfence.core.ledger import RefusedAfter
from stepfence.core.model import Run, Worker
from stepfence.core.summary import Condition, Phase, QuestionKind, phase_of, questions_of, summarize
from stepfence.core.words import Action, Outcome, Recovery, State
from stepfence.testing.builders import at, begun, body, claimed, new_run, seconds, step

Change = Callable[[Run], Run]


def entry(run: Run, state: State, name: str = "pay", **known: Any) -> Run:
    question = "q1" if state in (State.UNKNOWN, State.AWAITING_APPROVAL) else None
    made = replace(Entry(state, "sf1", attempt=1, question=question, asked_at=seconds(1)), **known)
    return replace(run, ledger={**run.ledger, name: made})


# In the order of precedence: each of these, put on top of all after it, gives its own phase.
LAYERS: list[tuple[Phase, Change]] = [
    (Phase.NEEDS_RECONCILIATION, lambda run: entry(run, State.UNKNOWN)),
    (Phase.CANCELLING, lambda run: replace(run, spec=replace(run.spec, cancel=True))),
    (Phase.HELD, lambda run: replace(run, spec=replace(run.spec, suspend=True))),
    (Phase.AWAITING_APPROVAL, lambda run: entry(run, State.AWAITING_APPROVAL, "other")),
    (Phase.DRAINING, fencing.drain),
    (Phase.RUNNING, claimed),
    (Phase.SCHEDULED, lambda run: replace(run, worker=Worker(1, "job", "", seconds(0)))),
    (Phase.PENDING, lambda run: run),
]


def layered(phase: Phase) -> Run:
    run = new_run(step("pay"), step("other"))
    for layer, change in reversed(LAYERS):
        run = change(run)
        if layer is phase:
            return run
    raise AssertionError(f"{phase} is no layer")


@pytest.mark.parametrize("phase", [phase for phase, _ in LAYERS])
def test_each_phase_wins_over_all_that_come_after_it(phase: Phase) -> None:
    assert phase_of(layered(phase), at(5)) is phase


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_outcome_wins_over_everything(outcome: Outcome) -> None:
    assert phase_of(replace(layered(Phase.NEEDS_RECONCILIATION), outcome=outcome), at(5)) is Phase(outcome.value)


def test_a_hold_of_the_worker_is_held_too() -> None:
    assert phase_of(lifecycle.halt_run(claimed(new_run(step())), "Odd", "", at(1)), at(5)) is Phase.HELD


def test_an_end_that_waits_is_cancelling() -> None:
    run = lifecycle.fail_run(begun(claimed(new_run(step())))[0], "NoGo", "", at(1))
    assert phase_of(run, at(5)) is Phase.CANCELLING


# Ready, Reconciling, Stalled: what kstatus and `kubectl wait` make of each phase.
KSTATUS = {
    Phase.PENDING: ("Unknown", "True", "False"),
    Phase.SCHEDULED: ("Unknown", "True", "False"),
    Phase.RUNNING: ("Unknown", "True", "False"),
    Phase.DRAINING: ("Unknown", "True", "False"),
    Phase.CANCELLING: ("Unknown", "True", "False"),
    Phase.AWAITING_APPROVAL: ("Unknown", "True", "False"),
    Phase.HELD: ("Unknown", "False", "False"),
    Phase.NEEDS_RECONCILIATION: ("False", "False", "True"),
    Phase.FAILED: ("False", "False", "True"),
    Phase.CANCELLED: ("False", "False", "True"),
    Phase.SUCCEEDED: ("True", "False", "False"),
}


def in_phase(phase: Phase) -> Run:
    ended = {outcome.value for outcome in Outcome}
    return replace(new_run(step()), outcome=Outcome(phase.value)) if phase.value in ended else layered(phase)


def conditions(run: Run, after: float = 5, *, full: bool = False) -> dict[str, Condition]:
    return {condition.type: condition for condition in summarize(run, at(after), full=full).conditions}


@pytest.mark.parametrize("phase", list(Phase))
def test_kstatus(phase: Phase) -> None:
    told = conditions(in_phase(phase))
    assert tuple(told[name].status for name in ("Ready", "Reconciling", "Stalled")) == KSTATUS[phase]
    assert told["Finished"].status == ("True" if phase.value in {o.value for o in Outcome} else "False")


def test_every_condition_is_there_once_with_a_reason_that_kubernetes_takes() -> None:
    for phase in Phase:
        told = summarize(in_phase(phase), at(5)).conditions
        assert [condition.type for condition in told] == [
            "Ready",
            "Reconciling",
            "Stalled",
            "Finished",
            "WorkerReady",
            "DecisionNeeded",
            "LedgerWritable",
        ]
        assert all(condition.reason.isalpha() and condition.reason[0].isupper() for condition in told)


def doubt(planned: StepSpec, after: float = 10) -> Run:
    run = claimed(new_run(planned))
    run, _ = begun(run, 0, planned.id)
    return fencing.settle(run, "WorkerLost", at(after))


@pytest.mark.parametrize(
    ("says", "planned", "second", "asked"),
    [
        ("a halt at once", step(), 10, True),
        ("a probe not before it gives up", step(probe_give_up=300), 369, False),
        ("a probe when it gives up", step(probe_give_up=300), 370, True),
        ("a resend not while the key lives", step(recovery=Recovery.RESEND_WITH_KEY, key_ttl=300), 229, False),
        ("a resend when the key dies", step(recovery=Recovery.RESEND_WITH_KEY, key_ttl=300), 230, True),
        ("a Read never", step(action=Action.READ), 10**6, False),
        ("an Upsert never", step(action=Action.UPSERT), 10**6, False),
        ("an Upsert that must halt", step(action=Action.UPSERT, recovery=Recovery.HALT), 10, True),
    ],
)
def test_a_question_is_listed_only_when_no_machine_may_settle(says: str, planned: StepSpec, second: float, asked: bool) -> None:
    told = summarize(doubt(planned), at(second))
    assert bool(told.questions) is asked
    assert (told.phase is Phase.NEEDS_RECONCILIATION) is asked
    assert (conditions(doubt(planned), second)["DecisionNeeded"].status == "True") is asked


@pytest.mark.parametrize(("second", "accepts"), [(69.999, False), (70, True)])
def test_a_question_says_from_when_it_takes_a_no(second: float, accepts: bool) -> None:
    (question,) = questions_of(doubt(step()), at(second))
    assert (question.accepts_did_not_happen, question.worker_terminated) == (accepts, False)


def test_a_confirmed_end_is_told_and_counts_sooner() -> None:
    run = fencing.note_terminated(doubt(step()), "pod-1-uid", seconds(12))
    (question,) = questions_of(run, at(22))
    assert (question.accepts_did_not_happen, question.worker_terminated) == (True, True)
    assert not questions_of(run, at(21.9))[0].accepts_did_not_happen


def test_the_end_of_one_pod_is_not_told_of_another_one_too() -> None:
    run = doubt(step(recovery=Recovery.RESEND_WITH_KEY, key_ttl=300))
    run, _ = begun(claimed(run, 11, pod="pod-2"), 11, pod="pod-2")
    run = fencing.settle(fencing.note_terminated(run, "pod-2-uid", seconds(12)), "WorkerLost", at(13))
    (question,) = questions_of(run, at(230))
    assert not question.worker_terminated
    run = fencing.note_terminated(run, "pod-1-uid", seconds(231))
    assert questions_of(run, at(232))[0].worker_terminated


def test_a_question_spells_the_whole_answer_out() -> None:
    run = doubt(step("pay.out"))
    (question,) = questions_of(run, at(20))
    key = f"pay.out.{run.ledger['pay.out'].question}"
    assert (question.key, question.step, question.kind, question.since, question.reason) == (
        key,
        "pay.out",
        QuestionKind.RECONCILE,
        seconds(10),
        "WorkerLost",
    )
    assert question.patch == (
        "kubectl -n support patch agentruns.stepfence.dev refund --field-manager=stepfence --type=merge -p "
        f'\'{{"spec":{{"decisions":{{"{key}":{{"verdict":"Happened"}}}}}}}}\''
    )
    assert question.patch in conditions(run, 20)["DecisionNeeded"].message


def test_an_approval_shows_the_payload() -> None:
    with pytest.raises(RefusedAfter) as asked:
        begun(claimed(new_run(step(approval=True))), payload={"amount": 42})
    (question,) = questions_of(asked.value.run, at(5))
    assert (question.kind, question.payload, question.accepts_did_not_happen) == (QuestionKind.APPROVE, '{"amount":42}', False)
    assert question.payload_digest == body({"amount": 42}).digest
    assert '"verdict":"Approve"' in question.patch


def test_a_hold_stands_before_the_steps() -> None:
    run = lifecycle.halt_run(begun(claimed(new_run(step())))[0], "Odd", "twice the usual amount", at(1))
    run = fencing.settle(run, "WorkerLost", at(2))
    hold, doubtful = questions_of(run, at(3))
    assert (hold.kind, hold.step, hold.message, doubtful.step) == (QuestionKind.HOLD, "run", "twice the usual amount", "pay")
    assert '"verdict":"Resume"' in hold.patch


def test_a_terminal_run_asks_nothing() -> None:
    assert questions_of(replace(doubt(step()), outcome=Outcome.FAILED), at(20)) == ()


def test_progress_and_the_open_step() -> None:
    run = claimed(new_run(step("look", Action.READ), step("pay"), step("notify")))
    run = entry(run, State.DONE, "look")
    told = summarize(begun(run, 1)[0], at(5))
    assert (told.progress, told.open_step) == ("1/3", "pay")
    assert summarize(new_run(), at(5)).progress == "0/0"
    assert summarize(run, at(5)).open_step == ""


def test_a_step_that_waits_for_a_person_is_the_open_one() -> None:
    run = entry(begun(claimed(new_run(step("look", Action.READ), step("pay"))), 0, "look")[0], State.UNKNOWN)
    assert summarize(run, at(5)).open_step == "pay"


def test_a_ledger_that_is_nearly_full_says_so() -> None:
    assert conditions(new_run(step()))["LedgerWritable"].status == "True"
    assert conditions(new_run(step()), full=True)["LedgerWritable"].status == "False"


def test_a_refused_begin_names_the_question_that_stops_it() -> None:
    run = claimed(new_run(step("pay"), step("other")))
    run = entry(run, State.UNKNOWN)
    with pytest.raises(Refused) as refused:
        begun(run, 5, "other")
    assert refused.value.question == "pay.q1"
