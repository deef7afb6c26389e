"""`/livez`, `/readyz`, `/metrics`: alive means that the loop runs; ready, that watches hear, the election works, the store answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from stepfence.core.errors import Refused, Unknown
from stepfence.ports import RunKey, Stored

__all__ = ["Readiness", "WatchHealth", "serving"]

_LOG = structlog.get_logger(__name__)
_STREAK_GAP, _STREAK_LIMIT = 30.0, 60.0
_ECHO_LIMIT = 60.0
_ASK_EVERY = 10.0


class WatchHealth:
    """Whether the watches hear: every write of ours must come back as an event, and requests must not fail for long.

    Moments are seconds of one monotonic clock.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._expected: dict[RunKey, tuple[str, float]] = {}
        self._streak: tuple[float, float] | None = None

    def expect(self, _before: Stored, after: Stored) -> None:
        """A run was written: the watch must tell of that version, or of a later one."""
        known = self._expected.get(after.key)
        self._expected[after.key] = (after.revision, known[1] if known is not None else self._monotonic())

    def heard(self, document: Mapping[str, Any]) -> None:
        """The watch told of a run."""
        metadata = document["metadata"]
        key = RunKey(metadata["namespace"], metadata["name"])
        expected = self._expected.get(key)
        if expected is not None and _reached(metadata["resourceVersion"], expected[0]):
            del self._expected[key]

    def failed(self) -> None:
        """A request of a watch failed and will be repeated."""
        now = self._monotonic()
        first = now if self._streak is None or now - self._streak[1] > _STREAK_GAP else self._streak[0]
        self._streak = (first, now)

    def problem(self) -> str | None:
        """Return why the watches count as dead; None while they do not."""
        now = self._monotonic()
        if self._streak is not None and now - self._streak[1] <= _STREAK_GAP and self._streak[1] - self._streak[0] > _STREAK_LIMIT:
            return "the watches cannot reach the API server"
        late = [key for key, (_, since) in self._expected.items() if now - since > _ECHO_LIMIT]
        return f"the watch has not told of a write to {late[0].namespace}/{late[0].name}" if late else None


def _reached(revision: str, expected: str) -> bool:
    if revision.isdigit() and expected.isdigit():
        return int(revision) >= int(expected)
    return revision == expected


class Readiness:
    """A follower is ready too: it hears, and could lead."""

    def __init__(
        self,
        watches: WatchHealth,
        ask_store: Callable[[], Awaitable[None]],
        monotonic: Callable[[], float],
        election: Callable[[], str | None],
    ) -> None:
        self._watches, self._ask_store, self._monotonic, self._election = watches, ask_store, monotonic, election
        self._asked: tuple[float, str | None] | None = None
        self.started = False

    async def problem(self) -> str | None:
        """Return why this replica is not ready; None when it is."""
        if not self.started:
            return "the watches have not begun"
        return self._watches.problem() or self._election() or await self._store_problem()

    async def _store_problem(self) -> str | None:
        now = self._monotonic()
        if self._asked is None or now - self._asked[0] >= (_ASK_EVERY if self._asked[1] is None else 1.0):
            try:
                await self._ask_store()
                self._asked = (now, None)
            except (Refused, Unknown) as error:
                self._asked = (now, f"the store does not answer: {error}")
        return self._asked[1]


@asynccontextmanager
async def serving(host: str, port: int, readiness: Readiness, registry: CollectorRegistry) -> Any:
    """Serve the three routes while the block runs. Raises `OSError` when the port is taken."""

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        problem = await readiness.problem()
        if problem is not None:
            _LOG.warning("not ready", problem=problem)
        return web.Response(text=f"{problem or 'ok'}\n", status=200 if problem is None else 503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=2.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, reuse_address=True).start()
        yield
    finally:
        await runner.cleanup()
