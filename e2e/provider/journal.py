"""The provider's own log: appended to, never changed; in memory, and in a JSON Lines file when one is named."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from .wire import Entry, Happening, LogPage, Route

MAX_ENTRIES = 100_000


class LogFullError(Exception):
    """The log holds its most: the provider refuses to do what it could not record."""


class Caller:
    """Who sent a request and to what: repeated in each of its entries."""

    def __init__(self, request: int, route: Route, target: str | None, headers: dict[str, str]) -> None:
        self.request = request
        self.route = route
        self.target = target
        self.key = headers.get("idempotency-key")
        self.run = headers.get("stepfence-run")
        self.step = headers.get("stepfence-step")
        self.pod = headers.get("stepfence-pod")


class Journal:
    """Append-only entries and a way to wait for the next one."""

    def __init__(
        self,
        file: Path | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        self._file = file
        self._now = now
        self._max_entries = max_entries
        self._entries: list[Entry] = []
        self._last = 0
        self._requests = 0
        self._unwritten: list[Entry] = []
        self._writing = asyncio.Lock()
        self._grown = asyncio.Condition()

    def next_request(self) -> int:
        """Number a request. Raises LogFullError when its entries might not fit."""
        if len(self._entries) + 10 > self._max_entries:
            raise LogFullError(f"the log holds {len(self._entries)} entries; clear it by DELETE /_log")
        self._requests += 1
        return self._requests

    async def add(
        self,
        happening: Happening,
        caller: Caller,
        *,
        status: int | None = None,
        body: JsonValue = None,
        at: Literal["before", "after"] | None = None,
    ) -> Entry:
        """Append an entry; on return it is in the file too. It is in memory before the first suspension."""
        self._last += 1
        entry = Entry(
            seq=self._last,
            time=self._now(),
            happening=happening,
            request=caller.request,
            route=caller.route,
            target=caller.target,
            key=caller.key,
            run=caller.run,
            step=caller.step,
            pod=caller.pod,
            status=status,
            body=body,
            at=at,
        )
        self._entries.append(entry)
        await self._write(entry)
        async with self._grown:
            self._grown.notify_all()
        return entry

    async def _write(self, entry: Entry) -> None:
        if self._file is None:
            return
        self._unwritten.append(entry)
        async with self._writing:
            batch, self._unwritten = self._unwritten, []
            if batch:
                await asyncio.to_thread(_append, self._file, batch)

    def page(self, after: int) -> LogPage:
        """Return what was appended after sequence number `after`."""
        return LogPage(entries=[entry for entry in self._entries if entry.seq > after], last=self._last)

    async def wait(self, after: int, seconds: float) -> LogPage:
        """Return what was appended after `after`, as soon as there is something, at the latest after `seconds`."""
        try:
            async with asyncio.timeout(seconds), self._grown:
                await self._grown.wait_for(lambda: self._last > after)
        except TimeoutError:
            pass  # an empty page says so
        return self.page(after)

    def clear(self) -> None:
        """Forget the entries in memory; numbers go on, the file stays."""
        self._entries.clear()


def _append(file: Path, entries: list[Entry]) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.writelines(entry.model_dump_json(exclude_none=True) + "\n" for entry in entries)
