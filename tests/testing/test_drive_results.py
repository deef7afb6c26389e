"""Agents whose steps return what JSON cannot carry."""

from typing import Any

import httpx
import pytest

import stepfence
from stepfence import Action, Run, Step
from stepfence.testing import drive
from tests.testing.agents import PAYMENT
from tests.testing.test_drive_wrong import red

Client = httpx.AsyncClient


@pytest.mark.parametrize("result", ["caf\udce9", b"\xff\xd8", float("nan")], ids=["text", "bytes", "no number"])
async def test_a_result_that_cannot_be_kept_is_told_and_no_person_is_asked(result: Any) -> None:
    async def agent(run: Run, http: Client) -> None:
        async def refund(_payload: Any, step: Step) -> Any:
            async with step.sending():
                await http.post("/refunds")
            return {"id": result}

        await run.step("refund", Action.PAYMENT, {}, refund)
        await run.finish()

    error = await red(agent, plan=PAYMENT)
    told = " ".join(str(error).split())
    assert "ResultNotReadable: step 'refund': Done, but what it returned could not be kept as it was" in told
    assert "a person had to say" not in told
    assert error.report.effects == {"POST /refunds": 1}


async def test_a_result_that_cannot_be_kept_is_no_harm_to_an_agent_that_goes_on_with_what_is_recorded() -> None:
    async def agent(run: Run, http: Client) -> None:
        async def refund(_payload: Any, step: Step) -> Any:
            async with step.sending():
                await http.post("/refunds", headers={"Idempotency-Key": step.key})
            return {"text": "caf\udce9"}

        try:
            await run.step("refund", Action.PAYMENT, {}, refund)
        except stepfence.ResultNotReadable as known:
            await run.finish(known.recorded)

    report = await drive(agent, plan=PAYMENT)
    assert report.effects == {"POST /refunds": 1}
