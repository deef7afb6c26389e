"""The rules that the API server itself enforces, whoever writes.

A rule stands on the parent of what it guards: a rule on a field does not run when the field is removed. All rules run on each
write of the status, those of the spec too, so each is linear in the number of steps, and what is immutable is checked once,
when it is created. Two-variable comprehensions need Kubernetes 1.33.
"""

from dataclasses import dataclass

from tools.generate_crds.fields import Schema
from tools.generate_crds.steps import DEFAULT_TIMEOUT_SECONDS

FORBIDDEN = "FieldValueForbidden"
INVALID = "FieldValueInvalid"


@dataclass(frozen=True)
class Rule:
    """One rule: `at` is the path of the schema that it stands on, `*` for the values of a map."""

    name: str
    at: tuple[str, ...]
    rule: str
    message: str
    reason: str = FORBIDDEN
    field_path: str = ""
    message_expression: str = ""
    on_create: bool = False

    def validation(self) -> Schema:
        """The rule as it stands in the definition."""
        entry: Schema = {"rule": self.rule, "message": self.message, "reason": self.reason}
        if self.message_expression:
            entry["messageExpression"] = self.message_expression
        if self.field_path:
            entry["fieldPath"] = self.field_path
        if self.on_create:
            entry["optionalOldSelf"] = True
        return entry


def _immutable(field: str) -> Rule:
    rule = f"self.?{field} == oldSelf.?{field}"
    return Rule(f"spec.{field}-is-immutable", ("spec",), rule, f"{field} is immutable", field_path=f".{field}")


def _step_rule(name: str, wrong: str, sentence: str) -> Rule:
    """A rule over all planned steps that names those for which `wrong` holds. Checked on creation: the plan is immutable."""
    return Rule(
        name,
        ("spec", "plan"),
        f"oldSelf.hasValue() || !self.steps.exists(s, {wrong})",
        sentence,
        reason=INVALID,
        field_path=".steps",
        message_expression=f"'{sentence}: ' + self.steps.filter(s, {wrong}).map(s, s.id).join(', ')",
        on_create=True,
    )


def _kept(field: str, comparison: str, name: str, sentence: str) -> Rule:
    """A rule of the status: once set, a field is never removed, and the comparison of new and old value holds."""
    holds = f"has(self.{field})" + (f" && self.{field} {comparison} oldSelf.{field}" if comparison else "")
    rule = f"!has(oldSelf.{field}) || ({holds})"
    return Rule(name, ("status",), rule, sentence, field_path=f".{field}")


IMMUTABLE = ("runID", "input", "plan", "backoffLimit", "activeDeadlineSeconds", "workerHistoryLimit")

_OLD_KEY = "(has(oldSelf.spec.decisions) && k in oldSelf.spec.decisions)"
_ASKED = "has(self.status) && has(self.status.questions) && k in self.status.questions"
_KIND_FITS = (
    "(self.status.questions[k].kind == 'Approve' ? d.verdict in ['Approve', 'Deny'] : "
    "self.status.questions[k].kind == 'Hold' ? d.verdict in ['Resume', 'Abandon'] : "
    "d.verdict in ['Happened', 'DidNotHappen', 'Abandon'])"
)
_COUNTS = (
    "d.verdict != 'DidNotHappen' || (has(d.force) && d.force) || "
    "(has(self.status.questions[k].acceptsDidNotHappen) && self.status.questions[k].acceptsDidNotHappen)"
)


def _new_decisions(name: str, holds: str, sentence: str) -> Rule:
    rule = f"!has(self.spec.decisions) || self.spec.decisions.all(k, d, {_OLD_KEY} || {holds})"
    return Rule(name, (), rule, sentence, reason=INVALID, field_path=".spec.decisions")


DECISIONS = (
    Rule(
        "a-run-is-not-created-with-decisions",
        (),
        "oldSelf.hasValue() || !has(self.spec.decisions) || self.spec.decisions.size() == 0",
        "a run cannot be created with decisions: nothing is open yet",
        field_path=".spec.decisions",
        on_create=True,
    ),
    _new_decisions(
        "a-new-decision-answers-an-open-question",
        f"({_ASKED})",
        "a new decision must answer an open question, under its exact key: see status.questions",
    ),
    _new_decisions(
        "a-verdict-fits-its-question",
        f"!({_ASKED}) || {_KIND_FITS}",
        "the verdict does not fit the question: Approve or Deny for kind Approve; Happened, DidNotHappen or Abandon for kind "
        "Reconcile; Resume or Abandon for kind Hold",
    ),
    _new_decisions(
        "did-not-happen-counts-only-when-it-can-be-known",
        f"!({_ASKED}) || {_COUNTS}",
        "DidNotHappen does not count yet: a request of an old attempt may still arrive. Answer it again when the question says "
        "acceptsDidNotHappen, or add force: true",
    ),
    Rule(
        "a-decision-is-written-once",
        ("spec",),
        "!has(oldSelf.decisions) || !has(self.decisions) || oldSelf.decisions.all(k, d, !(k in self.decisions) || self.decisions[k] == d)",
        "a decision is written once: answer the open question under its own key",
        field_path=".decisions",
    ),
    Rule(
        "a-result-comes-with-happened",
        ("spec", "decisions", "*"),
        "!has(self.result) || self.verdict == 'Happened'",
        "result goes with the verdict Happened alone",
        reason=INVALID,
        field_path=".result",
    ),
    Rule(
        "force-comes-with-did-not-happen",
        ("spec", "decisions", "*"),
        "!has(self.force) || !self.force || self.verdict == 'DidNotHappen'",
        "force goes with the verdict DidNotHappen alone",
        reason=INVALID,
        field_path=".force",
    ),
)

_RESENDS = "has(s.recovery) && s.recovery == 'ResendWithKey'"

PLAN = (
    Rule(
        "step-ids-are-unique",
        ("spec", "plan"),
        "oldSelf.hasValue() || self.steps.transformMapEntry(i, s, {s.id: i}).size() == self.steps.size()",
        "step ids must be unique",
        reason="FieldValueDuplicate",
        field_path=".steps",
        on_create=True,
    ),
    _step_rule("the-step-id-run-is-reserved", "s.id == 'run'", "the step id run is reserved for questions about the run"),
    _step_rule(
        "resend-needs-the-life-of-the-key",
        f"{_RESENDS} && !has(s.idempotencyKeyTTLSeconds)",
        "recovery ResendWithKey needs idempotencyKeyTTLSeconds, how long the provider honours a key; steps",
    ),
    _step_rule(
        "the-key-outlives-an-attempt",
        f"{_RESENDS} && has(s.idempotencyKeyTTLSeconds) && s.idempotencyKeyTTLSeconds <= "
        f"(has(s.timeoutSeconds) ? s.timeoutSeconds : {DEFAULT_TIMEOUT_SECONDS})",
        "with recovery ResendWithKey, idempotencyKeyTTLSeconds must be longer than timeoutSeconds (default "
        f"{DEFAULT_TIMEOUT_SECONDS}), or nothing can be sent again in time; steps",
    ),
    _step_rule(
        "recovery-probe-needs-a-probe",
        "has(s.recovery) && s.recovery == 'Probe' && !has(s.probe)",
        "recovery Probe needs probe (probe: {} will do); steps",
    ),
    _step_rule(
        "a-probe-needs-recovery-probe",
        "has(s.probe) && has(s.recovery) && s.recovery != 'Probe'",
        "a step with probe has recovery Probe: leave recovery out, or leave probe out; steps",
    ),
)

STATUS = (
    _kept("fencingToken", ">=", "the-fencing-token-only-grows", "fencingToken never shrinks (I8)"),
    _kept("version", ">=", "the-version-only-grows", "version never shrinks (I8)"),
    _kept("runID", "==", "the-run-id-never-changes", "runID never changes (I11)"),
    _kept("cancelRequestedAt", "==", "a-cancel-is-never-forgotten", "cancelRequestedAt, once set, never changes"),
    _kept("outcome", "==", "an-outcome-is-final", "an outcome is final (I8)"),
    _kept("plan", "", "the-plan-is-never-removed", "the plan is never removed (I6)"),
    _kept("ledger", "", "the-ledger-is-never-removed", "the ledger is never removed (I5)"),
    Rule(
        "answers-to-holds-are-kept",
        ("status",),
        "!has(oldSelf.holdAnswers) || (has(self.holdAnswers) && self.holdAnswers.size() >= oldSelf.holdAnswers.size())",
        "recorded answers are kept (I10)",
        field_path=".holdAnswers",
    ),
    Rule(
        "a-terminal-run-has-nothing-in-flight",
        ("status",),
        "!has(self.outcome) || !has(self.ledger) || self.ledger.all(k, e, e.state != 'InFlight')",
        "a run with an outcome has nothing in flight (I8)",
        reason=INVALID,
        field_path=".ledger",
    ),
    Rule(
        "a-terminal-run-learns-only-that-a-step-is-done",
        ("status",),
        "!has(oldSelf.outcome) || !has(self.ledger) || (has(oldSelf.ledger) && self.ledger.all(k, e, k in oldSelf.ledger && "
        "(e.state == oldSelf.ledger[k].state || "
        "(e.state == 'Done' && oldSelf.ledger[k].state in ['Unknown', 'Failed']))))",
        "a terminal run begins nothing: an entry may only go from Unknown or Failed to Done (I8)",
        field_path=".ledger",
    ),
    Rule(
        "no-entry-is-newer-than-the-fencing-token",
        ("status",),
        "!has(self.ledger) || self.ledger.all(k, e, e.token <= (has(self.fencingToken) ? self.fencingToken : 0))",
        "no entry has a token above fencingToken (I2)",
        reason=INVALID,
        field_path=".ledger",
    ),
    Rule(
        "the-plan-grows-at-its-end-only",
        ("status", "plan"),
        "self.steps.size() >= oldSelf.steps.size() && oldSelf.steps.all(i, s, self.steps[i] == s)",
        "the plan only grows, and only at its end (I6)",
        field_path=".steps",
    ),
    Rule(
        "a-ledger-entry-is-never-removed",
        ("status", "ledger"),
        "oldSelf.all(k, k in self)",
        "a ledger entry is never removed (I5)",
    ),
)

_DONE_KEEPS = ("payloadDigest", "result", "resultRecord", "resultDigest", "resultBytes", "finishedAt")


def _entry(name: str, rule: str, sentence: str, field_path: str) -> Rule:
    return Rule(name, ("status", "ledger", "*"), rule, sentence, field_path=field_path)


ENTRIES = (
    _entry("a-key-never-changes", "self.key == oldSelf.key", "key never changes (I7)", ".key"),
    _entry(
        "done-is-final",
        "oldSelf.state != 'Done' || (self.state == 'Done' && self.attempt == oldSelf.attempt && self.token == oldSelf.token && "
        + " && ".join(f"self.?{field} == oldSelf.?{field}" for field in _DONE_KEEPS)
        + ")",
        "a Done entry is final: its state, attempt, token, result and digests stay (I5)",
        ".state",
    ),
    _entry("attempts-only-grow", "self.attempt >= oldSelf.attempt", "attempt never shrinks (I8)", ".attempt"),
    _entry("an-entry-token-only-grows", "self.token >= oldSelf.token", "token never shrinks (I8)", ".token"),
    _entry(
        "unknown-is-never-simply-forgotten",
        "oldSelf.state != 'Unknown' || self.state in ['Unknown', 'Done', 'Failed', 'InFlight']",
        "an Unknown entry may only stay so or become Done, Failed or InFlight (I4)",
        ".state",
    ),
    _entry(
        "denied-stays-denied",
        "oldSelf.state != 'Denied' || self.state in ['Denied', 'Done']",
        "a Denied entry is never begun (I4)",
        ".state",
    ),
    _entry(
        "abandoned-is-never-taken-back",
        "!has(oldSelf.abandoned) || !oldSelf.abandoned || (has(self.abandoned) && self.abandoned)",
        "abandoned is never taken back",
        ".abandoned",
    ),
    _entry(
        "answers-are-kept",
        "!has(oldSelf.answers) || (has(self.answers) && self.answers.size() >= oldSelf.answers.size())",
        "recorded answers are kept (I10)",
        ".answers",
    ),
)

RULES = (*(_immutable(field) for field in IMMUTABLE), *PLAN, *DECISIONS, *STATUS, *ENTRIES)
RECORD_RULES = (
    Rule(
        "a-record-is-immutable",
        (),
        "self.spec == oldSelf.spec",
        "a record is written once",
        field_path=".spec",
    ),
    Rule(
        "a-body-has-data-digest-and-size",
        ("spec",),
        "self.type == 'Identity' || (has(self.data) && has(self.digest) && has(self.bytes))",
        "records of type Payload and Result need data, digest and bytes",
        reason="FieldValueRequired",
    ),
    Rule(
        "run-id-belongs-to-identity",
        ("spec",),
        "(self.type == 'Identity') == has(self.runID)",
        "runID is required for type Identity and goes with it alone",
        reason=INVALID,
        field_path=".runID",
    ),
)
