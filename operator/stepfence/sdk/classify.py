"""What an exception of a client library says about its request: surely not applied, or nobody can tell.

A classifier returns `NotApplied` when the provider surely did nothing, None when it cannot say so. Refused connections, unknown hosts and
connect time-outs are not applied; read time-outs, broken connections, protocol errors and 5xx are not told.

The shipped classifiers speak of one request, the last one. The sending block believes them only when it saw that nothing else went out
(`outgoing`). A classifier of the program's own is believed unless what was seen contradicts it.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from stepfence.sdk.errors import NotApplied, pause_of
from stepfence.sdk.outgoing import never_sent

__all__ = ["DEFAULT_CLASSIFIERS", "Classifier", "classify", "classify_httpx", "classify_os", "classify_requests", "raise_for_status"]

Classifier = Callable[[BaseException], NotApplied | None]

# Answers that say "I did nothing". docs/design/0005 argues each, and says why 406, 408, 409, 413, 416, 424 and 425 are none.
NOT_APPLIED_STATUS = frozenset({400, 401, 402, 403, 404, 405, 407, 410, 411, 412, 414, 415, 417, 421, 422, 423, 426, 428, 429, 431, 451})


def classify(error: BaseException, classifiers: Sequence[Classifier]) -> NotApplied | None:
    """Ask the classifiers in order; the first that says "not applied" counts. `NotApplied` itself is its own answer."""
    if isinstance(error, NotApplied):
        return error
    for classifier in classifiers:
        verdict = classifier(error)
        if verdict is not None:
            if not isinstance(verdict, NotApplied):
                raise TypeError(f"a classifier must return NotApplied or None, not {type(verdict).__name__}")
            return verdict
    return None


def classify_httpx(error: BaseException) -> NotApplied | None:
    """Classify exceptions of httpx."""
    if isinstance(error, httpx.HTTPStatusError):
        return _by_status(error.response)
    refused = isinstance(error, httpx.PoolTimeout | httpx.UnsupportedProtocol | httpx.ConnectError | httpx.ConnectTimeout)
    return _of_one_request(error) if refused else None


def classify_requests(error: BaseException) -> NotApplied | None:
    """Classify exceptions of requests. It is not imported here: without it there is nothing to classify."""
    requests = sys.modules.get("requests")
    if requests is None or not isinstance(error, requests.RequestException):
        return None
    kinds = requests.exceptions
    if isinstance(error, kinds.HTTPError):
        return None if error.response is None else _by_status(error.response)
    cause = error.args[0] if error.args else None
    refused = isinstance(error, kinds.ConnectTimeout) or (isinstance(cause, BaseException) and never_sent(cause))
    return _of_one_request(error) if refused else None


def classify_os(error: BaseException) -> NotApplied | None:
    """Classify bare socket errors: a refused connection or an unknown host. Not among the defaults: sockets are not seen.

    It is for functions that open one connection in a block: `connect(classifiers=[*stepfence.DEFAULT_CLASSIFIERS, stepfence.classify_os])`
    says that yours do.
    """
    known = isinstance(error, ConnectionRefusedError | socket.gaierror)
    return NotApplied(str(error), reason=type(error).__name__) if known else None


DEFAULT_CLASSIFIERS: tuple[Classifier, ...] = (classify_httpx, classify_requests)


def raise_for_status(response: Any) -> None:
    """Raise `NotApplied` for an httpx or requests answer that applied nothing, else what its own `raise_for_status` raises.

    It speaks of the one request of this answer. So it is believed when that was the only request of the step's only sending block, inside
    the block or after it; otherwise, and after a redirect, the step is in doubt.
    """
    verdict = _by_status(response)
    if verdict is not None:
        raise verdict
    response.raise_for_status()


def _by_status(response: Any) -> NotApplied | None:
    # A redirect: the answer is that of another request, and the first one may have been applied (303).
    if response.status_code not in NOT_APPLIED_STATUS or getattr(response, "history", None):
        return None
    verdict = NotApplied(
        f"HTTP {response.status_code}",
        retry_after=_seconds(response.headers.get("retry-after")),
        reason=f"HTTP{response.status_code}",
    )
    verdict.of_one_request, verdict.status = True, response.status_code
    return verdict


def _seconds(value: str | None) -> float | None:
    """Read a `Retry-After`: seconds or a date, of any size; None for what is neither."""
    if not value:
        return None
    seconds = pause_of(value)
    if seconds is not None:
        return seconds
    try:
        when = parsedate_to_datetime(value)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return pause_of(when - datetime.now(UTC))
    except (ValueError, TypeError, OverflowError, IndexError):  # what it raises depends on how the date is wrong
        return None


def _of_one_request(error: BaseException) -> NotApplied:
    verdict = NotApplied(str(error), reason=type(error).__name__)
    verdict.of_one_request = True
    return verdict
