"""The worker API: one route a use case. No rule lives here: each route reads JSON, calls `WorkerCalls`, and gives the answer its shape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, Path, Request, Security
from fastapi.security import HTTPBearer

from stepfence.app.views import StepView
from stepfence.app.worker_calls import Call
from stepfence.core.canonical import Json, canonical, digest
from stepfence.core.errors import Code, Refused
from stepfence.core.kept import not_kept
from stepfence.core.ledger import Go
from stepfence.gateway import answers, replies, wire
from stepfence.gateway.auth import Identified, WorkerRoute, deps_of, identified
from stepfence.gateway.mending import mended
from stepfence.gateway.metrics import metrics_of
from stepfence.gateway.problems import Problem
from stepfence.schema.times import format_time

__all__ = ["router"]

_BEARER = HTTPBearer(auto_error=False, description="The token that is projected into the worker's pod (audience `stepfence`).")
router = APIRouter(
    prefix="/v1/namespaces/{namespace}/agentruns/{name}",
    route_class=WorkerRoute,
    dependencies=[Security(_BEARER)],
    responses={"default": {"model": Problem, "description": "A problem (RFC 9457)."}},
    tags=["worker"],
)

# When a probe was started that does not say: its "no" does not count, and its "yes" needs no moment.
_LONG_AGO = datetime.fromtimestamp(0, UTC)

Who = Annotated[Identified, Depends(identified)]
Step = Annotated[str, Path(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63, description="The step's id.")]


def _call(who: Identified, body: wire.Body, step: str | None = None) -> Call:
    structlog.contextvars.bind_contextvars(token=body.token, step=step, request_id=body.request_id)
    return Call(who.caller, who.key, body.token, body.token_proof)


async def _told(result: Json, tell: Callable[[Json], Awaitable[StepView]]) -> StepView:
    """Record what happened, with its result; with what can be kept of one that JSON cannot carry."""
    try:
        return await tell(result)
    except Refused as refused:
        if refused.code is not Code.BAD_REQUEST or refused.field != "result":
            raise
        mended("result")
        return await tell(not_kept(result, refused.detail))


@router.post("/claim", operation_id="claim")
async def claim(request: Request, who: Who, body: wire.ClaimBody) -> replies.ClaimAnswer:
    """Take the run: the next fencing token, the plan and what is recorded of every step. Waits nowhere."""
    structlog.contextvars.bind_contextvars(request_id=body.request_id)
    return answers.claim_answer(await deps_of(request).calls.claim(who.caller, who.key, body.request_id))


@router.post("/plan", operation_id="submitPlan")
async def plan(request: Request, who: Who, body: wire.PlanBody) -> replies.PlanAnswer:
    """Submit the plan once, or append to it. The same again is answered alike."""
    steps = [answers.step_spec(step) for step in body.steps]
    recorded = await deps_of(request).calls.submit_plan(_call(who, body), steps)
    return replies.PlanAnswer(plan=answers.plan_view(recorded), token=body.token)


@router.post("/steps/{step}/begin", operation_id="beginStep")
async def begin(request: Request, who: Who, step: Step, body: wire.BeginBody) -> replies.BeginAnswer:
    """Record the intent before the action is done, or answer what is recorded. Only `Go` lets the worker act."""
    if body.payload_digest is not None and body.payload_digest != digest(canonical(body.payload, field="payload")):
        raise Refused(Code.BAD_REQUEST, "payloadDigest is not the digest of the payload's canonical JSON", field="payloadDigest")
    begun = await deps_of(request).calls.begin(_call(who, body, step), step, body.request_id, body.payload)
    if begun.outcome == Go.DONE:
        metrics_of(request).replays.labels(begun.image).inc()
    return answers.begin_answer(begun)


@router.post("/steps/{step}/complete", operation_id="completeStep")
async def complete(request: Request, who: Who, step: Step, body: wire.CompleteBody) -> replies.Reported:
    """Report that the attempt succeeded. Heard under an old token too."""
    calls, call = deps_of(request).calls, _call(who, body, step)

    async def tell(result: Json) -> StepView:
        return await calls.complete(call, step, body.attempt, result, omitted=body.omitted)

    return answers.reported(await _told(body.kept, tell))


@router.post("/steps/{step}/fail", operation_id="failStep")
async def fail(request: Request, who: Who, step: Step, body: wire.FailBody) -> replies.Reported:
    """Report that the attempt surely did nothing."""
    failed = await deps_of(request).calls.fail(
        _call(who, body, step),
        step,
        body.attempt,
        body.reason,
        body.message,
        final=body.final,
        retry_after=body.retry_after_seconds,
    )
    return answers.reported(failed)


@router.post("/steps/{step}/lose", operation_id="loseStep")
async def lose(request: Request, who: Who, step: Step, body: wire.LoseBody) -> replies.Reported:
    """Report that nobody can tell what became of the attempt."""
    lost = await deps_of(request).calls.lose(_call(who, body, step), step, body.attempt, body.reason, body.message)
    return answers.reported(lost)


@router.post("/steps/{step}/probe", operation_id="probeStep")
async def probe(request: Request, who: Who, step: Step, body: wire.ProbeBody) -> replies.LeaveAnswer | replies.LeaveWait | replies.Reported:
    """Ask leave to probe (no verdict), or report what the probe found."""
    calls, call = deps_of(request).calls, _call(who, body, step)
    if body.as_of is None and body.verdict is None:
        as_of, wait = await calls.probe_leave(call, step, body.attempt)
        return replies.LeaveWait(retry_after_seconds=wait) if wait > 0 else replies.LeaveAnswer(as_of=format_time(as_of))

    async def tell(result: Json) -> StepView:
        return await calls.probe(call, step, body.attempt, body.found, result, as_of=body.as_of or _LONG_AGO, give_up=body.give_up)

    return answers.reported(await _told(body.result, tell))


@router.get("/steps/{step}/result", operation_id="readResult")
async def result(request: Request, who: Who, step: Step) -> replies.ResultAnswer:
    """Read the stored result of a step that is Done."""
    stored = await deps_of(request).calls.result(who.caller, who.key, step)
    return replies.ResultAnswer(result=stored.result, result_digest=stored.digest, result_bytes=stored.size)


@router.post("/renew", operation_id="renew")
async def renew(request: Request, who: Who, body: wire.Body) -> replies.RenewAnswer:
    """Renew the lease of an idle worker, and learn whether it must stop."""
    calls = deps_of(request).calls
    stop = await calls.renew(_call(who, body))
    return replies.RenewAnswer(lease_seconds=calls.lease_seconds, stop=answers.stop_view(stop))


@router.post("/drain", operation_id="drain")
async def drain(request: Request, who: Who, body: wire.Body) -> replies.DrainAnswer:
    """Say that the worker is going: it begins nothing new."""
    await deps_of(request).calls.drain(_call(who, body))
    return replies.DrainAnswer()


@router.post("/release", operation_id="release")
async def release(request: Request, who: Who, body: wire.ReleaseBody) -> replies.ReleaseAnswer:
    """Let the run go. What is in flight is in doubt from here on."""
    await deps_of(request).calls.release(_call(who, body), body.reason)
    return replies.ReleaseAnswer()


@router.post("/finish", operation_id="finishRun")
async def finish(request: Request, who: Who, body: wire.FinishBody) -> replies.FinishAnswer:
    """Say that the run is done. Refused while a step is open."""
    return replies.FinishAnswer(outcome=await deps_of(request).calls.finish(_call(who, body), body.result))


@router.post("/fail", operation_id="failRun")
async def fail_run(request: Request, who: Who, body: wire.ReasonBody) -> replies.EndAnswer:
    """Fail the run: nothing begins any more; it ends when nothing is open."""
    outcome, ended = await deps_of(request).calls.fail_run(_call(who, body), body.reason, body.message)
    return replies.EndAnswer(outcome=outcome) if ended else replies.EndAnswer(ending=outcome)


@router.post("/halt", operation_id="haltRun")
async def halt(request: Request, who: Who, body: wire.ReasonBody) -> replies.HaltAnswer:
    """Ask a person about the run itself."""
    question, patch = await deps_of(request).calls.halt_run(_call(who, body), body.reason, body.message)
    return replies.HaltAnswer(question=question, patch=patch)
