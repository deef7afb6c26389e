"""A sure failure is told whatever pause comes with it: `Retry-After` of a provider, `retry_after` of a program."""

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepfence
from stepfence import Action, Step
from stepfence.sdk.classify import classify_httpx
from stepfence.sdk.errors import pause_of
from stepfence.testing import MemoryCluster
from tests.sdk import clients
from tests.sdk.gateway import ScriptedGateway, connection
from tests.sdk.virtual import virtual_time

POST = httpx.Request("POST", "http://provider.test/refunds")
DAY = 86_400.0
PLAN: list[dict[str, Any]] = [{"id": "refund", "action": "Payment"}]


def in_seconds(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


SAID: list[tuple[str, float | None]] = [
    ("7", 7),
    ("0", 0),
    ("-3", 0),
    ("999999999999", DAY),
    ("9" * 400, DAY),
    ("1e400", DAY),
    ("inf", DAY),
    ("-Infinity", 0),
    ("nan", None),
    ("Fri, 31 Dec 2099 23:59:59 GMT", DAY),
    ("Fri, 31 Dec 2099 23:59:59", DAY),
    ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
    ("Fri, 31 Dec 99999 23:59:59 GMT", None),
    ("Fri, 31 Dec 2099 23:59:59 +99999999", None),
    ("Fri, 31 Dec 2099 23:59:59 +99999999999999999999", None),
    ("soon", None),
    ("", None),
]


@pytest.mark.parametrize(("said", "pause"), SAID)
def test_a_retry_after_of_any_size_is_a_pause_that_can_be_waited_for(said: str, pause: float | None) -> None:
    answer = httpx.Response(429, request=POST, headers={"retry-after": said})
    verdict = classify_httpx(httpx.HTTPStatusError("429", request=POST, response=answer))
    assert verdict is not None
    assert verdict.retry_after == pause


def test_a_date_soon_is_waited_for() -> None:
    answer = httpx.Response(503, request=POST, headers={"retry-after": in_seconds(100)})
    assert classify_httpx(httpx.HTTPStatusError("503", request=POST, response=answer)) is None
    answer = httpx.Response(429, request=POST, headers={"retry-after": in_seconds(100)})
    with pytest.raises(stepfence.NotApplied) as refused:
        stepfence.raise_for_status(answer)
    assert refused.value.retry_after == pytest.approx(100, abs=5)


@given(st.text())
def test_a_retry_after_of_any_text_is_no_error(said: str) -> None:
    class Answer:
        status_code = 429
        headers = {"retry-after": said}  # noqa: RUF012

    with pytest.raises(stepfence.NotApplied):
        stepfence.raise_for_status(Answer())


GIVEN: list[tuple[Any, float | None]] = [
    (None, None),
    (0, 0),
    (2.5, 2.5),
    (-1, 0),
    (math.nan, None),
    (math.inf, DAY),
    (-math.inf, 0),
    (10**400, DAY),
    (-(10**400), 0),
    ("30", 30),
    ("soon", None),
    (Decimal("1.5"), 1.5),
    (timedelta(minutes=5), 300),
    (True, None),
    ([], None),
    (object(), None),
]


@pytest.mark.parametrize(("given_", "pause"), GIVEN, ids=[repr(row[0])[:20] for row in GIVEN])
def test_what_a_program_gives_as_a_pause_is_bounded(given_: Any, pause: float | None) -> None:
    assert pause_of(given_) == pause
    assert stepfence.NotApplied("no", retry_after=given_).retry_after == pause
    later = stepfence.NotApplied("no")
    later.retry_after = given_
    assert later.retry_after == pause


class Declined(stepfence.NotApplied):
    """A program's own, which calls no `__init__` of ours."""

    reason = "Declined"

    def __init__(self, detail: str) -> None:
        Exception.__init__(self, detail)


class Odd(stepfence.NotApplied):
    def __init__(self, detail: str) -> None:
        super().__init__(detail, reason=None, retry_after="1e400", final=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (lambda: stepfence.NotApplied("no", final=True, retry_after=math.inf), ("NotApplied", "no", DAY)),
        (lambda: stepfence.NotApplied("no", final=True, retry_after=math.nan, reason=402), ("NotApplied", "no", None)),  # type: ignore[arg-type]
        (lambda: stepfence.NotApplied(final=True, reason=""), ("NotApplied", "", None)),
        (lambda: Declined("no"), ("Declined", "no", None)),
        (lambda: Odd("no"), ("NotApplied", "no", DAY)),
    ],
)
@virtual_time
async def test_what_a_program_says_of_its_refusal_is_told_as_far_as_it_is_of_use(error: Any, told: Any, tmp_path: Path) -> None:
    async def refuses(payload: Any, step: Step) -> Any:
        raise error()

    gateway = ScriptedGateway({"refund": "Payment"})
    async with connection(gateway, tmp_path) as run:
        with pytest.raises(stepfence.StepFailed):
            await run.step("refund", Action.PAYMENT, {}, refuses)
        await run.finish()
    (body,) = gateway.bodies("steps/refund/fail")
    assert (body["reason"], body["message"], body.get("retryAfterSeconds")) == told


@pytest.mark.parametrize("said", [row[0] for row in SAID])
async def test_a_refund_that_was_surely_not_applied_is_no_question_however_long_the_provider_wants_to_be_left_alone(said: str) -> None:
    async def refund(payload: Any, step: Step) -> Any:
        async with step.sending():
            stepfence.raise_for_status(await clients.post(httpx.Response(429, headers={"retry-after": said})))

    async with MemoryCluster() as cluster:
        run = await cluster.create("refund-4711", plan=PLAN, input={})
        worker = await run.worker()
        async with worker.connect() as connected:
            with pytest.raises(stepfence.StepFailed, match="HTTP429"):
                await connected.step("refund", Action.PAYMENT, {}, refund)
            await connected.finish()
        assert run.status["ledger"]["refund"]["state"] == "Failed"
        assert run.questions == {}
