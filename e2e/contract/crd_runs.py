"""Runs in three conditions, as the writes of the rule tests find them: fresh, open (doubts, questions, answers) and terminal."""

import copy
import itertools
from typing import Any

from e2e.contract.crd_api import VERSION, Api, Document, Said, objects

TIME = "2026-01-02T03:04:05.678Z"
LATER = "2026-01-02T03:04:06.000Z"
DIGEST = "sha256:" + "0" * 64
OTHER_DIGEST = "sha256:" + "1" * 64
CONTAINER: Document = {"name": "agent", "image": "agent:1"}
TEMPLATE: Document = {"spec": {"containers": [CONTAINER]}}
STEPS: list[Document] = [
    {"id": "lookup", "action": "Read"},
    {"id": "refund", "action": "Payment"},
    {"id": "wipe", "action": "Delete"},
    {"id": "notify", "action": "Create"},
    {"id": "close", "action": "Upsert"},
]
SPEC: Document = {
    "runID": "refund-4711",
    "input": {"order": {"id": "4711"}},
    "plan": {"steps": STEPS},
    "template": TEMPLATE,
    "backoffLimit": 5,
    "workerHistoryLimit": 2,
    "activeDeadlineSeconds": 3600,
}
ANSWERED = "lookup.q0"

_names = itertools.count()


def key(number: int) -> str:
    """An idempotency key."""
    return "sf1" + f"{number:037x}"


def answer(question: str) -> Document:
    return {"question": question, "verdict": "DidNotHappen", "by": "jo", "verified": False, "at": TIME}


def attempt(number: int) -> Document:
    begun = {"attempt": number, "token": 2, "requestID": "r-1", "podUID": "pod-1"}
    return {**begun, "startedAt": TIME, "deadline": LATER}


DONE: Document = {
    "state": "Done",
    "key": key(1),
    "payloadDigest": DIGEST,
    "attempt": 1,
    "token": 1,
    "firstStartedAt": TIME,
    "finishedAt": TIME,
    "result": '{"total":12}',
    "resultRecord": "record-1",
    "resultDigest": DIGEST,
    "resultBytes": 12,
}
UNKNOWN: Document = {
    "state": "Unknown",
    "key": key(2),
    "payloadDigest": DIGEST,
    "payload": "{}",
    "attempt": 2,
    "token": 2,
    "question": "q1",
    "askedAt": TIME,
    "open": [attempt(2)],
    "answers": [answer("q9")],
}
LEDGER: Document = {
    "lookup": DONE,
    "refund": UNKNOWN,
    "wipe": {"state": "Denied", "key": key(3), "attempt": 0, "token": 2},
    "notify": {"state": "Unknown", "key": key(4), "attempt": 1, "token": 2, "abandoned": True},
}


def question(step: str, kind: str, **more: Any) -> Document:
    return {"step": step, "kind": kind, "since": TIME, **more}


QUESTIONS: Document = {
    ANSWERED: question("lookup", "Reconcile"),
    "refund.q1": question("refund", "Reconcile"),
    "notify.q4": question("notify", "Reconcile", acceptsDidNotHappen=True),
    "wipe.q2": question("wipe", "Approve"),
    "run.q3": question("run", "Hold"),
}
FRESH: Document = {"observedGeneration": 1, "phase": "Pending", "version": 1, "runID": "default/x", "fencingToken": 3}
OPEN: Document = {
    **FRESH,
    "phase": "NeedsReconciliation",
    "version": 9,
    "cancelRequestedAt": TIME,
    "holdAnswers": [answer("q8")],
    "plan": {"digest": DIGEST, "acceptedAt": TIME, "source": "Spec", "steps": [{**s, "recovery": "Halt"} for s in STEPS]},
    "ledger": LEDGER,
    "questions": QUESTIONS,
}
TERMINAL: Document = {
    **OPEN,
    "phase": "Failed",
    "outcome": "Failed",
    "finishedAt": TIME,
    "ledger": {
        **LEDGER,
        "close": {"state": "Failed", "key": key(5), "attempt": 1, "token": 2},
        # A person refused its second attempt.
        "again": {"state": "Denied", "key": key(6), "attempt": 1, "token": 2},
    },
}
CONDITIONS = {"fresh": FRESH, "open": OPEN, "terminal": TERMINAL}


def manifest(group: str, spec: Document, name: str = "") -> Document:
    """A run; names are never used twice."""
    metadata = {"name": name or f"run-{next(_names)}"}
    return {"apiVersion": f"{group}/{VERSION}", "kind": "AgentRun", "metadata": metadata, "spec": copy.deepcopy(spec)}


def must(said: Said) -> Document:
    """What was said to a write that has to pass."""
    assert said.accepted, said.message
    return said.body


def seed(api: Api, group: str, condition: str) -> str:
    """A run in one of the conditions; its path."""
    created = must(api.create(objects(group, "agentruns"), manifest(group, SPEC)))
    path = f"{objects(group, 'agentruns')}/{created['metadata']['name']}"
    must(api.merge(f"{path}/status", {"status": CONDITIONS[condition]}))
    if condition == "open":
        must(api.merge(path, {"spec": {"decisions": {ANSWERED: {"verdict": "Happened", "result": {"a": {"b": 1}}}}}}))
    return path
