"""One call to the gateway: token and CA read again on each use, and an answer that is either JSON, a problem, or no answer."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import httpx
import structlog
from pydantic import JsonValue, ValidationError

from stepfence.core.errors import Code
from stepfence.sdk.outgoing import unheard
from stepfence.sdk.settings import Settings
from stepfence.sdk.wire import ProblemBody

__all__ = ["Problem", "Transport", "Unavailable"]

log = structlog.get_logger(__name__)

_LIMITS = httpx.Limits(max_connections=32, max_keepalive_connections=8, keepalive_expiry=60)
_CONNECT_SECONDS = 5.0
_READ_SECONDS = 30.0
# Refused before anything was written; the other codes to repeat leave it open.
_SURELY_NOT_APPLIED = frozenset({Code.OVER_BUDGET, Code.STORE_CONFLICT})
_REPEATED_STATUS = frozenset({408, 429})


class Unavailable(Exception):
    """No answer, or one that says: repeat. `sent`: the call may have taken effect all the same. `retry_after` in seconds."""

    def __init__(self, detail: str, *, sent: bool, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.sent = sent
        self.retry_after = retry_after


class Problem(Exception):
    """The gateway refused (RFC 9457). `foreign`: the answer is no gateway's, so that something in the way made it."""

    def __init__(self, body: ProblemBody, *, foreign: bool = False) -> None:
        super().__init__(f"{body.code}: {body.detail}")
        self.body = body
        self.foreign = foreign


class Transport:
    """HTTP to the gateway. `transport` replaces the network (tests); then no CA is loaded."""

    def __init__(self, settings: Settings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._settings = settings
        self._injected = transport
        self._client: httpx.AsyncClient | None = None
        self._ca_stamp: int | None = None
        self._retired: list[httpx.AsyncClient] = []

    async def send(self, method: str, path: str, body: Mapping[str, JsonValue] | None = None, *, limit: float = _READ_SECONDS) -> Any:
        """Make one call and return the JSON of a 2xx answer; raise `Problem` or `Unavailable`. `limit`: seconds to wait for the answer."""
        client = self._current()
        timeout = httpx.Timeout(min(limit, _READ_SECONDS), connect=min(limit, _CONNECT_SECONDS))
        headers = {"Authorization": f"Bearer {self._settings.bearer()}"}
        try:
            with unheard():
                answer = await client.request(method, self._settings.base_path + path, json=body, headers=headers, timeout=timeout)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            self._forget_if_tls(error)
            raise Unavailable(f"{type(error).__name__}: {error}", sent=False) from error
        except httpx.RequestError as error:
            raise Unavailable(f"{type(error).__name__}: {error}", sent=True) from error
        return _read(answer)

    async def aclose(self) -> None:
        """Close every connection."""
        clients = [*self._retired, *([self._client] if self._client else [])]
        self._retired, self._client = [], None
        for client in clients:
            await client.aclose()

    def _current(self) -> httpx.AsyncClient:
        stamp = self._stamp()
        if self._client is None or stamp != self._ca_stamp:
            self._retire()
            self._client, self._ca_stamp = self._build(), stamp
        return self._client

    def _build(self) -> httpx.AsyncClient:
        if self._injected is not None:
            return httpx.AsyncClient(base_url=self._settings.gateway, transport=self._injected)
        verify: ssl.SSLContext | bool = True
        if self._settings.ca_file is not None:
            verify = ssl.create_default_context(cafile=str(self._settings.ca_file))
        # trust_env off: a proxy set for the agent's own calls must not see the run's token.
        return httpx.AsyncClient(base_url=self._settings.gateway, verify=verify, limits=_LIMITS, trust_env=False)

    def _stamp(self) -> int | None:
        if self._injected is not None or self._settings.ca_file is None:
            return None
        try:
            return self._settings.ca_file.stat().st_mtime_ns
        except OSError:
            return self._ca_stamp

    def _retire(self) -> None:
        # Calls may still be on it, so it is closed at the end: a CA changes every few weeks.
        if self._client is not None:
            self._retired.append(self._client)
            self._client = None

    def _forget_if_tls(self, error: BaseException) -> None:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLError):
                log.warning("stepfence.tls", error=str(cause))
                return self._retire()
            cause = cause.__cause__ or cause.__context__
        return None


def _read(answer: httpx.Response) -> Any:
    if answer.is_success:
        try:
            return answer.json()
        except ValueError as error:
            raise Unavailable("a 2xx answer that is no JSON: not the gateway", sent=True) from error
    body = _problem(answer)
    if body is not None and body.code in _SURELY_NOT_APPLIED:
        raise Unavailable(f"{body.code}: {body.detail}", sent=False, retry_after=body.retry_after_seconds)
    if answer.status_code >= 500 or answer.status_code in _REPEATED_STATUS:
        detail = f"{body.code}: {body.detail}" if body else f"HTTP {answer.status_code}"
        raise Unavailable(detail, sent=True, retry_after=body.retry_after_seconds if body else None)
    # A proxy in the way has a limit of its own: a report is told without its result then.
    kind = Code.TOO_LARGE if answer.status_code == 413 else f"http-{answer.status_code}"
    raise Problem(body or ProblemBody(type=kind, detail=f"HTTP {answer.status_code}"), foreign=body is None and answer.status_code != 413)


def _problem(answer: httpx.Response) -> ProblemBody | None:
    if answer.headers.get("content-type", "").split(";")[0].strip() != "application/problem+json":
        return None
    try:
        return ProblemBody.model_validate_json(answer.content)
    except ValidationError:
        return None
