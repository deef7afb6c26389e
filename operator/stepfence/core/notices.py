"""The story of a run for people, told as Kubernetes Events: derived from two looks at it, whoever wrote in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stepfence.core.entry import Plan
from stepfence.core.lifecycle import waits_for_people
from stepfence.core.model import Answer, Entry, Run
from stepfence.core.summary import Question, QuestionKind, questions_of
from stepfence.core.words import At, Outcome, State

__all__ = ["Notice", "asking", "notices"]

NORMAL, WARNING = "Normal", "Warning"
_ASKED = {QuestionKind.RECONCILE: "NeedsReconciliation", QuestionKind.APPROVE: "ApprovalNeeded", QuestionKind.HOLD: "Held"}
_GOOD_ENDS = frozenset({"Drained", "Halted", "Finished", "Deleted", "Disrupted"})


@dataclass(frozen=True, slots=True)
class Notice:
    """One Event: `type` is Normal or Warning, `reason` a CamelCase word."""

    type: str
    reason: str
    message: str


def notices(before: Run, then: At, after: Run, at: At) -> list[Notice]:
    """Return what happened between two looks at a run, in the order in which people read it. The same two looks tell the same story."""
    return [
        *_acceptance(before, after),
        *_worker_end(before, after, at),
        *_claims(before, after),
        *_steps(before, after),
        *_answers(before, after),
        *_questions(before, then, after, at),
        *_suspension(before, after),
        *_worker_start(before, after),
        *_trouble(before, after),
        *_ending(before, after),
    ]


def _acceptance(before: Run, after: Run) -> Iterator[Notice]:
    if before.started_at is None and after.started_at is not None:
        planned = f"a plan of {_steps_of(after.plan)}" if after.plan is not None else "no plan yet: the worker brings it"
        yield Notice(NORMAL, "Accepted", f"run id {after.identity}, {planned}")
    elif before.plan is None and after.plan is not None:
        yield Notice(NORMAL, "PlanAccepted", f"the worker's plan of {_steps_of(after.plan)} is recorded")


def _steps_of(plan: Plan) -> str:
    return f"{len(plan.steps)} step{'' if len(plan.steps) == 1 else 's'}"


def _worker_start(before: Run, after: Run) -> Iterator[Notice]:
    worker = after.worker
    if worker is not None and (before.worker is None or before.worker.number != worker.number):
        yield Notice(NORMAL, "WorkerStarted", f"worker {worker.number} is Job {worker.job}")


def _worker_end(before: Run, after: Run, at: At) -> Iterator[Notice]:
    worker = after.worker
    if worker is None or worker.ended_at is None or before.worker is None:
        return
    if before.worker.number == worker.number and before.worker.ended_at == worker.ended_at and before.worker.message == worker.message:
        return
    told = f"worker {worker.number} ended: {worker.exit_reason}" + (f" ({worker.message})" if worker.message else "")
    if worker.failures and worker.retry_at is not None and worker.exit_reason not in _GOOD_ENDS:
        told += f"; {worker.failures} so far brought nothing forward"
        if not after.terminal and after.ending is None and not waits_for_people(after, at):
            told += f", the next starts {max(0.0, (worker.retry_at - worker.ended_at).total_seconds()):.0f} s later"
    yield Notice(NORMAL if worker.exit_reason in _GOOD_ENDS else WARNING, "WorkerEnded", told)


def _claims(before: Run, after: Run) -> Iterator[Notice]:
    old, new = before.holder, after.holder
    if new is not None and after.token != before.token:
        yield Notice(NORMAL, "Claimed", f"pod {new.pod} claimed the run under token {after.token}")
    elif new is None and old is not None and after.token != before.token:
        yield Notice(WARNING, "WorkerLost", f"pod {old.pod} is gone without releasing the run; it is fenced out by token {after.token}")
    if new is not None and new.draining and (old is None or not old.draining or old.pod_uid != new.pod_uid):
        yield Notice(NORMAL, "Draining", f"pod {new.pod} begins nothing new and settles what is in flight")


def _steps(before: Run, after: Run) -> Iterator[Notice]:
    for step in after.plan.steps if after.plan is not None else ():
        old, new = before.ledger.get(step.id), after.ledger.get(step.id)
        if new is None or (old is not None and old.state is new.state and old.attempt == new.attempt):
            continue
        told = _step(step.id, new)
        if told is not None:
            yield told


def _step(step: str, entry: Entry) -> Notice | None:
    why = f": {entry.reason}" + (f" ({entry.message})" if entry.message else "") if entry.reason else ""
    if entry.state is State.DONE:
        return Notice(NORMAL, "StepDone", f"step {step} is done (attempt {entry.attempt})")
    if entry.state is State.FAILED:
        return Notice(WARNING, "StepFailed", f"step {step} did not happen (attempt {entry.attempt}){why}")
    if entry.state is State.UNKNOWN:
        return Notice(WARNING, "StepInDoubt", f"step {step}: it is not known whether attempt {entry.attempt} happened{why}")
    return None


def _answers(before: Run, after: Run) -> Iterator[Notice]:
    for step, entry in after.ledger.items():
        old = before.ledger.get(step)
        for answer in entry.answers[len(old.answers) if old is not None else 0 :]:
            yield _answer(step, answer)
    known = {(answer.question, answer.at) for answer in before.hold_answers}
    for answer in after.hold_answers:
        if (answer.question, answer.at) not in known:
            yield _answer("run", answer)


def _answer(about: str, answer: Answer) -> Notice:
    by = f" by {answer.by}" if answer.by else ""
    if answer.refused:
        return Notice(WARNING, "AnswerRefused", f"{about}.{answer.question}: {answer.verdict}{by} had no effect: {answer.refused}")
    return Notice(NORMAL, "Answered", f"{about}.{answer.question}: {answer.verdict}{by}" + (f" ({answer.reason})" if answer.reason else ""))


def _questions(before: Run, then: At, after: Run, at: At) -> Iterator[Notice]:
    asked = {question.key for question in questions_of(before, then)}
    for question in questions_of(after, at):
        if question.key not in asked:
            yield Notice(WARNING, _ASKED[question.kind], asking(question))


def asking(question: Question) -> str:
    """Return what a person is asked, and the command that answers; a hold with its reason, for the Event says `Held` of each."""
    reason = f"{question.reason}: " if question.kind is QuestionKind.HOLD else ""
    return f"{reason}{question.message}. Answer with: {question.patch}"


def _suspension(before: Run, after: Run) -> Iterator[Notice]:
    accepted_so = before.started_at is None and after.started_at is not None and after.spec.suspend
    if (accepted_so or before.spec.suspend != after.spec.suspend) and not after.terminal:
        yield Notice(NORMAL, *(("Suspended", "by spec.suspend") if after.spec.suspend else ("Resumed", "spec.suspend is no longer set")))


def _trouble(before: Run, after: Run) -> Iterator[Notice]:
    if after.worker_problem is not None and (before.worker_problem is None or before.worker_problem[0] != after.worker_problem[0]):
        yield Notice(WARNING, *after.worker_problem)


def _ending(before: Run, after: Run) -> Iterator[Notice]:
    if after.outcome is not None and before.outcome is None:
        good = after.outcome is Outcome.SUCCEEDED
        # The Event's own reason is the outcome: it is not said twice.
        words = ("" if after.reason == after.outcome.value else after.reason, after.message)
        told = ": ".join(word for word in words if word) or after.reason
        yield Notice(NORMAL if good or after.outcome is Outcome.CANCELLED else WARNING, after.outcome.value, told)
    elif after.outcome is None and after.ending is not None and before.ending is None:
        yield Notice(NORMAL, "Ending", f"{after.ending.reason}: it becomes {after.ending.outcome} when no step is open")
