"""The core's values to the JSON of `status`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from stepfence.core.model import Answer, Attempt, Body, Entry, Holder, Plan, Run, StepSpec, Worker
from stepfence.core.summary import Condition, Question, Summary
from stepfence.schema.times import format_time

__all__ = ["carry", "encode_status", "step_document"]

Document = dict[str, Any]
# What makes an element of a list the same element in the next version.
_IDENTITY = ("attempt", "question", "type", "id")


def encode_status(run: Run, summary: Summary, old_conditions: Iterable[Mapping[str, Any]], now: datetime) -> Document:
    """Return the whole status of ours. Conditions keep their transition time while their status stays."""
    before = {condition["type"]: condition for condition in old_conditions}
    return _slim(
        observedGeneration=run.generation,
        phase=summary.phase.value,
        progress=summary.progress,
        openStep=summary.open_step,
        version=run.version,
        runID=run.run_id,
        fencingToken=run.token,
        startedAt=_time(run.started_at),
        activeMilliseconds=round(run.active_seconds * 1000),
        activeSince=_time(run.active_since),
        outcome=run.outcome and run.outcome.value,
        reason=run.reason,
        message=run.message,
        **_body("result", run.result),
        finishedAt=_time(run.finished_at),
        cancelRequestedAt=_time(run.cancel_requested_at),
        ending=run.ending
        and _slim(outcome=run.ending.outcome.value, reason=run.ending.reason, message=run.ending.message, at=_time(run.ending.at)),
        hold=run.hold and _slim(question=run.hold.question, reason=run.hold.reason, message=run.hold.message, since=_time(run.hold.since)),
        holdAnswers=[_answer(answer) for answer in run.hold_answers],
        worker=run.worker and _worker(run.worker),
        workerProblem=run.worker_problem and _slim(reason=run.worker_problem[0], message=run.worker_problem[1]),
        holder=run.holder and _holder(run.holder),
        plan=run.plan and _plan(run.plan),
        ledger={step: _entry(entry) for step, entry in run.ledger.items()},
        questions={question.key: _question(question) for question in summary.questions},
        conditions=[_condition(condition, before.get(condition.type), run, now) for condition in summary.conditions],
    )


def _slim(**fields: Any) -> Document:
    """Absent means null, empty or false."""
    return {name: value for name, value in fields.items() if value or (value == 0 and value is not False)}


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment)


def _body(name: str, body: Body | None) -> Document:
    if body is None:
        return {}
    return {name: body.text, f"{name}Record": body.record, f"{name}Digest": body.digest, f"{name}Bytes": body.size}


def _entry(entry: Entry) -> Document:
    return _slim(
        state=entry.state.value,
        key=entry.key,
        **_body("payload", entry.payload),
        attempt=entry.attempt,
        token=entry.token,
        failures=entry.failures,
        firstStartedAt=_time(entry.first_started_at),
        finishedAt=_time(entry.finished_at),
        retryAt=_time(entry.retry_at),
        final=entry.final,
        reason=entry.reason,
        message=entry.message,
        **_body("result", entry.result),
        question=entry.question,
        askedAt=_time(entry.asked_at),
        approvedAt=_time(entry.approved_at),
        gaveUp=entry.gave_up,
        abandoned=entry.abandoned,
        open=[_attempt(attempt) for attempt in entry.open],
        answers=[_answer(answer) for answer in entry.answers],
    )


def _attempt(attempt: Attempt) -> Document:
    return _slim(
        attempt=attempt.number,
        token=attempt.token,
        requestID=attempt.request_id,
        podUID=attempt.pod_uid,
        startedAt=_time(attempt.started_at),
        deadline=_time(attempt.deadline),
        terminatedAt=_time(attempt.terminated_at),
        outcome="Failed" if attempt.failed else None,
    )


def _answer(answer: Answer) -> Document:
    return {
        "verified": answer.verified,
        **_slim(
            question=answer.question,
            verdict=answer.verdict.value,
            by=answer.by,
            at=_time(answer.at),
            reason=answer.reason,
            force=answer.force,
            refused=answer.refused,
        ),
    }


def _plan(plan: Plan) -> Document:
    return {
        "digest": plan.digest,
        "acceptedAt": format_time(plan.accepted_at),
        "source": plan.source.value,
        "initialSteps": plan.initial,
        "steps": [step_document(step) for step in plan.steps],
    }


def step_document(step: StepSpec) -> Document:
    """Return one step as stored and as answered to workers: effective values, optional ones absent."""
    document = _slim(
        id=step.id,
        action=step.action.value,
        recovery=step.recovery.value,
        timeoutSeconds=step.timeout,
        attempts=step.attempts,
        idempotencyKeyTTLSeconds=step.key_ttl,
        probe=None if step.probe_give_up is None else {"giveUpAfterSeconds": step.probe_give_up},
    )
    document |= {"settleSeconds": step.settle, "backoffSeconds": step.backoff}
    if step.approval:
        document["approval"] = {} if step.approval_expires is None else {"expiresAfterSeconds": step.approval_expires}
    return document


def _worker(worker: Worker) -> Document:
    return _slim(
        number=worker.number,
        job=worker.job,
        podUID=worker.pod_uid,
        templateHash=worker.template_hash,
        startedAt=_time(worker.started_at),
        progressed=worker.progressed,
        exitReason=worker.exit_reason,
        message=worker.message,
        failures=worker.failures,
        retryAt=_time(worker.retry_at),
        endedAt=_time(worker.ended_at),
    )


def _holder(holder: Holder) -> Document:
    return _slim(
        pod=holder.pod,
        podUID=holder.pod_uid,
        requestID=holder.request_id,
        claimedAt=_time(holder.claimed_at),
        renewedAt=_time(holder.renewed_at),
        leaseSeconds=holder.lease,
        draining=holder.draining,
    )


def _question(question: Question) -> Document:
    return {
        "workerTerminated": question.worker_terminated,
        "acceptsDidNotHappen": question.accepts_did_not_happen,
        **_slim(
            step=question.step,
            kind=question.kind.value,
            since=_time(question.since),
            reason=question.reason,
            message=question.message,
            payload=question.payload,
            payloadDigest=question.payload_digest,
            patch=question.patch,
        ),
    }


def _condition(condition: Condition, before: Mapping[str, Any] | None, run: Run, now: datetime) -> Document:
    stays = before is not None and before.get("status") == condition.status
    return {
        "type": condition.type,
        "status": condition.status,
        "observedGeneration": run.generation,
        "lastTransitionTime": before["lastTransitionTime"] if stays and before else now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "reason": condition.reason,
        "message": condition.message,
    }


def carry(raw: Any, before: Any, after: Any) -> Any:
    """Return `after` with everything that `raw` (as stored) has and `before` (what we read of it) does not know."""
    if isinstance(raw, Mapping) and isinstance(after, Mapping):
        known = before if isinstance(before, Mapping) else {}
        kept = {name: value for name, value in raw.items() if name not in known and name not in after}
        return {**kept, **{name: carry(raw.get(name), known.get(name), value) for name, value in after.items()}}
    if isinstance(raw, list) and isinstance(after, list) and raw and isinstance(raw[0], Mapping):
        return _carry_list(raw, before if isinstance(before, list) else [], after)
    return after


def _carry_list(raw: list[Any], before: list[Any], after: list[Any]) -> list[Any]:
    olds, knowns = {_name(item): item for item in raw}, {_name(item): item for item in before}
    now = {_name(item) for item in after}
    strangers = [item for name, item in olds.items() if name not in knowns and name not in now]
    return [*(carry(olds.get(_name(item)), knowns.get(_name(item)), item) for item in after), *strangers]


def _name(item: Any) -> Any:
    return next((item[name] for name in _IDENTITY if name in item), None) if isinstance(item, Mapping) else item
