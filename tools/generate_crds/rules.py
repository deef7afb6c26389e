"""The rules that the API server itself enforces, whoever writes.

A rule stands on the parent of what it guards: a rule on a field does not run when the field is removed. A removed status needs
no rule of its own: the API server puts the default in its place, and the rules on the status see what is missing. All rules run
on each write of the status, those of the spec too, so each is linear in the number of steps. Two-variable comprehensions need
Kubernetes 1.33.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tools.generate_crds.fields import Schema
from tools.generate_crds.steps import DEFAULT_TIMEOUT_SECONDS

FORBIDDEN = "FieldValueForbidden"
INVALID = "FieldValueInvalid"


@dataclass(frozen=True)
class Rule:
    """One rule: `at` is the path of the schema that it stands on, `*` for the values of a map, `[]` for the items of a list."""

    name: str
    at: tuple[str, ...]
    rule: str
    message: str
    reason: str = FORBIDDEN
    field_path: str = ""
    on_create: bool = False

    def validation(self) -> Schema:
        """The rule as it stands in the definition."""
        entry: Schema = {"rule": self.rule, "message": self.message, "reason": self.reason}
        if self.field_path:
            entry["fieldPath"] = self.field_path
        if self.on_create:
            entry["optionalOldSelf"] = True
        return entry


def combined(rules: Sequence[Rule]) -> Schema:
    """Rules on one list item or map value as a single one, whose message says which of them is broken.

    Each program that the API server runs for each item costs; which rule is broken is asked only when one is.
    """
    holds = " && ".join(f"({rule.rule})" for rule in rules)
    *others, last = rules
    sentence = "".join(f"!({rule.rule}) ? {_quoted(rule.message)} : " for rule in others) + _quoted(last.message)
    messages: Schema = {"message": " / ".join(rule.message for rule in rules), "messageExpression": sentence}
    return {"rule": holds, **messages, "reason": rules[0].reason}


def _quoted(sentence: str) -> str:
    return "'" + sentence.replace("'", r"\'") + "'"


def _same(field: str) -> str:
    """The field is as it was, or as absent. (Optional chaining would say it shorter, but has no bounded cost.)"""
    return f"(has(oldSelf.{field}) ? has(self.{field}) && self.{field} == oldSelf.{field} : !has(self.{field}))"


def _immutable(field: str) -> Rule:
    return Rule(f"spec.{field}-is-immutable", ("spec",), _same(field), f"{field} is immutable", field_path=f".{field}")


def _step(name: str, rule: str, sentence: str) -> Rule:
    """A rule on each planned step: the refusal names the step by its place."""
    return Rule(name, ("spec", "plan", "steps", "[]"), rule, sentence, reason=INVALID)


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
    ),
    Rule(
        "force-comes-with-did-not-happen",
        ("spec", "decisions", "*"),
        "!has(self.force) || !self.force || self.verdict == 'DidNotHappen'",
        "force goes with the verdict DidNotHappen alone",
        reason=INVALID,
    ),
)

_RESENDS = "has(self.recovery) && self.recovery == 'ResendWithKey'"

PLAN = (
    # Checked on creation alone, for the plan is immutable. A duplicate id makes the evaluation fail, which refuses it by name.
    Rule(
        "step-ids-are-unique",
        ("spec", "plan", "steps"),
        "oldSelf.hasValue() || self.transformMapEntry(i, s, {s.id: i}).size() == self.size()",
        "step ids must be unique",
        reason=INVALID,
        on_create=True,
    ),
    _step(
        "the-step-id-run-is-reserved",
        "self.id != 'run'",
        "the step id run is reserved for questions about the run",
    ),
    _step(
        "resend-needs-the-life-of-the-key",
        f"!({_RESENDS}) || has(self.idempotencyKeyTTLSeconds)",
        "recovery ResendWithKey needs idempotencyKeyTTLSeconds: how long the provider honours a key",
    ),
    _step(
        "the-key-outlives-an-attempt",
        f"!({_RESENDS} && has(self.idempotencyKeyTTLSeconds)) || self.idempotencyKeyTTLSeconds > "
        f"(has(self.timeoutSeconds) ? self.timeoutSeconds : {DEFAULT_TIMEOUT_SECONDS})",
        "with recovery ResendWithKey, idempotencyKeyTTLSeconds must be longer than timeoutSeconds (default "
        f"{DEFAULT_TIMEOUT_SECONDS}): else nothing can be sent again in time",
    ),
    _step(
        "recovery-probe-needs-a-probe",
        "!has(self.recovery) || self.recovery != 'Probe' || has(self.probe)",
        "recovery Probe needs probe (an empty one will do)",
    ),
    _step(
        "a-probe-needs-recovery-probe",
        "!has(self.probe) || !has(self.recovery) || self.recovery == 'Probe'",
        "a step with probe has recovery Probe: leave out one of the two",
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
        "(e.state == 'Done' && oldSelf.ledger[k].attempt > 0))))",
        "a terminal run begins nothing: an entry may only become Done, and only if an attempt of it began before (I8)",
        field_path=".ledger",
    ),
    Rule(
        "no-entry-is-newer-than-the-fencing-token",
        ("status",),
        # The list of one binds the token, so that it is looked up once.
        "!has(self.ledger) || [self.?fencingToken.orValue(0)].all(t, self.ledger.all(k, e, e.token <= t))",
        "no entry has a token above fencingToken (I2)",
        reason=INVALID,
        field_path=".ledger",
    ),
    Rule(
        "the-plan-grows-at-its-end-only",
        ("status", "plan"),
        "self.steps == oldSelf.steps || (self.steps.size() >= oldSelf.steps.size() && oldSelf.steps.all(i, s, self.steps[i] == s))",
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

_DONE_KEEPS = ("payloadDigest", "result", "resultRecord", "resultDigest")


def _entry(name: str, rule: str, sentence: str) -> Rule:
    return Rule(name, ("status", "ledger", "*"), rule, sentence)


# Each look at a field of an entry costs as much as the entry has fields in the schema, so these look at few.
ENTRIES = (
    _entry("a-key-never-changes", "self.key == oldSelf.key", "key never changes (I7)"),
    _entry(
        "attempts-only-grow",
        "self.attempt == oldSelf.attempt || (self.attempt > oldSelf.attempt && oldSelf.state != 'Done')",
        "attempt never shrinks, and stays in a Done entry (I5, I8)",
    ),
    _entry(
        "an-entry-token-only-grows",
        "self.token == oldSelf.token || (self.token > oldSelf.token && oldSelf.state != 'Done')",
        "token never shrinks, and stays in a Done entry (I5, I8)",
    ),
    _entry(
        "done-unknown-and-denied-are-not-simply-left",
        "self.state == oldSelf.state || !(oldSelf.state in ['Done', 'Unknown', 'Denied']) || "
        "(oldSelf.state == 'Unknown' && self.state in ['Done', 'Failed', 'InFlight']) || "
        "(oldSelf.state == 'Denied' && self.state == 'Done')",
        "Done is final; Unknown may only become Done, Failed or InFlight; Denied is never begun (I4, I5)",
    ),
    _entry(
        "done-keeps-its-result",
        "oldSelf.state != 'Done' || (" + " && ".join(_same(field) for field in _DONE_KEEPS) + ")",
        "the result and the digests of a Done entry never change (I5)",
    ),
    _entry(
        "abandoned-is-never-taken-back",
        "!oldSelf.?abandoned.orValue(false) || self.?abandoned.orValue(false)",
        "abandoned is never taken back",
    ),
    _entry(
        "answers-are-kept",
        "!has(oldSelf.answers) || (has(self.answers) && self.answers.size() >= oldSelf.answers.size())",
        "recorded answers are kept (I10)",
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
