"""For each rule of the definition the writes that it alone refuses, removal included."""

from collections.abc import Iterable
from dataclasses import dataclass

from e2e.contract.crd_api import Api, Document, Said, objects
from e2e.contract.crd_runs import ANSWERED, CONTAINER, LATER, OTHER_DIGEST, SPEC, STEPS, key, manifest, seed


@dataclass(frozen=True)
class Write:
    """A merge patch of the spec or the status of a run in some condition, or of the manifest that creates one."""

    rule: str
    sentence: str
    on: str
    change: Document
    path: str
    status: bool = False

    def send(self, api: Api, group: str) -> Said:
        if self.on == "nothing":
            return api.create(objects(group, "agentruns"), manifest(group, SPEC | self.change))
        path = seed(api, group, self.on)
        if self.status:
            return api.merge(f"{path}/status", {"status": self.change})
        return api.merge(path, {"spec": self.change})


def _steps(**last: object) -> Document:
    return {"plan": {"steps": [{"id": "first"}, {"id": "last", **last}]}}


def _decide(question: str, verdict: str, **more: object) -> Document:
    """An answer in the spec."""
    return {"decisions": {question: {"verdict": verdict, **more}}}


def _spec(rule: str, on: str, path: str, writes: Iterable[tuple[str, Document]]) -> list[Write]:
    return [Write(rule, sentence, on, change, path) for sentence, change in writes]


def _status(rule: str, on: str, path: str, writes: Iterable[tuple[str, Document]]) -> list[Write]:
    return [Write(rule, sentence, on, change, path, status=True) for sentence, change in writes]


def _entry(rule: str, step: str, writes: Iterable[tuple[str, Document]]) -> list[Write]:
    changes = [(sentence, {"ledger": {step: change}}) for sentence, change in writes]
    return _status(rule, "open", f"status.ledger[{step}]", changes)


def _immutable(field: str, other: object) -> list[Write]:
    writes: list[tuple[str, Document]] = [(f"change {field}", {field: other}), (f"remove {field}", {field: None})]
    return _spec(f"spec.{field}-is-immutable", "fresh", f"spec.{field}", writes)


IMMUTABLE = [
    *_immutable("runID", "refund-4712"),
    *_immutable("input", {"order": {"id": "4712"}}),
    *_immutable("plan", {"steps": STEPS[:-1]}),
    *_immutable("backoffLimit", 7),
    *_immutable("activeDeadlineSeconds", 3601),
    *_immutable("workerHistoryLimit", 4),
]

_DECISIONS = "spec.decisions"
_PLAN = [
    ("step-ids-are-unique", "spec.plan.steps", "a step id stands twice", _steps(id="first")),
    ("the-step-id-run-is-reserved", "spec.plan.steps[1]", "a step is called run", _steps(id="run")),
    (
        "resend-needs-the-life-of-the-key",
        "spec.plan.steps[1]",
        "resend without the life of the key",
        _steps(recovery="ResendWithKey"),
    ),
    (
        "the-key-outlives-an-attempt",
        "spec.plan.steps[1]",
        "resend with a key that dies with the default time-out",
        _steps(recovery="ResendWithKey", idempotencyKeyTTLSeconds=60),
    ),
    (
        "the-key-outlives-an-attempt",
        "spec.plan.steps[1]",
        "resend with a key that dies with the time-out",
        _steps(recovery="ResendWithKey", idempotencyKeyTTLSeconds=600, timeoutSeconds=600),
    ),
    ("recovery-probe-needs-a-probe", "spec.plan.steps[1]", "recovery probe without probe", _steps(recovery="Probe")),
    ("a-probe-needs-recovery-probe", "spec.plan.steps[1]", "a probe with recovery halt", _steps(recovery="Halt", probe={})),
    (
        "a-run-is-not-created-with-decisions",
        _DECISIONS,
        "a run is created with a decision",
        _decide("refund.q1", "Happened"),
    ),
]
PLAN = [Write(rule, sentence, "nothing", change, path) for rule, path, sentence, change in _PLAN]

DECISIONS = [
    *_spec(
        "a-new-decision-answers-an-open-question",
        "open",
        _DECISIONS,
        [
            ("answer a question that is not open", _decide("refund.q7", "Happened")),
            ("answer a step instead of its question", _decide("refund", "Happened")),
            ("answer a longer key than the question's", _decide("refund.q1.jo", "Happened")),
        ],
    ),
    *_spec(
        "a-new-decision-answers-an-open-question",
        "fresh",
        _DECISIONS,
        [("answer where no question was ever asked", _decide("refund.q1", "Happened"))],
    ),
    *_spec(
        "a-verdict-fits-its-question",
        "open",
        _DECISIONS,
        [
            ("approve a doubt", _decide("refund.q1", "Approve")),
            ("resume a doubt", _decide("refund.q1", "Resume")),
            ("say of an approval that it happened", _decide("wipe.q2", "Happened")),
            ("abandon an approval", _decide("wipe.q2", "Abandon")),
            ("approve a hold", _decide("run.q3", "Approve")),
            ("say of a hold that it did not happen", _decide("run.q3", "DidNotHappen", force=True)),
        ],
    ),
    *_spec(
        "did-not-happen-counts-only-when-it-can-be-known",
        "open",
        _DECISIONS,
        [
            ("say too early that it did not happen", _decide("refund.q1", "DidNotHappen")),
            ("say so with force false", _decide("refund.q1", "DidNotHappen", force=False)),
        ],
    ),
    *_spec(
        "a-decision-is-written-once",
        "open",
        _DECISIONS,
        [
            ("change a verdict", _decide(ANSWERED, "Abandon", result=None)),
            ("change a result deep inside", _decide(ANSWERED, "Happened", result={"a": {"b": 2}})),
            ("remove a result", _decide(ANSWERED, "Happened", result=None)),
            ("add a reason", _decide(ANSWERED, "Happened", reason="seen")),
        ],
    ),
    *_spec(
        "a-result-comes-with-happened",
        "open",
        f"{_DECISIONS}[notify.q4]",
        [("a result of what did not happen", _decide("notify.q4", "DidNotHappen", result={"a": 1}))],
    ),
    *_spec(
        "force-comes-with-did-not-happen",
        "open",
        f"{_DECISIONS}[refund.q1]",
        [("force what happened", _decide("refund.q1", "Happened", force=True))],
    ),
]


def _kept(rule: str, field: str, *others: object) -> list[Write]:
    """A field of the status that is guarded: changed to other values, and removed."""
    on = "fresh" if field in ("fencingToken", "version", "runID") else "terminal" if field == "outcome" else "open"
    # A fresh run has no ledger whose tokens would be compared with the run's.
    changes: list[tuple[str, Document]] = [(f"{field} becomes {other}", {field: other}) for other in others]
    return _status(rule, on, f"status.{field}", [*changes, (f"remove {field}", {field: None})])


_NEW_ENTRY: Document = {"state": "AwaitingApproval", "key": key(7), "attempt": 0, "token": 2}
_CHANGED = [{**step, "recovery": "Halt"} for step in STEPS]
_CHANGED[1] = {**_CHANGED[1], "recovery": "Rerun"}

STATUS = [
    *_kept("the-fencing-token-only-grows", "fencingToken", 2),
    *_kept("the-version-only-grows", "version", 0),
    *_kept("the-run-id-never-changes", "runID", "default/y"),
    *_kept("a-cancel-is-never-forgotten", "cancelRequestedAt", LATER),
    *_kept("an-outcome-is-final", "outcome", "Succeeded"),
    *_kept("the-plan-is-never-removed", "plan"),
    *_kept("the-ledger-is-never-removed", "ledger"),
    *_kept("answers-to-holds-are-kept", "holdAnswers", []),
    *_status(
        "a-terminal-run-has-nothing-in-flight",
        "open",
        "status.ledger",
        [("a run ends with a step in flight", {"outcome": "Failed", "ledger": {"refund": {"state": "InFlight", "attempt": 3}}})],
    ),
    *_status(
        "a-terminal-run-learns-only-that-a-step-is-done",
        "terminal",
        "status.ledger",
        [
            ("a terminal run begins a new step", {"ledger": {"other": _NEW_ENTRY}}),
            ("a terminal run lets a doubt fail", {"ledger": {"refund": {"state": "Failed"}}}),
            ("a terminal run asks about a failed step", {"ledger": {"close": {"state": "AwaitingApproval"}}}),
            ("a terminal run does what was denied", {"ledger": {"wipe": {"state": "Done"}}}),
        ],
    ),
    *_status(
        "no-entry-is-newer-than-the-fencing-token",
        "open",
        "status.ledger",
        [("an entry of a claim to come", {"ledger": {"refund": {"token": 4}}})],
    ),
    *_status(
        "the-plan-grows-at-its-end-only",
        "open",
        "status.plan.steps",
        [
            ("the last step goes", {"plan": {"steps": _CHANGED[:1]}}),
            ("a step changes", {"plan": {"steps": _CHANGED}}),
            ("two steps change places", {"plan": {"steps": [*reversed(_CHANGED)]}}),
            ("a step comes first", {"plan": {"steps": [{"id": "zero", "action": "Read", "recovery": "Rerun"}, *_CHANGED]}}),
        ],
    ),
    *_status(
        "a-ledger-entry-is-never-removed",
        "open",
        "status.ledger",
        [("remove an entry", {"ledger": {"refund": None}}), ("remove a Done entry", {"ledger": {"lookup": None}})],
    ),
]

ENTRIES = [
    *_entry("a-key-never-changes", "refund", [("another key", {"key": key(9)})]),
    *_entry("attempts-only-grow", "refund", [("an attempt less", {"attempt": 1})]),
    *_entry("attempts-only-grow", "lookup", [("an attempt more of what is Done", {"attempt": 2})]),
    *_entry("an-entry-token-only-grows", "refund", [("an older token", {"token": 1})]),
    *_entry("an-entry-token-only-grows", "lookup", [("a newer token of what is Done", {"token": 2})]),
    *_entry(
        "done-unknown-and-denied-are-not-simply-left",
        "lookup",
        [("Done becomes Unknown", {"state": "Unknown"}), ("Done becomes Planned", {"state": "Planned"})],
    ),
    *_entry(
        "done-unknown-and-denied-are-not-simply-left",
        "refund",
        [
            ("Unknown becomes Planned", {"state": "Planned"}),
            ("Unknown becomes Approved", {"state": "Approved"}),
            ("Unknown becomes AwaitingApproval", {"state": "AwaitingApproval"}),
            ("Unknown becomes Denied", {"state": "Denied"}),
        ],
    ),
    *_entry(
        "done-unknown-and-denied-are-not-simply-left",
        "wipe",
        [("Denied becomes Approved", {"state": "Approved"}), ("Denied is begun", {"state": "InFlight", "attempt": 1})],
    ),
    *_entry(
        "done-keeps-its-result",
        "lookup",
        [
            (f"{verb} the {field} of what is Done", {field: value})
            for field, other in (
                ("result", "{}"),
                ("resultRecord", "record-2"),
                ("resultDigest", OTHER_DIGEST),
                ("payloadDigest", OTHER_DIGEST),
            )
            for verb, value in (("change", other), ("remove", None))
        ],
    ),
    *_entry(
        "abandoned-is-never-taken-back",
        "notify",
        [("abandoned becomes false", {"abandoned": False}), ("remove abandoned", {"abandoned": None})],
    ),
    *_entry("answers-are-kept", "refund", [("no answers", {"answers": []}), ("remove answers", {"answers": None})]),
]

BAD_WRITES = [*IMMUTABLE, *PLAN, *DECISIONS, *STATUS, *ENTRIES]

# What the schema itself refuses, by the field that the refusal names.
_NO_SPEC: Document = {"template": {}}
_BAD_POD = {"containers": [CONTAINER | {"resources": {"limits": {"memory": "lots"}}}]}
BAD_MANIFESTS: list[tuple[str, Document, str]] = [
    ("an unknown action", _steps(action="Refund"), "spec.plan.steps[1].action"),
    ("an unknown recovery", _steps(recovery="Retry"), "spec.plan.steps[1].recovery"),
    ("a step id of 64 characters", _steps(id="a" * 64), "spec.plan.steps[1].id"),
    ("a step id with a capital", _steps(id="Pay"), "spec.plan.steps[1].id"),
    ("257 steps", {"plan": {"steps": [{"id": f"s{number}"} for number in range(257)]}}, "spec.plan.steps"),
    ("a plan without steps", {"plan": {"steps": []}}, "spec.plan.steps"),
    ("a time-out of 0", _steps(timeoutSeconds=0), "spec.plan.steps[1].timeoutSeconds"),
    ("a run id with a space", {"runID": "a b"}, "spec.runID"),
    ("a run id of 64 characters", {"runID": "a" * 64}, "spec.runID"),
    ("a template without a pod", _NO_SPEC, "spec.template.spec"),
    ("a pod without containers", {"template": {"spec": {}}}, "spec.template.spec.containers"),
    ("a pod with no container in it", {"template": {"spec": {"containers": []}}}, "spec.template.spec.containers"),
    ("a container without image", {"template": {"spec": {"containers": [{"name": "agent"}]}}}, "spec.template.spec.containers[0].image"),
    ("two containers of one name", {"template": {"spec": {"containers": [CONTAINER, CONTAINER]}}}, "spec.template.spec.containers[1]"),
    ("a quantity that is none", {"template": {"spec": _BAD_POD}}, "spec.template.spec.containers[0].resources.limits.memory"),
    (
        "a restart policy that Jobs of ours cannot have",
        {"template": {"spec": {"containers": [CONTAINER], "restartPolicy": "Always"}}},
        "spec.template.spec.restartPolicy",
    ),
    ("a negative backoffLimit", {"backoffLimit": -1}, "spec.backoffLimit"),
]
# Fields that nobody knows; the API server names them in its message.
UNKNOWN_FIELDS: list[tuple[str, Document, str]] = [
    (
        "a typo in the template",
        {"template": {"spec": {"containers": [CONTAINER | {"imagePullPolice": "Always"}]}}},
        "spec.template.spec.containers[0].imagePullPolice",
    ),
    ("a typo in a step", _steps(timeoutSecond=5), "spec.plan.steps[1].timeoutSecond"),
    ("a field that does not act yet", {"ttlSecondsAfterFinished": 5}, "spec.ttlSecondsAfterFinished"),
]
