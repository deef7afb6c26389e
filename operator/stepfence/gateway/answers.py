"""The use cases' values as the JSON of the worker API, and a worker's plan as the core's."""

from __future__ import annotations

from stepfence.app.views import BeginView, ClaimView, StepView, Stop
from stepfence.core.ledger import Go
from stepfence.core.model import Plan, StepSpec
from stepfence.core.plan import StepRequest, effective
from stepfence.gateway import replies, wire
from stepfence.schema.encode import step_document

__all__ = ["begin_answer", "claim_answer", "plan_view", "reported", "step_spec", "stop_view", "view"]


def step_spec(step: wire.StepBody) -> StepSpec:
    """Return a worker's step with every default filled in."""
    request = StepRequest(
        id=step.id,
        action=step.action,
        recovery=step.recovery,
        timeout=step.timeout_seconds,
        settle=step.settle_seconds,
        attempts=step.attempts,
        backoff=step.backoff_seconds,
        key_ttl=step.idempotency_key_ttl_seconds,
        approval=step.approval is not None,
        approval_expires=None if step.approval is None else step.approval.expires_after_seconds,
        probe_give_up=None if step.probe is None else step.probe.give_up_after_seconds,
    )
    return effective(request)


def plan_view(plan: Plan) -> replies.PlanView:
    """Return the recorded plan."""
    return replies.PlanView(
        digest=plan.digest,
        accepted_at=plan.accepted_at,
        source=plan.source.value,
        initial_steps=plan.initial,
        steps=[replies.PlannedStep.model_validate(step_document(step)) for step in plan.steps],
    )


def view(step: StepView) -> replies.View:
    """Return what is recorded of a step."""
    return replies.View.model_validate(_view(step))


def reported(step: StepView) -> replies.Reported:
    """Return what became of a step through a report."""
    return replies.Reported.model_validate({**_view(step), "outcome": step.entry.state.value})


def _view(step: StepView) -> dict[str, object]:
    entry, result = step.entry, step.entry.result
    return {
        "state": entry.state.value,
        "attempt": entry.attempt,
        "key": entry.key,
        "payload_digest": entry.payload.digest if entry.payload else None,
        "result": step.result,
        "result_stored": result is None or result.stored,
        "result_digest": result.digest if result else None,
        "result_bytes": result.size if result else None,
        "reason": entry.reason,
        "message": entry.message,
        "final": entry.final,
        "failures": entry.failures,
    }


def stop_view(stop: Stop | None) -> replies.StopView | None:
    """Return why the worker must stop, if it must."""
    return None if stop is None else replies.StopView(code=stop.code, detail=stop.detail)


def claim_answer(claim: ClaimView) -> replies.ClaimAnswer:
    """Return a claim with its plan and ledger."""
    return replies.ClaimAnswer(
        token=claim.token,
        token_proof=claim.token_proof,
        run_id=claim.run_id,
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        phase=claim.phase,
        input=claim.input,
        plan=None if claim.plan is None else plan_view(claim.plan),
        ledger={step: view(recorded) for step, recorded in claim.ledger.items()},
        lease_seconds=claim.lease_seconds,
        margin_seconds=claim.margin_seconds,
        remaining=replies.RemainingView(bytes=claim.remaining.bytes, steps=claim.remaining.steps),
        stop=stop_view(claim.stop),
    )


def begin_answer(begun: BeginView) -> replies.BeginAnswer:
    """Return the answer that fits the outcome."""
    entry, result = begun.step.entry, begun.step.entry.result
    match Go(begun.outcome):
        case Go.GO:
            return replies.GoAnswer(
                attempt=begun.attempt,
                key=begun.key,
                payload=begun.payload,
                payload_digest=begun.payload_digest,
                payload_changed=begun.payload_changed,
                time_left_seconds=begun.time_left_seconds,
                timeout_seconds=begun.timeout_seconds,
            )
        case Go.DONE:
            return replies.DoneAnswer(
                result=begun.step.result,
                result_digest=result.digest if result else None,
                result_bytes=result.size if result else None,
                result_stored=result is None or result.stored,
                payload_changed=begun.payload_changed,
                attempt=begun.attempt,
            )
        case Go.FAILED:
            return replies.FailedAnswer(reason=entry.reason, message=entry.message, attempt=begun.attempt)
        case Go.DENIED:
            return replies.DeniedAnswer(reason=entry.reason, message=entry.message)
        case Go.WAIT:
            return replies.WaitAnswer(retry_after_seconds=begun.retry_after_seconds, reason=begun.reason)
        case Go.PROBE:
            return replies.ProbeAnswer(
                attempt=begun.attempt,
                key=begun.key,
                payload=begun.payload,
                payload_digest=begun.payload_digest,
                retry_after_seconds=begun.retry_after_seconds,
            )
