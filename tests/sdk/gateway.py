"""A scripted gateway: it keeps a small ledger of its own, and does for each call what the test lays down first."""

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from stepfence.core.canonical import canonical, digest
from stepfence.sdk import Options, Settings
from stepfence.sdk.connection import Connection

BASE = "/v1/namespaces/support/agentruns/refund-4711"
Json = dict[str, Any]


@dataclass
class Problem:
    """A refusal."""

    code: str
    status: int = 409
    detail: str = "because"
    more: Json | None = None

    def response(self) -> httpx.Response:
        body = {"type": f"https://stepfence.dev/problems/{self.code}", "title": self.code, "detail": self.detail}
        return httpx.Response(
            self.status,
            content=json.dumps({**body, "status": self.status, **(self.more or {})}),
            headers={"content-type": "application/problem+json"},
        )


class LostReply:
    """The call takes effect, its reply is lost."""


class NoConnection:
    """The call does not arrive."""


@dataclass
class Held:
    """The call arrives, and is answered when the event is set."""

    until: asyncio.Event


Scripted = Json | Problem | LostReply | NoConnection | Held | httpx.Response


class ScriptedGateway:
    """`calls` holds what was asked, in order: (route, body)."""

    def __init__(self, actions: dict[str, str] | None = None, *, timeout: float = 60) -> None:
        self.calls: list[tuple[str, Json]] = []
        self.plan: Json | None = None
        if actions is not None:
            steps = [{"id": name, "action": action, "timeoutSeconds": timeout} for name, action in actions.items()]
            self.plan = {"digest": "sha256:0", "steps": steps}
        self.timeout = timeout
        self.token = 0
        self.proof: str | None = None
        self.attempts: dict[str, int] = defaultdict(int)
        self.state: dict[str, Json] = {}
        self.stop: Any = None
        self.lease = 60.0
        self._script: dict[str, deque[Scripted]] = defaultdict(deque)
        self._seen: dict[str, Json] = {}
        self._waiters: list[tuple[str, int, asyncio.Event]] = []

    def on(self, route: str, *answers: Scripted) -> None:
        """Answer the next calls of this route so, then by the ledger again."""
        self._script[route].extend(answers)

    def routes(self) -> list[str]:
        return [route for route, _body in self.calls]

    def bodies(self, route: str) -> list[Json]:
        return [body for called, body in self.calls if called == route]

    def __len__(self) -> int:
        return len(self.calls)

    async def called(self, route: str, times: int = 1) -> None:
        """Wait until the route was called so often."""
        event = asyncio.Event()
        self._waiters.append((route, times, event))
        self._wake()
        async with asyncio.timeout(300):
            await event.wait()

    def _wake(self) -> None:
        for route, times, event in self._waiters:
            if len(self.bodies(route)) >= times:
                event.set()

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self.answer)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path.startswith(BASE + "/"), request.url.path
        assert request.headers["authorization"].startswith("Bearer ")
        route = request.url.path.removeprefix(BASE + "/")
        body = json.loads(request.content) if request.content else {}
        script = self._script[route]
        planned = script.popleft() if script else None
        if isinstance(planned, NoConnection):
            raise httpx.ConnectError("refused", request=request)
        self.calls.append((route, body))
        self._wake()
        if isinstance(planned, Held):
            await planned.until.wait()
        if isinstance(planned, Problem):
            return planned.response()
        if isinstance(planned, httpx.Response):
            return planned
        if isinstance(planned, dict):
            return httpx.Response(200, json=planned)
        reply = self._by_ledger(route, body)
        if isinstance(planned, LostReply):
            raise httpx.ReadTimeout("lost", request=request)
        return reply.response() if isinstance(reply, Problem) else httpx.Response(200, json=reply)

    def _by_ledger(self, route: str, body: Json) -> Json | Problem:
        """A repeated request id gets the recorded answer."""
        request_id = body.get("requestID")
        if request_id is None:
            return Problem("not-found", 404)
        if request_id not in self._seen:
            self._seen[request_id] = self._decide(route, body)
        return self._seen[request_id]

    def _decide(self, route: str, body: Json) -> Json:
        if route.startswith("steps/"):
            _steps, step, verb = route.split("/")
            return getattr(self, f"_{verb}")(step, body)  # type: ignore[no-any-return]
        simple: dict[str, Callable[[], Json]] = {
            "claim": self._claim,
            "renew": lambda: {"leaseSeconds": self.lease, "stop": self.stop},
            "release": lambda: {"released": True},
            "drain": lambda: {"draining": True},
            "finish": lambda: {"outcome": "Succeeded"},
            "fail": lambda: {"outcome": "Failed"},
            "halt": lambda: {"question": "run.q1", "patch": "kubectl patch …"},
        }
        if route == "plan":
            self.plan = {"digest": "sha256:1", "steps": [{"action": "Create", **step} for step in body["steps"]]}
            return {"plan": self.plan, "token": self.token}
        return simple[route]()

    def _claim(self) -> Json:
        self.token += 1
        return {
            "token": self.token,
            "tokenProof": self.proof,
            "runID": "support/refund-4711",
            "namespace": "support",
            "name": "refund-4711",
            "uid": "u1",
            "phase": "Running",
            "input": {"order": "4711"},
            "plan": self.plan,
            "ledger": {},
            "leaseSeconds": self.lease,
            "marginSeconds": 10,
            "remaining": {"bytes": 1000, "steps": 200},
            "stop": self.stop,
        }

    def _begin(self, step: str, body: Json) -> Json:
        if step in self.state:
            return self.state[step]
        self.attempts[step] += 1
        return go(self.attempts[step], body["payload"], timeout=self.timeout, key=f"sf1-{step}")

    def _complete(self, step: str, body: Json) -> Json:
        self.state[step] = done(body.get("result"), body["attempt"])
        return self.state[step]

    def _fail(self, step: str, body: Json) -> Json:
        settled = {"outcome": "Failed", "reason": body["reason"], "message": body["message"], "attempt": body["attempt"]}
        self.state[step] = settled
        return settled

    def _lose(self, step: str, body: Json) -> Json:
        return {"outcome": "Unknown"}

    def _probe(self, step: str, body: Json) -> Json:
        if "verdict" not in body:
            return {"outcome": "Go", "asOf": "2026-01-02T03:04:05.678Z", "retryAfterSeconds": 0}
        if body["verdict"] == "Happened":
            self.state[step] = done(body.get("result"), body["attempt"])
            return self.state[step]
        self.state.pop(step, None)
        return {"outcome": "Failed" if body["verdict"] == "DidNotHappen" else "Unknown"}


def go(attempt: int, payload: Any, *, timeout: float = 60, left: float | None = None, key: str = "sf1k", **more: Any) -> Json:
    return {
        "outcome": "Go",
        "attempt": attempt,
        "key": key,
        "payload": payload,
        "payloadDigest": "sha256:0",
        "payloadChanged": False,
        "timeLeftSeconds": timeout if left is None else left,
        "timeoutSeconds": timeout,
        **more,
    }


def done(result: Any, attempt: int = 1, **more: Any) -> Json:
    text = canonical(result)
    return {
        "outcome": "Done",
        "result": result,
        "resultDigest": digest(text),
        "resultBytes": len(text),
        "resultStored": True,
        "payloadChanged": False,
        "attempt": attempt,
        **more,
    }


def probe(attempt: int, payload: Any, retry_after: float = 0) -> Json:
    base = {"outcome": "Probe", "attempt": attempt, "key": "sf1k", "payload": payload, "payloadDigest": "sha256:0"}
    return {**base, "retryAfterSeconds": retry_after}


def settings(folder: Path, state_dir: Path | None = None) -> Settings:
    token = folder / "token"
    token.write_text("pod-token\n")
    return Settings(
        gateway="http://gateway.test",
        namespace="support",
        run="refund-4711",
        token_file=token,
        run_uid="u1",
        worker="1",
        state_dir=state_dir,
    )


def connection(gateway: ScriptedGateway, folder: Path, *, state_dir: Path | None = None, **options: Any) -> Connection:
    """Connect to the scripted gateway; stops come out as themselves."""
    how = Options(**{"exit_on_stop": False, "handle_sigterm": False, **options})
    return Connection(settings(folder, state_dir), how, transport=gateway.transport)
