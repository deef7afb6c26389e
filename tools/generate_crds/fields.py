"""Builders of structural schemas. Each makes one field with its description and its bound; nothing is left unbounded."""

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

MAX_INTEGER = 2**53 - 1  # the largest that every JSON reader keeps exactly
MAX_STEPS = 256
MAX_SECONDS = 31_536_000  # a year
REASON_LENGTH = 128
MESSAGE_LENGTH = 1024
INLINE_LENGTH = 1024  # bodies kept inside the run; in characters here, in bytes where they are written
QUESTION_KEY_LENGTH = 96

STEP_ID = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DIGEST = r"^sha256:[0-9a-f]{64}$"
IDEMPOTENCY_KEY = r"^sf1[0-9a-f]{37}$"
REQUEST_ID = r"^[A-Za-z0-9_-]+$"
QUESTION_ID = r"^[a-z0-9]+$"

ACTIONS = ("Read", "Upsert", "Create", "Payment", "Delete")
RECOVERIES = ("Rerun", "Probe", "Halt", "ResendWithKey")
STATES = ("Planned", "AwaitingApproval", "Approved", "InFlight", "Done", "Failed", "Unknown", "Denied")
OUTCOMES = ("Succeeded", "Failed", "Cancelled")
VERDICTS = ("Approve", "Deny", "Happened", "DidNotHappen", "Abandon", "Resume")
PLAN_SOURCES = ("Spec", "Worker")
PHASES = (
    "Pending",
    "Scheduled",
    "Running",
    "Draining",
    "AwaitingApproval",
    "NeedsReconciliation",
    "Held",
    "Cancelling",
    *OUTCOMES,
)


def text(description: str, maximum: int, *, minimum: int = 0, pattern: str = "") -> Schema:
    """A string of at most `maximum` characters."""
    bounds: Schema = {"maxLength": maximum}
    if minimum:
        bounds["minLength"] = minimum
    if pattern:
        bounds["pattern"] = pattern
    return {"description": description, "type": "string", **bounds}


def choice(description: str, values: Sequence[str]) -> Schema:
    """One of some words."""
    return {"description": description, "type": "string", "enum": list(values)}


def integer(description: str, minimum: int = 0, maximum: int = MAX_INTEGER) -> Schema:
    """A whole number."""
    return {"description": description, "type": "integer", "format": "int64", "minimum": minimum, "maximum": maximum}


def flag(description: str) -> Schema:
    """True or false; absent is false."""
    return {"description": description, "type": "boolean"}


def time(description: str) -> Schema:
    """A point in time (RFC 3339)."""
    return {"description": description, "type": "string", "format": "date-time", "maxLength": 32}


def step_id(description: str) -> Schema:
    """The id of a step."""
    return text(description, 63, minimum=1, pattern=STEP_ID)


def digest(of: str) -> Schema:
    """A sha256 digest."""
    return text(f"`sha256:` and 64 hex digits: the digest of {of}.", 71, pattern=DIGEST)


def reason(description: str) -> Schema:
    """A CamelCase word for programs."""
    return text(description, REASON_LENGTH)


def message(description: str) -> Schema:
    """A sentence for people."""
    return text(description, MESSAGE_LENGTH)


def uid(of: str) -> Schema:
    """A Kubernetes uid."""
    return text(f"uid of {of}.", 64)


def record(description: str, fields: Mapping[str, Schema], *, required: Sequence[str] = ()) -> Schema:
    """An object with known fields."""
    needs: Schema = {"required": list(required)} if required else {}
    return {"description": description, "type": "object", **needs, "properties": dict(fields)}


def listing(description: str, items: Schema, maximum: int, *, minimum: int = 0) -> Schema:
    """A list that is written as a whole: one keyed by its items would cost kilobytes of managed fields on each write."""
    least: Schema = {"minItems": minimum} if minimum else {}
    kind: Schema = {"x-kubernetes-list-type": "atomic"}
    return {"description": description, "type": "array", "maxItems": maximum, **least, **kind, "items": items}


def mapping(description: str, values: Schema, maximum: int, *, atomic: bool) -> Schema:
    """A map from names to values; an atomic one is written as a whole."""
    kind: Schema = {"x-kubernetes-map-type": "atomic"} if atomic else {}
    shape: Schema = {"type": "object", "maxProperties": maximum, **kind, "additionalProperties": values}
    return {"description": description, **shape}


def free(description: str, maximum: int) -> Schema:
    """A JSON object of any shape with at most `maximum` members at its top. Its size in bytes cannot be bounded here."""
    kind: Schema = {"x-kubernetes-map-type": "atomic", "x-kubernetes-preserve-unknown-fields": True}
    return {"description": description, "type": "object", "maxProperties": maximum, **kind}
