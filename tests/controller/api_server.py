"""As much of an API server as the watches of a controller need: lists and watches of raw documents, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from stepfence.schema import GROUP, PLURAL, VERSION

_RUNS = f"/apis/{GROUP}/{VERSION}"
_KINDS = {
    _RUNS: ("AgentRun", PLURAL),
    "/apis/batch/v1": ("Job", "jobs"),
    "/api/v1": ("Pod", "pods"),
}
# kopf begins nothing before it has found them.
_BESIDE = (("Event", "events"), ("Namespace", "namespaces"))


def deep(levels: int) -> str:
    """Return a JSON text of so many levels."""
    return '{"a":[' * (levels // 2) + "1" + "]}" * (levels // 2)


class ApiServer:
    """`runs` are texts by name. What is put in `lines` is sent to every watch of runs."""

    def __init__(self) -> None:
        self.runs: dict[str, str] = {}
        self.page: str | None = None
        self.lists = self.begun = 0
        self._revision = 0
        self.watches: set[asyncio.Queue[str | None]] = set()
        self._others: set[asyncio.Queue[str | None]] = set()

    def run(self, name: str, spec: str = "{}", status: str = "{}") -> str:
        """Make or change a run, and return its text."""
        self._revision += 1
        metadata = {"namespace": "support", "name": name, "uid": f"uid-{name}", "resourceVersion": str(self._revision)}
        text = f'{{"apiVersion":"{GROUP}/{VERSION}","kind":"AgentRun","metadata":{json.dumps(metadata)},"spec":{spec},"status":{status}}}'
        self.runs[name] = text
        return text

    def tell(self, kind: str, document: str) -> None:
        """Send an event to the watches of runs."""
        self.send(f'{{"type":"{kind}","object":{document}}}\n')

    def send(self, text: str | None) -> None:
        """Send anything to the watches of runs; None ends them."""
        for watch in self.watches:
            watch.put_nowait(text)

    def close(self) -> None:
        """End every watch."""
        for watch in self.watches | self._others:
            watch.put_nowait(None)

    async def _discovery(self, request: web.Request) -> web.Response:
        if request.path == "/api":
            return web.json_response({"versions": ["v1"]})
        if request.path == "/apis":
            groups = [(GROUP, VERSION), ("batch", "v1")]
            return web.json_response({"groups": [_group(group, version) for group, version in groups]})
        served = [_KINDS[request.path], *(_BESIDE if request.path == "/api/v1" else ())]
        verbs = ["list", "watch", "get", "create"]
        return web.json_response(
            {
                "resources": [
                    {"name": plural, "kind": kind, "namespaced": True, "singularName": kind.lower(), "verbs": verbs}
                    for kind, plural in served
                ]
            }
        )

    async def _objects(self, request: web.Request) -> web.StreamResponse:
        kind, _ = _KINDS[request.path.rpartition("/")[0]]
        if request.query.get("watch") == "true":
            return await self._watch(request, kind)
        items = self.runs.values() if kind == "AgentRun" else ()
        self.lists += kind == "AgentRun"
        page = f'{{"kind":"{kind}List","apiVersion":"v1","metadata":{{"resourceVersion":"{self._revision}"}},"items":[{",".join(items)}]}}'
        if kind == "AgentRun" and self.page is not None:
            page, self.page = self.page, None
        return web.Response(text=page, content_type="application/json")

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        lines: asyncio.Queue[str | None] = asyncio.Queue()
        among = self.watches if kind == "AgentRun" else self._others
        among.add(lines)
        self.begun += kind == "AgentRun"
        try:
            while (text := await lines.get()) is not None:
                await answer.write(text.encode())
        finally:
            among.discard(lines)
        return answer


def _group(group: str, version: str) -> dict[str, Any]:
    named = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [named], "preferredVersion": named}


@asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[tuple[ApiServer, Path]]:
    """Serve on a free port; yields the server and a kubeconfig for it."""
    server = ApiServer()
    app = web.Application()
    for path in ("/api", "/apis", *_KINDS):
        app.router.add_get(path, server._discovery)
    for path, (_, plural) in _KINDS.items():
        app.router.add_get(f"{path}/{plural}", server._objects)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    try:
        yield server, kubeconfig
    finally:
        server.close()
        await runner.cleanup()
