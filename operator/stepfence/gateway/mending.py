"""Reading what a worker reports as far as it can be read: what happened must not be lost for the form in which it is told.

Each function returns what a field says, or what counts instead where it says nothing of use. The log names the field, never its value.
"""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from typing import Any

import structlog

from stepfence.core import nesting
from stepfence.core.kept import CUT, DEEPEST, not_kept

__all__ = [
    "LONGEST_PAUSE",
    "MESSAGE_CHARACTERS",
    "NO_REASON",
    "PROOF_CHARACTERS",
    "REASON_CHARACTERS",
    "as_digest",
    "as_flag",
    "as_message",
    "as_pause",
    "as_proof",
    "as_reason",
    "as_request_id",
    "as_size",
    "as_time",
    "as_whole",
    "cut",
    "mended",
    "parse_report",
]

log = structlog.get_logger(__name__)

LONGEST_PAUSE = 86_400.0
REASON_CHARACTERS = 128
MESSAGE_CHARACTERS = 1024
PROOF_CHARACTERS = 1024
NO_REASON = "Unspecified"
_LARGEST = 2**53 - 1
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DIGITS = re.compile(r"[0-9]{1,16}")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def mended(field: str) -> None:
    """Leave word that a field was read otherwise than it stood there."""
    log.warning("gateway.report.mended", field=field)


def cut(said: str, limit: int) -> str:
    """Cut a text, and make one of what is none: half a surrogate pair, as in names of files that are no UTF-8."""
    return said.encode(errors="replace").decode()[:limit]


def as_reason(value: Any) -> str:
    """Return a word: numbers are one too."""
    if isinstance(value, str) and value:
        return cut(value, REASON_CHARACTERS)
    mended("reason")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return cut(json.dumps(value), REASON_CHARACTERS)
    return NO_REASON


def as_message(value: Any) -> str:
    """Return a text: what is none is written as JSON."""
    if isinstance(value, str):
        return cut(value, MESSAGE_CHARACTERS)
    mended("message")
    return "" if value is None else cut(json.dumps(value, ensure_ascii=False), MESSAGE_CHARACTERS)


def as_flag(value: Any, field: str) -> bool:
    """Return whether something is said to be so; what says nothing clear says no."""
    if isinstance(value, bool):
        return value
    mended(field)
    return value == 1 or (isinstance(value, str) and value.strip().lower() == "true")


def as_pause(value: Any) -> float | None:
    """Return a pause in seconds that can be waited for: none asked for, or between nothing and a day."""
    if value is None:
        return None
    seconds = _number(value)
    if isinstance(value, str) or seconds is None or not 0 <= seconds <= LONGEST_PAUSE:
        mended("retryAfterSeconds")
    return None if seconds is None or math.isnan(seconds) else min(max(0.0, seconds), LONGEST_PAUSE)


def as_whole(value: Any, field: str) -> Any:
    """Return a whole number however it is written; anything else as it is, to be refused: which attempt it is about must be sure."""
    if isinstance(value, int):
        return value
    number = value if isinstance(value, float) else float(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else None
    if number is None or not number.is_integer() or abs(number) > _LARGEST:
        return value
    mended(field)
    return int(number)


def as_size(value: Any) -> int | None:
    """Return a size in bytes; 0 for one that cannot be read, for that there was a result must not be lost."""
    number = as_whole(value, "resultBytes")
    if number is None or (isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= _LARGEST):
        return number
    mended("resultBytes")
    return 0


def as_request_id(value: Any) -> str:
    """Return the request's id; reports are known by their attempt, so none is needed."""
    if isinstance(value, str) and _REQUEST_ID.fullmatch(value):
        return value
    mended("requestID")
    return ""


def as_proof(value: Any) -> str | None:
    """Return a proof, None for what is none: it shows nothing, and a report needs none."""
    if value is None or (isinstance(value, str) and value.isascii() and len(value) <= PROOF_CHARACTERS):
        return value
    mended("tokenProof")
    return None


def as_time(value: Any) -> datetime | None:
    """Return a moment with its zone, None for what names none."""
    if value is None:
        return None
    try:
        when = datetime.fromisoformat(value)
        if when.utcoffset() is not None:
            return when
    except (TypeError, ValueError):
        pass
    mended("asOf")
    return None


def as_digest(value: Any) -> str | None:
    """Return a digest as they are recorded; an empty one for what is none, for that there was a result must not be lost."""
    if value is None or (isinstance(value, str) and _DIGEST.fullmatch(value)):
        return value
    mended("resultDigest")
    return ""


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if int(value) > 0 else -math.inf
    except ValueError:
        return None


def parse_report(body: bytes) -> Any:
    """Read the JSON of a report, also with control characters in its texts, bytes that are no UTF-8, numbers of any length and any depth.

    Raises `json.JSONDecodeError`.
    """
    try:
        return json.loads(body)
    except RecursionError:
        mended("body")
        return _shallow(body.decode(errors="replace"))
    except ValueError:
        read = _read(body.decode(errors="replace"))
        mended("body")
        return read


def _read(text: str) -> Any:
    return json.loads(text, strict=False, parse_int=_whole)


def _whole(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:  # more digits than Python reads
        return float(digits)


def _shallow(text: str) -> Any:
    """Read a report that nests deeper than Python reads: of its result what lies not too deep."""
    read = _read(nesting.cut(text, DEEPEST, lambda _: json.dumps(CUT)))
    if isinstance(read, dict) and "result" in read:
        read["result"] = not_kept(read["result"], "the result nests too deep")
    return read
