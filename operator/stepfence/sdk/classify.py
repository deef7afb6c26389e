"""What an exception of a client library says about the request: surely not applied, or nobody can tell.

A classifier returns `NotApplied` when the provider surely did nothing, None when it cannot say so. Refused connections, unknown hosts and
connect time-outs are not applied; read time-outs, broken connections, protocol errors and 5xx are not told.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from stepfence.sdk.errors import NotApplied

__all__ = ["DEFAULT_CLASSIFIERS", "Classifier", "classify", "classify_httpx", "classify_os", "classify_requests", "raise_for_status"]

Classifier = Callable[[BaseException], NotApplied | None]

# Answers that say "I did nothing". Left out on purpose: 408 (nobody can tell), 409 (often: the same key is being worked on).
NOT_APPLIED_STATUS = frozenset(
    {400, 401, 402, 403, 404, 405, 406, 407, 410, 411, 412, 413, 414, 415, 416, 417, 421, 422, 423, 426, 428, 429, 431, 451}
)
# A redirect may have turned a POST that was applied into a GET, and that GET failed to connect.
_MAY_FOLLOW_A_POST = frozenset({"GET", "HEAD"})


def classify(error: BaseException, classifiers: Sequence[Classifier]) -> NotApplied | None:
    """Ask the classifiers in order; the first that says "not applied" counts. `NotApplied` itself is its own answer."""
    if isinstance(error, NotApplied):
        return error
    for classifier in classifiers:
        verdict = classifier(error)
        if verdict is not None:
            return verdict
    return None


def classify_httpx(error: BaseException) -> NotApplied | None:
    """Classify exceptions of httpx."""
    if isinstance(error, httpx.HTTPStatusError):
        return _by_status(error.response.status_code, error.response.headers.get("retry-after"))
    if isinstance(error, httpx.PoolTimeout | httpx.UnsupportedProtocol | httpx.InvalidURL):
        return _not_applied(error)
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return None if _method(error) in _MAY_FOLLOW_A_POST else _not_applied(error)
    return None


def classify_requests(error: BaseException) -> NotApplied | None:
    """Classify exceptions of requests. It is not imported here: without it there is nothing to classify."""
    requests = sys.modules.get("requests")
    if requests is None or not isinstance(error, requests.RequestException):
        return None
    kinds = requests.exceptions
    if isinstance(error, kinds.HTTPError):
        response = error.response
        return None if response is None else _by_status(response.status_code, response.headers.get("Retry-After"))
    if isinstance(error, kinds.InvalidURL | kinds.MissingSchema | kinds.InvalidSchema):
        return _not_applied(error)
    refused = isinstance(error, kinds.ConnectTimeout) or _never_connected(error)
    return _not_applied(error) if refused and _method(error) not in _MAY_FOLLOW_A_POST else None


def classify_os(error: BaseException) -> NotApplied | None:
    """Classify bare socket errors: a refused connection or an unknown host."""
    return _not_applied(error) if isinstance(error, ConnectionRefusedError | socket.gaierror) else None


DEFAULT_CLASSIFIERS: tuple[Classifier, ...] = (classify_httpx, classify_requests, classify_os)


def raise_for_status(response: Any) -> None:
    """Raise `NotApplied` for an httpx or requests answer that applied nothing, else what its own `raise_for_status` raises.

    It speaks of the request of this answer: do not use it on a second request of the same step when the first was applied.
    """
    verdict = _by_status(response.status_code, response.headers.get("retry-after"))
    if verdict is not None:
        raise verdict
    response.raise_for_status()


def _by_status(status: int, retry_after: str | None) -> NotApplied | None:
    if status not in NOT_APPLIED_STATUS:
        return None
    return NotApplied(f"HTTP {status}", retry_after=_seconds(retry_after), reason=f"HTTP{status}")


def _seconds(value: str | None) -> float | None:
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def _not_applied(error: BaseException) -> NotApplied:
    return NotApplied(str(error), reason=type(error).__name__)


def _method(error: Any) -> str:
    try:
        request = error.request
    except RuntimeError:
        return ""
    return str(getattr(request, "method", "") or "").upper()


def _never_connected(error: BaseException) -> bool:
    """Whether urllib3 says that no connection came to be (refused, or the host is unknown)."""
    urllib3 = sys.modules.get("urllib3")
    reason = getattr(error.args[0], "reason", error.args[0]) if error.args else None
    return urllib3 is not None and isinstance(reason, urllib3.exceptions.NewConnectionError)
