"""Steps that agents under test are made of."""

from __future__ import annotations

from typing import Any

import httpx

from stepfence import Action, Run, Step

PAYMENT = [{"id": "refund", "action": "Payment"}]
PAYMENT_AND_MAIL = [*PAYMENT, {"id": "mail", "action": "Create"}]


def sender(http: httpx.AsyncClient, path: str, method: str = "POST") -> Any:
    """The function of a step that sends its payload there, as it should be done."""

    async def send(payload: Any, step: Step) -> Any:
        async with step.sending():
            answer = await http.request(method, path, json=payload, headers={"Idempotency-Key": step.key})
        return answer.json()

    return send


async def refund_and_mail(run: Run, http: httpx.AsyncClient) -> None:
    """An agent that is right."""
    refund = await run.step("refund", Action.PAYMENT, {"order": run.input["order"]}, sender(http, "/refunds"))
    await run.step("mail", Action.CREATE, {"refund": refund["id"]}, sender(http, "/mails"))
    await run.finish(refund)


async def plain(_run: Run, http: httpx.AsyncClient) -> None:
    """An agent that knows nothing of steps."""
    refund = (await http.post("/refunds", json={"order": "4711"})).json()
    await http.post("/mails", json={"refund": refund["id"]})
