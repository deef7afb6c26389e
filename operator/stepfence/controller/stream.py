"""What the API server sends to kopf, read before kopf reads it: one object that cannot be read must not end the watch over all others.

kopf reads each line of a watch and each page of a list with `json.loads`, and what that raises ends the process: again at each start, for
the object is still there. It takes a session of ours, so that the answers are ours too: what is nested too deep is cut, as
`core.nesting` does, and the rest of the object is seen as ever. What is no JSON, or tells of an error, makes kopf list anew.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
import kopf
import structlog

from stepfence.core.nesting import READ_DEPTH, deeper_than, read_cut

__all__ = ["CUT", "FAILED", "UNREADABLE", "Sessions", "readable"]

_LOG = structlog.get_logger(__name__)
# What is told of: an object was cut; a line or page was no JSON; the API server told of an error in the middle of a watch.
CUT, UNREADABLE, FAILED = "cut", "unreadable", "failed"
Told = Callable[[str], None]

_GONE = 410
# kopf takes any other error for one that ends the process. Of this one it lists anew, after a pause.
_LIST_ANEW = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": _GONE}}).encode()
# Whatever was cut is deeper than this, wherever its object stood in what was read.
_DEEP = READ_DEPTH - 4


def readable(line: bytes, told: Told) -> bytes:
    """Return a line of a watch as kopf can read it."""
    try:
        event, cut = read_cut(line)
    except json.JSONDecodeError as error:
        return _list_anew(UNREADABLE, str(error), told)
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        return _list_anew(UNREADABLE, "an event without an object", told)
    document: Any = event["object"]
    if event.get("type") == "ERROR" and document.get("code") != _GONE:
        return _list_anew(FAILED, str(document.get("message")), told)
    if not cut:
        return line
    _tell_cut(document, told)
    return json.dumps(event).encode()


def _list_anew(kind: str, why: str, told: Told) -> bytes:
    _LOG.warning("watch begins anew", kind=kind, error=why)
    told(kind)
    return _LIST_ANEW


def _tell_cut(document: Mapping[str, Any], told: Told) -> None:
    metadata = document.get("metadata") or {}
    where = {"namespace": metadata.get("namespace"), "name": metadata.get("name")}
    _LOG.warning("object nested too deep is read in part", object=document.get("kind"), **where)
    told(CUT)


def _tell_cuts(page: Any, told: Told) -> None:
    items = page.get("items") if isinstance(page, dict) else None
    for item in items or ():
        if deeper_than(item, _DEEP):
            _tell_cut({"kind": str(page.get("kind")).removesuffix("List"), **item}, told)


class Sessions:
    """Makes of kopf's logins sessions whose answers can be read. `told` hears what was wrong: `CUT`, `UNREADABLE` or `FAILED`."""

    def __init__(self, told: Told) -> None:
        self._answers = _answers(told)
        self._last: tuple[kopf.ConnectionInfo, kopf.AiohttpSession] | None = None

    def of(self, info: kopf.ConnectionInfo) -> kopf.AiohttpSession:
        """Return the session of a login: the same one for the same, by which kopf knows one that was refused already. Needs a loop."""
        if self._last is None or self._last[0] != info:
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
                headers=info.as_http_headers(),
                proxy=info.proxy_url,
                trust_env=info.trust_env,
                response_class=self._answers,
            )
            made = kopf.AiohttpSession(
                server=info.server,
                default_namespace=info.default_namespace,
                priority=info.priority,
                expiration=info.expiration,
                aiohttp_session=session,
            )
            self._last = (info, made)
        return self._last[1]


def _answers(told: Told) -> type[aiohttp.ClientResponse]:
    class Answer(aiohttp.ClientResponse):
        """An answer as kopf reads it: whole by `json`, a watch by the chunks of `content`."""

        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            if self.status == 200 and self.url.query.get("watch") == "true":
                self.content = _Lines(self.content, told)  # type: ignore[assignment]
            return self

        async def json(self, **_: Any) -> Any:
            try:
                page, cut = read_cut(await self.read())
            except json.JSONDecodeError as error:
                if self.status >= 400:  # kopf takes the text then
                    raise
                _LOG.warning("list is asked for anew", kind=UNREADABLE, error=str(error))
                told(UNREADABLE)
                raise aiohttp.ClientPayloadError("an answer that is no JSON") from error
            if cut:
                _tell_cuts(page, told)
            return page

    return Answer


class _Lines:
    """The stream of a watch, in whole lines that can be read. What comes last and has no end is left: kopf asks for it again."""

    def __init__(self, content: aiohttp.StreamReader, told: Told) -> None:
        self._content, self._told = content, told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        rest = b""
        async for data in self._content.iter_chunked(size):
            *lines, rest = (rest + data).split(b"\n")
            if lines:
                yield b"".join(readable(line, self._told) + b"\n" for line in lines if line.strip())
