"""The definition of AgentRunRecord: bodies too large for the run itself, and identities that are spent."""

from collections.abc import Collection

from tools.generate_crds import fields
from tools.generate_crds.agentruns import attach, column, definition, root
from tools.generate_crds.fields import Schema
from tools.generate_crds.rules import RECORD_RULES

RECORD_LENGTH = 256 * 1024
_ABOUT = (
    "A payload or result too large for its run, or an identity that a run has spent. Written once, by the operator alone. "
    "An identity has no owner: it outlives its run, so that no other run begins under the same identity."
)


def _spec() -> Schema:
    record = {
        "type": fields.choice("What it holds.", ["Payload", "Result", "Identity"]),
        "run": fields.text("Name of the run.", 63, minimum=1),
        "runUID": fields.uid("the run"),
        "digest": fields.digest("`data`"),
        "bytes": fields.integer("Size of `data` in bytes.", 0, RECORD_LENGTH),
        "data": fields.text("Canonical JSON, at most 256 KiB.", RECORD_LENGTH),
        "runID": fields.text("Identity: the full identity that is spent.", 253, minimum=1),
    }
    return fields.record("The record.", record, required=["type", "run", "runUID"])


def agentrunrecords(*, without: Collection[str] = ()) -> Schema:
    """The definition, without the named rules if any."""
    schema = root(_ABOUT, {"spec": _spec()})
    attach(schema, (rule for rule in RECORD_RULES if rule.name not in without))
    names: Schema = {
        "kind": "AgentRunRecord",
        "listKind": "AgentRunRecordList",
        "plural": "agentrunrecords",
        "singular": "agentrunrecord",
        "shortNames": ["arec"],
    }
    columns = [
        column("Type", "string", ".spec.type", "What it holds."),
        column("Run", "string", ".spec.run", "Name of the run."),
        column("Bytes", "integer", ".spec.bytes", "Size in bytes."),
        column("Age", "date", ".metadata.creationTimestamp", "Since when the object exists."),
    ]
    return definition(names, {"additionalPrinterColumns": columns, "schema": {"openAPIV3Schema": schema}})
