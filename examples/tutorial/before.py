"""Pay an order back and tell the customer. Killed at the wrong moment and started again, it pays twice."""

import asyncio
import os
from typing import Any

import httpx


async def agent(order_id: str, http: httpx.AsyncClient) -> None:
    """The agent."""

    async def look_up(order_id: Any) -> Any:
        answer = await http.get(f"/orders/{order_id}")
        answer.raise_for_status()
        return answer.json()

    async def pay(refund: Any) -> Any:
        answer = await http.post("/refunds", json=refund)
        answer.raise_for_status()
        return answer.json()

    async def tell(message: Any) -> Any:
        answer = await http.post("/notifications", json=message)
        answer.raise_for_status()
        return answer.json()

    order = await look_up(order_id)
    await pay({"order": order["id"], "amount": order["amount"]})
    await tell({"to": order["customer"], "text": f"We paid back your order {order['id']}."})


async def main() -> None:
    """Start it."""
    async with httpx.AsyncClient(base_url=os.environ["PROVIDER_URL"], timeout=60) as http:
        await agent("4711", http)


if __name__ == "__main__":
    asyncio.run(main())
