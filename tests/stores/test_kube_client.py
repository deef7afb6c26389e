"""What the client makes of bodies that are not as they should be, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from stepfence.core.errors import Unknown
from stepfence.ports import RunKey, Write
from stepfence.stores.kube import KubeRunStore
from stepfence.stores.kube_client import KubeClient

KEY = RunKey("support", "refund")
DEEP = '{"a":[' * 1_000 + "1" + "]}" * 1_000


def run(value: str) -> str:
    metadata = '{"namespace":"support","name":"refund","uid":"u","resourceVersion":"7","generation":1}'
    return f'{{"kind":"AgentRun","metadata":{metadata},"spec":{{"input":{value},"template":{{}}}},"status":{{"version":3}}}}'


@asynccontextmanager
async def answering(text: str, status: int = 200) -> AsyncIterator[KubeClient]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    client = KubeClient(configuration, "stepfence-test", seconds=5.0)
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


async def test_a_run_that_is_nested_too_deep_is_read_and_its_input_named() -> None:
    async with answering(run(DEEP)) as client:
        store = KubeRunStore(client)
        stored = await store.load(KEY)
        assert (stored.run.version, stored.revision, stored.run.spec.input) == (3, "7", None)
        assert stored.run.spec.problems == ("spec.input: nested deeper than 64 levels",)
        assert (await store.save(Write(stored, stored.run, {"version": 4}, 100))).revision == "7"


@pytest.mark.parametrize("value", ["7" * 5_000, "1e400", '"\\ud800"'], ids=["5,000 digits", "beyond all floats", "half of a pair"])
async def test_a_run_with_a_value_that_is_no_json_is_read_and_its_input_named(value: str) -> None:
    async with answering(run(f'{{"n":{value}}}')) as client:
        stored = await KubeRunStore(client).load(KEY)
        assert stored.run.spec.input is None
        assert stored.run.spec.problems[0].startswith("spec.input: is no JSON that RFC 8785 can carry")


@pytest.mark.parametrize("text", ["<html>", "", '"a text"', "[1]", "[" * 100_000])
async def test_a_success_that_is_no_json_object_is_an_answer_that_was_lost(text: str) -> None:
    async with answering(text) as client:
        with pytest.raises(Unknown, match="no JSON object"):
            await KubeRunStore(client).load(KEY)


async def test_a_failure_that_is_no_json_object_is_told_by_its_start() -> None:
    async with answering("<html>busy" + "!" * 500, 503) as client:
        with pytest.raises(Unknown, match="<html>busy!"):
            await KubeRunStore(client).load(KEY)
