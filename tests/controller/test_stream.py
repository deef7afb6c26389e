"""One object that cannot be read ends no watch over all others."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import kopf
import pytest

from stepfence.controller.cache import Cache
from stepfence.controller.health import WatchHealth
from stepfence.controller.stream import CUT, FAILED, UNREADABLE, Sessions, readable
from stepfence.controller.watch import kopf_settings, watch_registry
from stepfence.core.nesting import READ_DEPTH, deeper_than
from stepfence.ports import RunKey
from stepfence.testing.clock import FakeClock
from tests.controller.api_server import ApiServer, api_server, deep


class Watching:
    """A controller's caches, fed by kopf from that API server."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.woken: asyncio.Queue[RunKey] = asyncio.Queue()
        self.cache = Cache(self.woken.put_nowait)
        self.told: Counter[str] = Counter()
        self.ended: asyncio.Task[None] | None = None

    def hear(self, kind: str) -> None:
        self.told[kind] += 1

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; an end of the watches is told at once."""
        assert self.ended is not None
        async with asyncio.timeout(20):
            while not holds():
                heard = asyncio.create_task(self.woken.get())
                await asyncio.wait({heard, self.ended}, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
                heard.cancel()
                assert not self.ended.done(), f"the watches have ended: {self.ended.exception()!r}"

    def phase(self, name: str) -> str | None:
        seen = self.cache.runs.get(RunKey("support", name))
        return None if seen is None else seen.phase


@asynccontextmanager
async def watching(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watching]:
    """Three runs, the second of which is deep, and the watches over them. kopf ends every task that is younger than itself."""
    async with api_server(folder) as (server, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        watch = Watching(server)
        health = WatchHealth(FakeClock().monotonic)
        settings = kopf_settings(health, exit_seconds=1.0)
        settings.watching.reconnect_backoff = 0.01
        server.run("first")
        server.run("deep", spec=f'{{"input":{deep(2_000)}}}')
        server.run("last")
        ours = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=watch_registry(watch.cache, health, watch.hear),
            settings=settings,
            clusterwide=True,
            standalone=True,
            identity="a-test",  # type: ignore[arg-type]
            stop_flag=asyncio.Event(),
        )
        watch.ended = asyncio.create_task(kopf.run_tasks(tasks, ignored=ours))
        try:
            yield watch
        finally:
            watch.ended.cancel()
            await asyncio.wait({watch.ended}, timeout=10)


async def test_a_deep_object_in_a_list_is_seen_and_so_are_the_others_of_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(tmp_path, monkeypatch) as watch:
        await watch.until(lambda: len(watch.cache.runs) == 3)
        assert watch.told == {CUT: 1}
        assert watch.phase("deep") == "Pending"


async def test_a_deep_object_in_a_watch_is_seen_and_so_is_what_comes_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(tmp_path, monkeypatch) as watch:
        server = watch.server
        await watch.until(lambda: len(watch.cache.runs) == 3)
        await watch.until(lambda: bool(server.watches))
        server.tell("MODIFIED", server.run("deep", spec=f'{{"input":{deep(100_000)}}}', status='{"phase":"Failed"}'))
        server.tell("MODIFIED", server.run("last", status='{"phase":"Running"}'))
        await watch.until(lambda: watch.phase("last") == "Running")
        await watch.until(lambda: watch.phase("deep") == "Failed")
        assert (watch.told, server.lists) == ({CUT: 2}, 1)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("no JSON\n", UNREADABLE),
        ('{"type":"MODIFIED","object":' + "[" * 3_000 + "\n", UNREADABLE),
        ('"a text"\n', UNREADABLE),
        ('{"type":"ERROR","object":{"kind":"Status","code":500,"message":"unable to decode an object"}}\n', FAILED),
    ],
    ids=["a page of a proxy", "half of a deep line", "no event", "an error of the API server"],
)
async def test_what_is_no_event_makes_everything_be_listed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kind: str
) -> None:
    async with watching(tmp_path, monkeypatch) as watch:
        server = watch.server
        await watch.until(lambda: len(watch.cache.runs) == 3)
        await watch.until(lambda: bool(server.watches))
        server.run("new")  # told by no watch
        server.send(text)
        await watch.until(lambda: watch.phase("new") == "Pending")
        assert (watch.told[kind], server.lists) == (1, 2)


async def test_a_line_without_an_end_is_left_and_the_watch_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(tmp_path, monkeypatch) as watch:
        server = watch.server
        await watch.until(lambda: len(watch.cache.runs) == 3)
        await watch.until(lambda: bool(server.watches))
        begun = server.begun
        server.send('{"type":"MODIFIED","obj')
        server.send(None)
        await watch.until(lambda: server.begun == begun + 1)
        server.tell("MODIFIED", server.run("last", status='{"phase":"Running"}'))
        await watch.until(lambda: watch.phase("last") == "Running")
        assert server.lists == 1


async def test_a_list_that_is_no_json_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(tmp_path, monkeypatch) as watch:
        server = watch.server
        await watch.until(lambda: len(watch.cache.runs) == 3)
        await watch.until(lambda: bool(server.watches))
        server.page = "<html>"
        server.run("new")
        server.send("no JSON\n")
        await watch.until(lambda: watch.phase("new") == "Pending")
        assert watch.told[UNREADABLE] == 2


def event(**more: Any) -> bytes:
    return json.dumps({"type": "MODIFIED", "object": {"kind": "AgentRun", "metadata": {"name": "a", "uid": "u"}, **more}}).encode()


def test_an_ordinary_line_is_handed_on_as_it_is() -> None:
    told: list[str] = []
    line = event(spec={"input": {"n": 2**60, "text": "[[[[ \ud83d\ude00"}})
    assert readable(line, told.append) is line
    assert told == []


@pytest.mark.parametrize(
    "value",
    [deep(500).encode(), b"7" * 5_000, b"1e400", b'"\\ud800"', b'"caf\xe9"', b"NaN"],
    ids=["deep", "a number of 5,000 digits", "a number beyond all floats", "half of a pair", "no UTF-8", "no number"],
)
def test_whatever_one_value_is_like_the_line_can_be_read(value: bytes) -> None:
    line = event(spec={"input": {"n": "here"}}).replace(b'"here"', value)
    told: list[str] = []
    read = json.loads(readable(line, told.append).decode())
    assert read["object"]["metadata"] == {"name": "a", "uid": "u"}
    assert not deeper_than(read, READ_DEPTH)


async def test_the_same_login_is_the_same_session_so_that_a_refused_one_is_known() -> None:
    sessions = Sessions(lambda _: None)
    one = sessions.of(kopf.ConnectionInfo(server="http://127.0.0.1:1", token="a"))
    assert sessions.of(kopf.ConnectionInfo(server="http://127.0.0.1:1", token="a")) == one
    other = sessions.of(kopf.ConnectionInfo(server="http://127.0.0.1:1", token="b"))
    assert other != one
    for session in (one, other):
        await session.aiohttp_session.close()
