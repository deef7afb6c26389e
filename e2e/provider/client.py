"""Typed client of the control and log routes: what tests use."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

import httpx
from pydantic import TypeAdapter

from .wire import MAX_WAIT_SECONDS, Entry, Fault, Happening, LogPage, Match, Route, Rule, RuleState

REQUEST_SECONDS = 30.0
_STATES = TypeAdapter(list[RuleState])


class ProviderClient:
    """Reads the provider's log and gives it rules. `base_url` may be a Service proxy path of an API server.

    Every method raises httpx.HTTPError when the provider cannot be reached or refuses.
    """

    def __init__(self, base_url: str = "", *, http: httpx.AsyncClient | None = None) -> None:
        self._http = http or httpx.AsyncClient(base_url=base_url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._http.aclose()

    async def tell(  # one instruction a call, with the fields of Match and Rule spelled out
        self,
        route: Route,
        *,
        before: Fault | None = None,
        after: Fault | None = None,
        honour_key: bool = True,
        key: str | None = None,
        run: str | None = None,
        step: str | None = None,
        skip: int = 0,
        count: int | None = 1,
    ) -> RuleState:
        """Give a rule for requests that match; by default for the next one only."""
        match = Match(route=route, key=key, run=run, step=step, skip=skip, count=count)
        rule = Rule(match=match, before=before or Fault(), after=after or Fault(), honour_key=honour_key)
        return RuleState.model_validate_json(await self._send("POST", "_control", rule.model_dump(mode="json")))

    async def rules(self) -> list[RuleState]:
        """Return all rules with what became of them."""
        return _STATES.validate_json(await self._send("GET", "_control"))

    async def clear_rules(self) -> None:
        """Forget all rules; hanging calls go on."""
        await self._send("DELETE", "_control")

    async def release(self, rule: RuleState | None = None) -> None:
        """Let the calls go on that hang in this rule, or in any."""
        await self._send("POST", "_control/release", {"rule": rule.id if rule else None})

    async def log(self, *, after: int = 0, wait_seconds: float = 0.0) -> LogPage:
        """Return the entries after a sequence number; with `wait_seconds` as soon as there is one."""
        path = f"_log?after={after}&wait_seconds={min(wait_seconds, MAX_WAIT_SECONDS)}"
        return LogPage.model_validate_json(await self._send("GET", path))

    async def clear_log(self) -> None:
        """Forget the entries so far."""
        await self._send("DELETE", "_log")

    async def entries(
        self,
        happening: Happening,
        *,
        route: Route | None = None,
        key: str | None = None,
        run: str | None = None,
        step: str | None = None,
    ) -> list[Entry]:
        """Return the entries of one kind, oldest first."""
        wanted = matcher(happening, route=route, key=key, run=run, step=step)
        return [entry for entry in (await self.log()).entries if wanted(entry)]

    async def effects(
        self, route: Route | None = None, *, key: str | None = None, run: str | None = None, step: str | None = None
    ) -> list[Entry]:
        """Return what happened in the provider's world, oldest first."""
        return await self.entries(Happening.EFFECT, route=route, key=key, run=run, step=step)

    async def wait_for(self, wanted: Callable[[Entry], bool], *, seconds: float, after: int = 0) -> Entry:
        """Return the first entry after `after` that is wanted. Raises TimeoutError after `seconds`."""
        deadline = datetime.now(UTC) + timedelta(seconds=seconds)
        seen = after
        while (left := (deadline - datetime.now(UTC)).total_seconds()) > 0:
            page = await self.log(after=seen, wait_seconds=left)
            for entry in page.entries:
                if wanted(entry):
                    return entry
            seen = max(seen, page.last)
        raise TimeoutError(f"no such entry in the provider's log within {seconds} s")

    async def _send(self, method: str, path: str, body: object = None) -> bytes:
        response = await self._http.request(method, path, json=body, timeout=REQUEST_SECONDS + MAX_WAIT_SECONDS)
        response.raise_for_status()
        return response.content


def matcher(
    happening: Happening,
    *,
    route: Route | None = None,
    key: str | None = None,
    run: str | None = None,
    step: str | None = None,
) -> Callable[[Entry], bool]:
    """Return the test for entries of one kind, for `wait_for`."""
    wanted = {"route": route, "key": key, "run": run, "step": step}

    def matches(entry: Entry) -> bool:
        return entry.happening == happening and all(value is None or getattr(entry, name) == value for name, value in wanted.items())

    return matches
