"""Kill both agents before and after each of their effects. The test of the plain one is red: see docs/tutorial.md."""

from collections.abc import Callable
from typing import Any

import httpx

from examples.tutorial import after, before
from stepfence import Run

PLAN = [{"id": "lookup-order", "action": "Read"}, {"id": "refund", "action": "Payment"}, {"id": "notify", "action": "Create"}]


def provider(request: httpx.Request) -> httpx.Response:
    """Stand for the provider. It honours no key, so that nothing but the ledger prevents a repeat."""
    if request.method == "GET":
        return httpx.Response(200, json={"id": "4711", "amount": 4200, "customer": "ada@example.com"})
    return httpx.Response(201, json={"id": "new"})


def test_before(drive: Callable[..., Any]) -> None:
    """The agent without steps."""

    async def agent(run: Run, http: httpx.AsyncClient) -> None:
        await before.agent(run.input["order"], http)

    drive(agent, crashes="every", input={"order": "4711"}, provider=provider)


def test_after(drive: Callable[..., Any]) -> None:
    """The agent with steps."""
    drive(after.agent, crashes="every", input={"order": "4711"}, plan=PLAN, provider=provider)
