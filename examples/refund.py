"""Look up an order, pay it back, tell the customer. The pod may be killed anywhere: nothing is paid twice behind your back."""

import asyncio
import os
import socket
from typing import Any

import httpx
from pydantic import BaseModel

import stepfence
from stepfence import Action, Step

PROVIDER = os.environ["PROVIDER_URL"]


class Order(BaseModel):
    """What the provider knows about an order; `amount` in the smallest unit of the currency."""

    id: str
    amount: int
    currency: str
    customer: str


class Refund(BaseModel):
    """What the provider made."""

    id: str
    amount: int


def headers(step: Step) -> dict[str, str]:
    """The key that stays the same for every attempt of a step, and for the provider's log who calls."""
    run = f"{os.environ['STEPFENCE_NAMESPACE']}/{os.environ['STEPFENCE_RUN']}"
    return {
        "Idempotency-Key": step.key,
        "Stepfence-Run": run,
        "Stepfence-Step": step.id,
        "Stepfence-Pod": socket.gethostname(),
    }


async def main() -> None:
    """The agent."""
    async with stepfence.connect() as run, httpx.AsyncClient(base_url=PROVIDER) as http:

        async def look_up(payload: Any, step: Step) -> Any:
            answer = await http.get(f"/orders/{payload['order']}", headers=headers(step), timeout=step.time_left)
            stepfence.raise_for_status(answer)
            return answer.json()

        async def post(payload: Any, step: Step) -> Any:
            path = {"refund": "/refunds", "notify": "/notifications"}[step.id]
            # From here on nobody knows whether it happened, until the provider has answered.
            async with step.sending():
                answer = await http.post(path, json=payload, headers=headers(step), timeout=step.time_left)
                # An answer such as 402 or 422 says that nothing happened: the step is Failed, not in doubt.
                stepfence.raise_for_status(answer)
            return answer.json()

        order = await run.step("lookup-order", Action.READ, {"order": run.input["order"]}, look_up, result=Order)
        wanted = {"order": order.id, "amount": order.amount, "currency": order.currency}
        # A person who answers that it happened need not say with what result.
        refund: Refund | None = await run.step("refund", Action.PAYMENT, wanted, post, result=Refund | None)
        number = refund.id if refund else "see your statement"
        await run.step("notify", Action.CREATE, {"to": order.customer, "text": f"We paid back order {order.id}: {number}."}, post)
        await run.finish({"refund": refund.id if refund else None})


if __name__ == "__main__":
    asyncio.run(main())
