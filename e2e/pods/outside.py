"""The outside provider, for tests that are not asynchronous: its own log is what effects are counted by."""

import asyncio
from collections import Counter
from typing import Any

import httpx

from e2e.provider.client import ProviderClient, matcher
from e2e.provider.wire import Entry, Fault, Happening, Route, RuleState

_SECONDS = 60.0
HANG = Fault(hang=True)


class Outside:
    """The provider of one namespace, seen through the API server's Service proxy (or at any other URL)."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._client = ProviderClient(http=httpx.AsyncClient(base_url=url, trust_env=False))

    def close(self) -> None:
        """Let go of the connection."""
        self._runner.run(self._client.__aexit__(None, None, None))
        self._runner.close()

    def answers(self) -> bool:
        """Whether it can be reached now."""
        try:
            self._runner.run(self._client.rules())
        except httpx.HTTPError:
            return False
        return True

    def tell(self, route: Route, **rule: Any) -> RuleState:
        """Give a rule for the next request that matches; see `ProviderClient.tell`."""
        return self._runner.run(self._client.tell(route, **rule))

    def release(self, rule: RuleState | None = None) -> None:
        """Let hanging calls go on."""
        self._runner.run(self._client.release(rule))

    def hanging(self, rule: RuleState) -> bool:
        """Whether a call hangs in a rule now."""
        return any(state.id == rule.id and state.hanging for state in self._runner.run(self._client.rules()))

    def entries(self, happening: Happening, **which: Any) -> list[Entry]:
        """Entries of one kind, oldest first."""
        return self._runner.run(self._client.entries(happening, **which))

    def effects(self, **which: Any) -> list[Entry]:
        """What happened in the provider's world."""
        return self.entries(Happening.EFFECT, **which)

    def wait_for(self, happening: Happening, *, seconds: float = _SECONDS, **which: Any) -> Entry:
        """The first entry of a kind. Raises TimeoutError."""
        return self._runner.run(self._client.wait_for(matcher(happening, **which), seconds=seconds))

    def effects_by_step(self, namespace: str) -> Counter[tuple[str, str]]:
        """How often each step of each run of a namespace had an effect (by its key, where a program does not name its step).

        A replay of a known key counts too: a provider that honours no keys would have done it again. Reads have none.
        """
        found = [*self.effects(), *self.entries(Happening.REPLAY)]
        mine = [entry for entry in found if (entry.run or "").startswith(f"{namespace}/")]
        return Counter(((entry.run or "").partition("/")[2], entry.step or entry.key or "") for entry in mine)
