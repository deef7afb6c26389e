"""Short ways to make what most tests start from: times, steps, runs, bodies, calls."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from stepfence.core.canonical import Json, canonical, digest
from stepfence.core.fencing import Claim, HolderFact, claim
from stepfence.core.ledger import Begin, BeginAnswer, begin
from stepfence.core.lifecycle import accept
from stepfence.core.model import Body, Run, RunSpec, StepSpec
from stepfence.core.plan import StepRequest, effective
from stepfence.core.reports import Report
from stepfence.core.words import Action, At, Settings
from stepfence.testing.clock import EPOCH

__all__ = ["POD", "at", "begun", "body", "claimed", "new_run", "report", "seconds", "step", "with_decision"]

POD = "pod-1"


def seconds(after: float) -> datetime:
    """Return the moment that many seconds after the start of every test."""
    return EPOCH + timedelta(seconds=after)


def at(after: float = 0, nonce: str = "", settings: Settings | None = None) -> At:
    """Return the inputs of a decision made that many seconds after the start; the nonce follows the time unless given."""
    return At(seconds(after), nonce or f"nonce-{after}", settings or Settings())


def step(name: str = "pay", action: Action = Action.PAYMENT, **asked: Any) -> StepSpec:
    """Return a planned step with its defaults filled in."""
    return effective(StepRequest(id=name, action=action, **asked))


def body(value: Json = None) -> Body:
    """Return a body that is stored inline."""
    text = canonical(value)
    return Body(digest(text), len(text), text)


def new_run(*steps: StepSpec, accepted: bool = True, **spec: Any) -> Run:
    """Return a run of those steps, accepted by the controller at second 0 unless told otherwise."""
    run = Run(namespace="support", name="refund", uid="uid-1", generation=1, spec=RunSpec(steps=tuple(steps) or None, **spec))
    return accept(run, at()) if accepted else run


def claimed(run: Run, after: float = 0, pod: str = POD, holder: HolderFact = HolderFact.OVER) -> Run:
    """Return the run as claimed by that pod."""
    taken, _ = claim(run, Claim(pod, f"{pod}-uid", f"claim-{pod}-{after}", lease=60), holder, at(after))
    return taken


def begun(
    run: Run, after: float = 0, name: str = "pay", *, request_id: str = "", pod: str = POD, payload: Json = None
) -> tuple[Run, BeginAnswer]:
    """Begin a step under the current token; the request id follows the time unless given."""
    call = Begin(name, run.token, f"{pod}-uid", request_id or f"begin-{after}", body(payload))
    return begin(run, call, at(after))


def report(run: Run, attempt: int = 1, name: str = "pay", *, pod: str = POD, token: int | None = None) -> Report:
    """Return a worker's report on one attempt, under the current token unless given."""
    return Report(name, attempt, run.token if token is None else token, f"{pod}-uid")


def with_decision(run: Run, key: str, decision: Any) -> Run:
    """Return the run as if a person had written that decision."""
    return replace(run, spec=replace(run.spec, decisions={**run.spec.decisions, key: decision}))
