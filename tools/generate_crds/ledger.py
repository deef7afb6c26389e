"""The ledger of a run: what is recorded of each step that was begun."""

from tools.generate_crds import fields
from tools.generate_crds.fields import Schema

_STATE = (
    "`Planned` (it went back), `AwaitingApproval`, `Approved`, `InFlight`, `Done`, `Failed`, `Unknown` (the record cannot tell "
    "whether it happened) or `Denied`."
)
_TOKEN = "Fencing token of the last write that moved this entry; never above the run's."
_PAYLOAD = "Canonical JSON of what is to be done, up to 1 KiB; dropped when the step is Done."
_RESULT = "Canonical JSON of the result, up to 1 KiB."


def body(what: str) -> dict[str, Schema]:
    """Where a result is kept: inline, in a record, or (too large) as its digest and size alone."""
    return {
        "result": fields.text(_RESULT, fields.INLINE_LENGTH),
        "resultRecord": fields.text("Name of the AgentRunRecord that holds a larger result.", 253),
        "resultDigest": fields.digest(f"the result of the {what}"),
        "resultBytes": fields.integer("Size of the result in bytes, whether or not it could be kept."),
    }


def attempt() -> Schema:
    """One beginning of a step."""
    begun = {
        "attempt": fields.integer("Number of the attempt.", 1),
        "token": fields.integer("Fencing token under which it began."),
        "requestID": fields.text("Id of the begin request.", 64, minimum=1, pattern=fields.REQUEST_ID),
        "podUID": fields.uid("the pod that began it"),
        "startedAt": fields.time("When it began."),
        "deadline": fields.time("When it must have ended."),
        "terminatedAt": fields.time("When its pod was seen to have ended, confirmed by the kubelet."),
        "outcome": fields.choice("Set when the worker knew that it did not happen.", ["Failed"]),
    }
    needs = ["attempt", "token", "requestID", "startedAt", "deadline"]
    return fields.record("One attempt.", begun, required=needs)


def answer() -> Schema:
    """A person's answer as it was recorded."""
    recorded = {
        "question": fields.text("Id of the question.", 32, pattern=fields.QUESTION_ID),
        "verdict": fields.choice("What was answered.", fields.VERDICTS),
        "by": fields.text("Who answered.", 256),
        "verified": fields.flag("Whether the API server vouched for `by`."),
        "at": fields.time("When the answer was first seen."),
        "reason": fields.message("The reason given."),
        "force": fields.flag("Whether it was forced."),
        "refused": fields.message("Why it had no effect; absent when it had one."),
    }
    return fields.record("One answer.", recorded, required=["question", "verdict", "at"])


def _progress() -> dict[str, Schema]:
    return {
        "attempt": fields.integer("Number of the last beginning; 0 before the first."),
        "token": fields.integer(_TOKEN),
        "failures": fields.integer("Attempts that ended in a failure that the worker was sure of."),
        "firstStartedAt": fields.time("When the first attempt began: the key's life counts from here."),
        "finishedAt": fields.time("When the step was settled."),
        "retryAt": fields.time("Failed: it is not begun again before this."),
        "final": fields.flag("Failed for good: no attempt follows."),
        "reason": fields.reason("Of Failed, Unknown and Denied."),
        "message": fields.message("Of Failed, Unknown and Denied."),
    }


def _doubt() -> dict[str, Schema]:
    question = "Id of the question that this entry raises; drawn anew each time it becomes Unknown or AwaitingApproval."
    unresolved = "Attempts that may still turn out to have happened, and the last one."
    return {
        "question": fields.text(question, 32, pattern=fields.QUESTION_ID),
        "askedAt": fields.time("When the entry became Unknown or AwaitingApproval."),
        "approvedAt": fields.time("When it was approved."),
        "gaveUp": fields.flag("The probe gave up: a person is asked."),
        "abandoned": fields.flag("A person gave the step up; it stays Unknown."),
        "open": fields.listing(unresolved, attempt(), 256),
        "answers": fields.listing("People's answers, newest last.", answer(), 64),
    }


def entry() -> Schema:
    """The entry of one step."""
    payload = {
        "state": fields.choice(_STATE, fields.STATES),
        "key": fields.text("Idempotency key: the same for all attempts.", 40, minimum=40, pattern=fields.IDEMPOTENCY_KEY),
        "payloadDigest": fields.digest("the payload"),
        "payload": fields.text(_PAYLOAD, fields.INLINE_LENGTH),
        "payloadRecord": fields.text("Name of the AgentRunRecord that holds a larger payload.", 253),
        "payloadBytes": fields.integer("Size of the payload in bytes."),
    }
    needs = ["state", "key", "attempt", "token"]
    return fields.record("What is recorded of one step.", payload | _progress() | body("step") | _doubt(), required=needs)
