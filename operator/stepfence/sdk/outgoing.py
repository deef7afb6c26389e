"""Sees the requests that go out inside a sending block.

An error speaks of one request: the last one. A client that follows redirects, logs in first or repeats what failed has sent others
before it, and so has a loop around the client. So a verdict that Stepfence itself draws from an error or an answer needs evidence that
nothing else went out. The evidence comes from here: the transports of httpx, and urllib3's connection pool (requests, botocore and others
use it), tell the block in whose context they are called. Other clients are not seen, so nothing is concluded about them.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Exchange", "Exchanges", "Listener", "listening", "never_sent", "observed", "observed_async", "unheard"]

# Methods that ask for no effect (RFC 9110, 9.2.1).
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
# Answers after which nobody can tell whether a request was applied, although the provider has answered.
_UNTOLD_STATUS = frozenset({408, 409, 425})


@dataclass(eq=False, slots=True)
class Exchange:
    """One request on the wire. `repeated`: the client sent it again by itself, so that its own end says nothing."""

    method: str
    status: int | None = None
    error: BaseException | None = None
    ended: bool = False
    repeated: bool = False

    @property
    def safe(self) -> bool:
        """Whether its method asks for no effect."""
        return self.method in _SAFE_METHODS

    @property
    def refused(self) -> bool:
        """Whether it surely never left: no connection came to be."""
        return self.error is not None and not self.repeated and never_sent(self.error)

    @property
    def lost(self) -> bool:
        """Whether it may have been applied although no answer to it was seen."""
        return self.repeated or not self.ended or (self.error is not None and not self.refused)

    @property
    def untold(self) -> bool:
        """Whether its answer, or the lack of one, leaves open whether it was applied."""
        return self.lost or (self.status is not None and (self.status >= 500 or self.status in _UNTOLD_STATUS))


@dataclass(slots=True)
class Exchanges:
    """The requests of one block, in the order in which they went out. Guarded by its owner's lock."""

    seen: list[Exchange] = field(default_factory=list)

    @property
    def effective(self) -> list[Exchange]:
        """Those that may have had an effect: no safe method, and not refused."""
        return [each for each in self.seen if not each.safe and not each.refused]

    @property
    def in_flight(self) -> bool:
        """Whether one that may have an effect has not ended."""
        return any(not each.ended for each in self.effective)

    def nothing_sent(self) -> bool:
        """Whether all that was tried was surely never sent, and something was tried."""
        return bool(self.seen) and not self.effective and all(each.ended for each in self.seen) and self.seen[-1].refused

    def nothing_tried(self) -> bool:
        """Whether no request that may have an effect was even tried."""
        return not self.effective

    def answered_alone(self, status: int) -> bool:
        """Whether the last request got this answer, and no other one may have had an effect."""
        if not self.seen:
            return False
        last = self.seen[-1]
        return last.ended and not last.repeated and last.status == status and all(each is last for each in self.effective)

    def contradicts(self, known: BaseException | None = None) -> bool:
        """Whether what was seen contradicts the program's word that nothing was applied.

        `known`: the error that the program's own classifier was shown; the request that ended so is the one that it speaks of.
        """
        if not self.effective:
            return False
        *others, last = self.effective
        spoken_of = last.ended and not last.repeated and last.error in _chain(known)
        return (last.lost and not spoken_of) or any(each.untold for each in others)


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error and what it was raised from."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


class Listener(Protocol):
    """Is told of requests: a sending block."""

    def began(self, method: str) -> Exchange: ...

    def ended(self, exchange: Exchange, *, status: int | None = None, error: BaseException | None = None) -> None: ...


_listener: contextvars.ContextVar[Listener | None] = contextvars.ContextVar("stepfence_listener", default=None)
_around: contextvars.ContextVar[Exchange | None] = contextvars.ContextVar("stepfence_exchange", default=None)


def listening(listener: Listener) -> Callable[[], None]:
    """Tell `listener` of the requests of this context, tasks and threads that it hands its context to included, until the returned call."""
    _watch()
    token = _listener.set(listener)

    def end() -> None:
        # A block that is left in another context than it was entered in (a generator that was closed elsewhere) listens there no more.
        with contextlib.suppress(ValueError):
            _listener.reset(token)

    return end


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Make requests that are no part of any step: the SDK's own calls of the gateway."""
    token = _listener.set(None)
    try:
        yield
    finally:
        _listener.reset(token)


def observed(send: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the method `handle_request(self, request)` of an httpx transport so that it tells the block of its context."""
    return _observe(send, _method_of_request)


def observed_async(send: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Coroutine[Any, Any, Any]]:
    """Return the method `handle_async_request(self, request)` of an httpx transport so that it tells the block of its context."""

    @functools.wraps(send)
    async def observing(transport: Any, request: Any) -> Any:
        listener = _listener.get()
        if listener is None:
            return await send(transport, request)
        exchange = listener.began(_method_of_request(transport, request))
        try:
            response = await send(transport, request)
        except BaseException as error:
            listener.ended(exchange, error=error)
            raise
        listener.ended(exchange, status=response.status_code)
        return response

    observing.__dict__[_MARK] = True
    return observing


def _observe(send: Callable[..., Any], method_of: Callable[..., str]) -> Callable[..., Any]:
    @functools.wraps(send)
    def observing(*args: Any, **more: Any) -> Any:
        listener = _listener.get()
        if listener is None:
            return send(*args, **more)
        outer = _around.get()
        if outer is not None:
            # urllib3 repeats and redirects by calling itself.
            outer.repeated = True
        exchange = listener.began(method_of(*args, **more))
        token = _around.set(exchange)
        try:
            response = send(*args, **more)
        except BaseException as error:
            listener.ended(exchange, error=error)
            raise
        finally:
            _around.reset(token)
        listener.ended(exchange, status=response.status_code if hasattr(response, "status_code") else response.status)
        return response

    observing.__dict__[_MARK] = True
    return observing


_MARK = "stepfence_observed"


def _method_of_request(_transport: Any, request: Any) -> str:
    return str(request.method).upper()


def _method_of_urlopen(_pool: Any, method: str, *_args: Any, **_more: Any) -> str:
    return str(method).upper()


def _observe_urlopen(send: Callable[..., Any]) -> Callable[..., Any]:
    return _observe(send, _method_of_urlopen)


def _watch() -> None:
    """Let the clients that are imported tell of their requests. Cheap when nothing is new; a test's patch of them is wrapped again."""
    httpx = sys.modules.get("httpx")
    if httpx is not None:
        for name in ("HTTPTransport", "MockTransport", "WSGITransport"):
            _wrap(getattr(httpx, name, None), "handle_request", observed)
        for name in ("AsyncHTTPTransport", "MockTransport", "ASGITransport"):
            _wrap(getattr(httpx, name, None), "handle_async_request", observed_async)
    pools = sys.modules.get("urllib3.connectionpool")
    if pools is not None:
        _wrap(pools.HTTPConnectionPool, "urlopen", _observe_urlopen)


def _wrap(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    send = getattr(owner, name, None)
    if send is not None and _MARK not in getattr(send, "__dict__", {}):
        setattr(owner, name, wrap(send))


def never_sent(error: BaseException) -> bool:
    """Whether an exception of httpx or urllib3 says that no connection came to be, so that no request was written."""
    httpx = sys.modules.get("httpx")
    if httpx is not None and isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.UnsupportedProtocol):
        return True
    urllib3 = sys.modules.get("urllib3")
    if urllib3 is None:
        return False
    kinds = urllib3.exceptions
    reason = error.reason if isinstance(error, kinds.MaxRetryError) else error
    return isinstance(reason, kinds.NewConnectionError | kinds.ConnectTimeoutError)
