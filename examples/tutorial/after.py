"""Pay an order back and tell the customer. Killed anywhere and started again, it pays nothing twice behind your back."""

import asyncio
import os
from typing import Any

import httpx

import stepfence
from stepfence import Action, Run, Step


async def agent(run: Run, http: httpx.AsyncClient) -> None:
    """The agent."""

    async def look_up(order_id: Any, step: Step) -> Any:
        answer = await http.get(f"/orders/{order_id}", timeout=step.time_left)
        stepfence.raise_for_status(answer)
        return answer.json()

    async def pay(refund: Any, step: Step) -> Any:
        async with step.sending():
            answer = await http.post("/refunds", json=refund, headers={"Idempotency-Key": step.key}, timeout=step.time_left)
            stepfence.raise_for_status(answer)
        return answer.json()

    async def tell(message: Any, step: Step) -> Any:
        async with step.sending():
            answer = await http.post("/notifications", json=message, headers={"Idempotency-Key": step.key}, timeout=step.time_left)
            stepfence.raise_for_status(answer)
        return answer.json()

    order = await run.step("lookup-order", Action.READ, run.input["order"], look_up)
    await run.step("refund", Action.PAYMENT, {"order": order["id"], "amount": order["amount"]}, pay)
    await run.step("notify", Action.CREATE, {"to": order["customer"], "text": f"We paid back your order {order['id']}."}, tell)
    await run.finish()


async def main() -> None:
    """Start it."""
    async with stepfence.connect() as run, httpx.AsyncClient(base_url=os.environ["PROVIDER_URL"]) as http:
        await agent(run, http)


if __name__ == "__main__":
    asyncio.run(main())
