"""A worker that does what its run's input says: `{"script": [operation, …]}`.

An operation is one of
    {"step": id, "action": type, "call": route, "body": {…}?, "probe": true?, "pad": bytes?, "huge": bytes?}    one step
    {"parallel": [operation, …]}                                                               steps side by side
    {"plan": [planned step, …]}     {"fail": [reason, message]}     {"halt": [reason, message]}
`pad` makes payload and result so much larger, `huge` the result alone. At the end it finishes with the ids of what its steps brought.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx

import stepfence
from stepfence import Action, CannotTell, DidNotHappen, Happened, Run, Step

PROVIDER = os.environ["PROVIDER_URL"]
NAMESPACE, RUN = os.environ["STEPFENCE_NAMESPACE"], os.environ["STEPFENCE_RUN"]
CALLS = {
    "order": ("GET", "/orders/4711", None),
    "refund": ("POST", "/refunds", {"order": "4711", "amount": 4200}),
    "notification": ("POST", "/notifications", {"to": "someone@example.com", "text": "paid back"}),
    "ticket": ("PUT", "/tickets/17", {"status": "closed"}),
    "record": ("DELETE", "/records/17", None),
}
FOUND_IN = {"refund": ("/refunds", "refunds"), "notification": ("/notifications", "notifications")}


class Agent:
    """Runs one script."""

    def __init__(self, run: Run, http: httpx.AsyncClient) -> None:
        self._run, self._http = run, http
        self.results: dict[str, Any] = {}

    async def perform(self, script: list[dict[str, Any]]) -> None:
        """Run the operations one after the other."""
        for operation in script:
            if "parallel" in operation:
                await asyncio.gather(*(self.perform([each]) for each in operation["parallel"]))
            elif "plan" in operation:
                await self._run.plan(operation["plan"])
            elif "fail" in operation:
                await self._run.fail(*operation["fail"])
            elif "halt" in operation:
                await self._run.halt(*operation["halt"])
            else:
                await self._step(operation)

    async def _step(self, operation: dict[str, Any]) -> None:
        method, path, body = CALLS[operation["call"]]
        payload = {"method": method, "path": path, "body": operation.get("body", body)}
        if "pad" in operation:
            payload["pad"] = "x" * operation["pad"]

        async def send(recorded: Any, step: Step) -> Any:
            async with step.sending():
                answer = await self._http.request(
                    recorded["method"], recorded["path"], json=recorded["body"], headers=_headers(step), timeout=step.time_left
                )
                stepfence.raise_for_status(answer)
            result = answer.json()
            padding = recorded.get("pad") or "x" * operation.get("huge", 0)
            return {**result, "pad": padding} if padding else result

        probe = self._probe(operation["call"]) if operation.get("probe") else None
        result = await self._run.step(operation["step"], Action(operation["action"]), payload, send, probe=probe)
        self.results[operation["step"]] = result

    def _probe(self, call: str) -> Any:
        path, name = FOUND_IN[call]

        async def ask(_payload: Any, step: Step) -> Happened | DidNotHappen | CannotTell:
            answer = await self._http.get(path, params={"key": step.key}, headers=_headers(step), timeout=5)
            if answer.is_error:
                return CannotTell(f"HTTP {answer.status_code}")
            found = answer.json()[name]
            return Happened(found[0]) if found else DidNotHappen()

        return ask


def _headers(step: Step) -> dict[str, str]:
    names = {"Stepfence-Run": f"{NAMESPACE}/{RUN}", "Stepfence-Step": step.id, "Stepfence-Pod": os.uname().nodename}
    return {"Idempotency-Key": step.key, **names}


async def main() -> None:
    """Claim the run and perform its script."""
    (Path(os.environ["STEPFENCE_STATE_DIR"]) / "agent.pid").write_text(str(os.getpid()))
    # After an outage its reports come soon, for tests wait for them.
    options = stepfence.Options(backoff_cap=1.0)
    async with stepfence.connect(options=options) as run, httpx.AsyncClient(base_url=PROVIDER) as http:
        agent = Agent(run, http)
        await agent.perform(run.input["script"])
        await run.finish({step: (result or {}).get("id") for step, result in agent.results.items()})


asyncio.run(main())
