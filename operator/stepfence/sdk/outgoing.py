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

__all__ = ["Exchange", "Exchanges", "Listener", "chain", "listening", "never_sent", "observed", "observed_async", "unheard", "watch"]

# Methods that ask for no effect (RFC 9110, 9.2.1).
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
# Answers after which nobody can tell whether a request was applied, although the provider has answered.
_UNTOLD_STATUS = frozenset({408, 409, 425})


@dataclass(eq=False, slots=True)
class Exchange:
    """One request on the wire.

    `repeated`: the client sent it again by itself, or it ended by the error of another request, so that its own end says nothing.
    """

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
        """Whether all that may have an effect was surely never sent, and such a thing was tried: a look-up that failed is no evidence."""
        tried = any(not each.safe for each in self.seen)
        return tried and not self.effective and all(each.ended for each in self.seen) and self.seen[-1].refused

    def answered_alone(self, status: int) -> bool:
        """Whether the last request got this answer, and it is the only one that may have had an effect."""
        if not self.seen:
            return False
        last = self.seen[-1]
        return self.effective == [last] and last.ended and not last.repeated and last.status == status

    def contradicts(self, known: BaseException | None = None) -> bool:
        """Whether what was seen contradicts the program's word that nothing was applied.

        `known`: the error that the program's own classifier was shown; the request that ended so is the one that it speaks of.
        """
        if not self.effective:
            return False
        *others, last = self.effective
        spoken_of = last.ended and not last.repeated and any(each is last.error for each in chain(known))
        return (last.lost and not spoken_of) or any(each.untold for each in others)


def chain(error: BaseException | None) -> list[BaseException]:
    """Return the error and what it was raised from, each once: `raise error from error` makes a ring."""
    links: list[BaseException] = []
    while error is not None and not any(each is error for each in links):
        links.append(error)
        error = error.__context__ if error.__cause__ is None else error.__cause__
    return links


class Listener(Protocol):
    """Is told of requests: a sending block."""

    def began(self, method: str) -> Exchange: ...

    def ended(self, exchange: Exchange, *, status: int | None = None, error: BaseException | None = None) -> None: ...


_listener: contextvars.ContextVar[Listener | None] = contextvars.ContextVar("stepfence_listener", default=None)
_around: contextvars.ContextVar[Exchange | None] = contextvars.ContextVar("stepfence_exchange", default=None)


def listening(listener: Listener) -> Callable[[], None]:
    """Tell `listener` of the requests of this context, tasks and threads that it hands its context to included, until the returned call."""
    before = _listener.get()
    _listener.set(listener)

    def end() -> None:
        # In another context (a generator that was closed elsewhere), or left before a block that was entered later, it ends nothing.
        if _listener.get() is listener:
            _listener.set(before)

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
            exchange.repeated = _of_another(error, request)
            listener.ended(exchange, error=error)
            raise
        listener.ended(exchange, status=_status_of(response))
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
            exchange.repeated = exchange.repeated or _of_another(error, *args, *more.values())
            listener.ended(exchange, error=error)
            raise
        finally:
            _around.reset(token)
        listener.ended(exchange, status=_status_of(response))
        return response

    observing.__dict__[_MARK] = True
    return observing


_MARK = "stepfence_observed"


def _status_of(response: Any) -> int | None:
    return getattr(response, "status_code", None) or getattr(response, "status", None)


def _of_another(error: BaseException, *asked: Any) -> bool:
    """Whether a request that was asked so ended by the error of another one: of where its body comes from, or of an app in this process."""
    httpx, urllib3 = sys.modules.get("httpx"), sys.modules.get("urllib3")
    if urllib3 is not None and isinstance(error, urllib3.exceptions.PoolError):
        return all(each is not error.pool for each in asked)
    if httpx is not None and isinstance(error, httpx.RequestError):
        with contextlib.suppress(RuntimeError):  # raised when it has none yet: a client sets it
            # Not the object itself: what plays a provider in tests makes its own.
            spoken_of = (error.request.method, error.request.url)
            return all((getattr(each, "method", None), getattr(each, "url", None)) != spoken_of for each in asked)
    return False


def _method_of_request(_transport: Any, request: Any) -> str:
    return str(request.method).upper()


def _method_of_urlopen(_pool: Any, method: str, *_args: Any, **_more: Any) -> str:
    return str(method).upper()


def _observe_urlopen(send: Callable[..., Any]) -> Callable[..., Any]:
    return _observe(send, _method_of_urlopen)


def watch() -> int:
    """Let the clients that are imported tell of their requests. Returns a number that grows when one has not told of them before.

    Cheap when nothing is new; a test's patch of them is wrapped again.
    """
    httpx = sys.modules.get("httpx")
    if httpx is not None:
        for name in ("HTTPTransport", "MockTransport", "WSGITransport"):
            _wrap(getattr(httpx, name, None), "handle_request", observed)
        for name in ("AsyncHTTPTransport", "MockTransport", "ASGITransport"):
            _wrap(getattr(httpx, name, None), "handle_async_request", observed_async)
    pools = sys.modules.get("urllib3.connectionpool")
    # It may be half imported, by another thread.
    _wrap(getattr(pools, "HTTPConnectionPool", None), "urlopen", _observe_urlopen)
    return len(_wrapped)


_wrapped: list[str] = []


def _wrap(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    send = getattr(owner, name, None)
    if send is not None and _MARK not in getattr(send, "__dict__", {}):
        setattr(owner, name, wrap(send))
        _wrapped.append(name)


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
