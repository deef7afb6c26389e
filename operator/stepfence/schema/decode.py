"""AgentRun JSON to the core's values. Unknown fields are passed over here and kept by `carry`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from stepfence.core.canonical import Json, canonical
from stepfence.core.errors import Code, Refused
from stepfence.core.model import Answer, Attempt, Body, Decision, Ending, Entry, Hold, Holder, Plan, Run, RunSpec, StepSpec, Worker
from stepfence.core.plan import StepRequest, effective
from stepfence.core.words import Action, Outcome, PlanSource, Recovery, RunId, Settings, State, Token, Verdict
from stepfence.schema.names import CONTAINER_ANNOTATION
from stepfence.schema.times import parse_time

__all__ = ["Unreadable", "decode", "step_request"]

Object = Mapping[str, Any]
T = TypeVar("T")


_RETRY_SECONDS = 5.0


class Unreadable(Refused):
    """A stored run says what this version does not know, as after a newer one wrote it.

    No caller can mend that. What a worker reports must not be refused for it: the worker repeats it until a server that can read the run
    hears it.
    """

    def __init__(self, error: Exception) -> None:
        detail = f"this AgentRun cannot be read: {error!r}"
        super().__init__(Code.STORE_UNAVAILABLE, detail, field="status", retry_after=_RETRY_SECONDS)


def decode(manifest: Object, settings: Settings | None = None) -> Run:
    """Read an AgentRun object. Raises `Unreadable`."""
    metadata, spec, status = manifest["metadata"], manifest.get("spec") or {}, manifest.get("status") or {}
    try:
        return _run(metadata, spec, status, settings or Settings())
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise Unreadable(error) from error


def _run(metadata: Object, spec: Object, status: Object, settings: Settings) -> Run:
    problem = status.get("workerProblem")
    return Run(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 1),
        spec=_spec(spec, settings),
        observed_generation=status.get("observedGeneration", -1),
        version=status.get("version", 0),
        run_id=_opt(status, "runID", RunId),
        token=Token(status.get("fencingToken", 0)),
        started_at=_time(status, "startedAt"),
        active_seconds=status.get("activeMilliseconds", 0) / 1000,
        active_since=_time(status, "activeSince"),
        outcome=_opt(status, "outcome", Outcome),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        result=_body(status, "result"),
        finished_at=_time(status, "finishedAt"),
        cancel_requested_at=_time(status, "cancelRequestedAt"),
        ending=_opt(status, "ending", _ending),
        hold=_opt(status, "hold", _hold),
        hold_answers=tuple(_answer(item) for item in status.get("holdAnswers", ())),
        worker=_opt(status, "worker", _worker),
        holder=_opt(status, "holder", _holder),
        plan=_opt(status, "plan", _plan),
        ledger={step: _entry(item) for step, item in status.get("ledger", {}).items()},
        worker_problem=(problem["reason"], problem.get("message", "")) if problem else None,
        deleting="deletionTimestamp" in metadata,
    )


def _opt(source: Object, name: str, read: Callable[[Any], T]) -> T | None:
    value = source.get(name)
    return None if value is None else read(value)


def _time(source: Object, name: str) -> datetime | None:
    return _opt(source, name, parse_time)


def _spec(spec: Object, settings: Settings) -> RunSpec:
    problems: list[str] = []
    text = _input(spec.get("input"), settings, problems)
    plan = spec.get("plan")
    template = spec.get("template")
    return RunSpec(
        run_id=spec.get("runID"),
        input=text,
        steps=None if plan is None else tuple(effective(step_request(step)) for step in plan["steps"]),
        template_hash=hashlib.sha256(canonical(template, field="spec.template").encode()).hexdigest()[:16] if template else "",
        image=_image(template or {}),
        backoff_limit=spec.get("backoffLimit", 6),
        active_deadline=spec.get("activeDeadlineSeconds"),
        history=spec.get("workerHistoryLimit"),
        suspend=bool(spec.get("suspend", False)),
        cancel=bool(spec.get("cancel", False)),
        decisions={key: _decision(item) for key, item in (spec.get("decisions") or {}).items()},
        problems=tuple(problems),
    )


def _image(template: Object) -> str:
    """Return the image of the worker's container: the default one, else the first."""
    named = ((template.get("metadata") or {}).get("annotations") or {}).get(CONTAINER_ANNOTATION)
    containers = (template.get("spec") or {}).get("containers") or ()
    chosen = next((each for each in containers if each.get("name") == named), containers[0] if containers else {})
    return str(chosen.get("image", ""))


def _input(value: Json, settings: Settings, problems: list[str]) -> str | None:
    if value is None:
        return None
    try:
        text = canonical(value, field="spec.input")
    except Refused as refused:
        problems.append(f"spec.input: {refused.detail.removeprefix('spec.input').lstrip(': ')}")
        return None
    size = len(text.encode())
    if size > settings.input_bytes:
        problems.append(f"spec.input: {size} bytes, at most {settings.input_bytes}")
        return None
    return text


def step_request(step: Object) -> StepRequest:
    """Read one step of a plan as people and workers write it."""
    approval, probe = step.get("approval"), step.get("probe")
    return StepRequest(
        id=step["id"],
        action=Action(step.get("action", Action.CREATE)),
        recovery=_opt(step, "recovery", Recovery),
        timeout=step.get("timeoutSeconds"),
        settle=step.get("settleSeconds"),
        attempts=step.get("attempts"),
        backoff=step.get("backoffSeconds"),
        key_ttl=step.get("idempotencyKeyTTLSeconds"),
        approval=approval is not None,
        approval_expires=None if approval is None else approval.get("expiresAfterSeconds"),
        probe_give_up=None if probe is None else probe.get("giveUpAfterSeconds", 300),
    )


def _decision(item: Object) -> Decision:
    result, text, problem = item.get("result"), None, ""
    try:
        text = None if result is None else canonical(result, field="result")
    except Refused as refused:
        # One answer that cannot be kept exactly (say an id beyond 2^53) must not make the whole run unreadable.
        problem = refused.detail
    return Decision(
        verdict=Verdict(item["verdict"]),
        result=text,
        problem=problem,
        reason=item.get("reason", ""),
        force=bool(item.get("force", False)),
        by=item.get("by", ""),
    )


def _plan(item: Object) -> Plan:
    steps: tuple[StepSpec, ...] = tuple(effective(step_request(step)) for step in item["steps"])
    return Plan(
        steps=steps,
        digest=item["digest"],
        accepted_at=parse_time(item["acceptedAt"]),
        source=PlanSource(item["source"]),
        initial=item.get("initialSteps", len(steps)),
    )


def _body(source: Object, name: str) -> Body | None:
    digest = source.get(f"{name}Digest")
    if digest is None:
        return None
    return Body(digest=digest, size=source.get(f"{name}Bytes", 0), text=source.get(name), record=source.get(f"{name}Record"))


def _entry(item: Object) -> Entry:
    return Entry(
        state=State(item["state"]),
        key=item["key"],
        payload=_body(item, "payload"),
        attempt=item.get("attempt", 0),
        token=Token(item.get("token", 0)),
        failures=item.get("failures", 0),
        first_started_at=_time(item, "firstStartedAt"),
        finished_at=_time(item, "finishedAt"),
        retry_at=_time(item, "retryAt"),
        final=item.get("final", False),
        reason=item.get("reason", ""),
        message=item.get("message", ""),
        result=_body(item, "result"),
        question=item.get("question"),
        asked_at=_time(item, "askedAt"),
        approved_at=_time(item, "approvedAt"),
        gave_up=item.get("gaveUp", False),
        abandoned=item.get("abandoned", False),
        open=tuple(_attempt(attempt) for attempt in item.get("open", ())),
        answers=tuple(_answer(answer) for answer in item.get("answers", ())),
    )


def _attempt(item: Object) -> Attempt:
    return Attempt(
        number=item["attempt"],
        token=Token(item["token"]),
        request_id=item["requestID"],
        pod_uid=item["podUID"],
        started_at=parse_time(item["startedAt"]),
        deadline=parse_time(item["deadline"]),
        terminated_at=_time(item, "terminatedAt"),
        failed=item.get("outcome") == "Failed",
    )


def _answer(item: Object) -> Answer:
    return Answer(
        question=item["question"],
        verdict=Verdict(item["verdict"]),
        by=item.get("by", ""),
        at=parse_time(item["at"]),
        reason=item.get("reason", ""),
        force=item.get("force", False),
        verified=item.get("verified", False),
        refused=item.get("refused", ""),
    )


def _ending(item: Object) -> Ending:
    return Ending(Outcome(item["outcome"]), item["reason"], item.get("message", ""), parse_time(item["at"]))


def _hold(item: Object) -> Hold:
    return Hold(item["question"], item["reason"], item.get("message", ""), parse_time(item["since"]))


def _worker(item: Object) -> Worker:
    return Worker(
        number=item["number"],
        job=item["job"],
        template_hash=item.get("templateHash", ""),
        started_at=parse_time(item["startedAt"]),
        pod_uid=item.get("podUID"),
        progressed=item.get("progressed", False),
        exit_reason=item.get("exitReason", ""),
        message=item.get("message", ""),
        failures=item.get("failures", 0),
        retry_at=_time(item, "retryAt"),
        ended_at=_time(item, "endedAt"),
    )


def _holder(item: Object) -> Holder:
    return Holder(
        pod=item["pod"],
        pod_uid=item["podUID"],
        request_id=item["requestID"],
        claimed_at=parse_time(item["claimedAt"]),
        renewed_at=parse_time(item["renewedAt"]),
        lease=item["leaseSeconds"],
        draining=item.get("draining", False),
    )
