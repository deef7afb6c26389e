"""A watch on all AgentRuns, for the whole session: it holds every sight of every run against the invariants."""

import json
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import httpx

from e2e.cluster import ClusterTimeout
from e2e.pods.api import RUNS, Object
from e2e.pods.invariants import History

_WATCH_SECONDS = 240
_READ_SECONDS = 20.0
_RETRY_SECONDS = 0.2
_LOOK_SECONDS = 0.2

T = TypeVar("T")


class Watcher:
    """Follows the runs in a thread of its own. `broken` grows by one sentence for each invariant that was broken."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._changed = threading.Condition()
        self._runs: dict[tuple[str, str], Object] = {}
        self._histories: dict[str, History] = {}
        self._phases: dict[tuple[str, str], list[str]] = {}
        self._first: dict[tuple[str, str], Object] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="agentrun-watch", daemon=True)
        self.broken: list[str] = []
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Have it end when its connection ends, or at the next sight of a run."""
        self._stopping.set()

    @property
    def alive(self) -> bool:
        """Whether it still watches."""
        return self._thread.is_alive() and self.failure is None

    def run(self, namespace: str, name: str) -> Object | None:
        """The last sight of a run; None before the first, and when it is gone."""
        with self._changed:
            return self._runs.get((namespace, name))

    def phases(self, namespace: str, name: str) -> list[str]:
        """The phases of a run in the order in which they were seen."""
        with self._changed:
            return list(self._phases.get((namespace, name), ()))

    def first_in_phase(self, namespace: str) -> dict[str, Object]:
        """The first sight of any run of a namespace in each phase."""
        with self._changed:
            return {phase: run for (where, phase), run in self._first.items() if where == namespace}

    def until(self, what: str, fact: Callable[[], T | None], *, seconds: float, evidence: Callable[[], str]) -> T:
        """Wait until `fact` gives something true, and return that; look whenever a run changes, and now and then.

        Raises:
            ClusterTimeout: it did not within `seconds`; with the evidence.
        """
        deadline = time.monotonic() + seconds
        while True:
            if found := fact():
                return found
            if time.monotonic() > deadline:
                raise ClusterTimeout(f"no {what} after {seconds:g} s\n{evidence()}")
            with self._changed:
                self._changed.wait(_LOOK_SECONDS)

    def _follow(self) -> None:
        try:
            with httpx.Client(base_url=self._url, timeout=_READ_SECONDS, trust_env=False) as http:
                while not self._stopping.is_set():
                    try:
                        self._list_and_watch(http)
                    except (httpx.TransportError, httpx.HTTPStatusError):  # the API server is told to fail in some tests
                        self._stopping.wait(_RETRY_SECONDS)
        except BaseException as failure:
            self.failure = failure
            raise

    def _list_and_watch(self, http: httpx.Client) -> None:
        listed = http.get(f"{RUNS}/agentruns").raise_for_status().json()
        self._take_list(listed["items"])
        version = listed["metadata"]["resourceVersion"]
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(_WATCH_SECONDS), "allowWatchBookmarks": "true"}
        # A frozen API server sends nothing; nor does a quiet one, so that silence alone proves nothing.
        timeout = httpx.Timeout(_READ_SECONDS, read=_WATCH_SECONDS + _READ_SECONDS)
        with http.stream("GET", f"{RUNS}/agentruns", params=query, timeout=timeout) as stream:
            stream.raise_for_status()
            for line in stream.iter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":  # the version is too old: list again
                    return
                self._take(event["type"], event["object"])
                if self._stopping.is_set():
                    return

    def _take_list(self, items: list[Object]) -> None:
        listed = {(item["metadata"]["namespace"], item["metadata"]["name"]) for item in items}
        with self._changed:
            for gone in self._runs.keys() - listed:
                del self._runs[gone]
        for item in items:
            self._take("MODIFIED", item)

    def _take(self, kind: str, run: Object) -> None:
        if kind == "BOOKMARK":
            return
        metadata = run["metadata"]
        key = (metadata["namespace"], metadata["name"])
        with self._changed:
            if kind == "DELETED":
                self._runs.pop(key, None)
            else:
                history = self._histories.setdefault(metadata["uid"], History("/".join(key)))
                self.broken += history.see(run.get("status", {}))
                self._runs[key] = run
                self._note_phase(key, run)
            self._changed.notify_all()

    def _note_phase(self, key: tuple[str, str], run: Object) -> None:
        phase, seen = run.get("status", {}).get("phase"), self._phases.setdefault(key, [])
        if phase:
            self._first.setdefault((key[0], phase), run)
        if phase and seen[-1:] != [phase]:
            seen.append(phase)
