"""What wrong tokens cost the API server, and that good ones do not pay for them."""

import asyncio

import pytest

from stepfence.core.errors import Code, Refused, Unknown
from stepfence.ports import Caller
from stepfence.stores.rates import Rates
from stepfence.stores.reviews import ReviewLimits, Reviews
from stepfence.testing.clock import FakeClock

LIMITS = ReviewLimits(per_second=4, per_address=1)
AT_ONCE = 5  # of one address


class ApiServer:
    """Knows tokens that begin with `good`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away = False
        self.held: asyncio.Event | None = None
        self.entered = asyncio.Event()

    async def __call__(self, bearer: str) -> Caller:
        self.asked.append(bearer)
        self.entered.set()
        if self.held is not None:
            await self.held.wait()
        if self.away:
            raise Unknown("away")
        if not bearer.startswith("good"):
            raise Refused(Code.UNAUTHENTICATED, "no")
        return Caller("support", bearer, f"{bearer}-uid")


@pytest.fixture
def api() -> ApiServer:
    return ApiServer()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def reviews(api: ApiServer, clock: FakeClock) -> Reviews:
    return Reviews(api, clock, LIMITS)


async def code(reviews: Reviews, bearer: str, address: str = "10.0.0.1") -> Code | None:
    try:
        await reviews.caller(bearer, address)
    except Refused as refused:
        return refused.code
    return None


async def test_a_good_token_is_asked_about_once_a_minute(reviews: Reviews, api: ApiServer, clock: FakeClock) -> None:
    for _ in range(3):
        assert (await reviews.caller("good", "10.0.0.1")).pod == "good"
    clock.advance(60)
    await reviews.caller("good", "10.0.0.1")
    assert api.asked == ["good", "good"]


async def test_a_wrong_token_is_asked_about_once_in_five_seconds(reviews: Reviews, api: ApiServer, clock: FakeClock) -> None:
    assert {await code(reviews, "bad") for _ in range(100)} == {Code.UNAUTHENTICATED}
    assert (len(api.asked), reviews.remembered) == (1, 99)
    clock.advance(5)
    assert await code(reviews, "bad") is Code.UNAUTHENTICATED
    assert len(api.asked) == 2


async def test_wrong_tokens_of_one_address_cost_a_bounded_number_of_reviews_and_hurt_no_other(
    reviews: Reviews, api: ApiServer, clock: FakeClock
) -> None:
    answers = [await code(reviews, f"bad-{number}") for number in range(1000)]
    assert answers == [Code.UNAUTHENTICATED] * AT_ONCE + [Code.OVER_BUDGET] * (1000 - AT_ONCE)
    assert (len(api.asked), reviews.limited) == (AT_ONCE, 1000 - AT_ONCE)
    assert await code(reviews, "good", "10.0.0.2") is None
    clock.advance(2)
    again = [await code(reviews, f"worse-{number}") for number in range(1000)]
    assert again.count(Code.UNAUTHENTICATED) == 2


async def test_a_good_token_behind_the_same_address_is_served_as_before_and_a_new_one_as_soon_as_there_is_room(
    reviews: Reviews, clock: FakeClock
) -> None:
    assert await code(reviews, "good") is None
    for number in range(10):
        await code(reviews, f"bad-{number}")
    assert await code(reviews, "good") is None
    with pytest.raises(Refused) as limited:
        await reviews.caller("good-new", "10.0.0.1")
    assert (limited.value.code, limited.value.retry_after) == (Code.OVER_BUDGET, 1.0)
    clock.advance(limited.value.retry_after or 0)
    assert await code(reviews, "good-new") is None


async def test_many_addresses_together_cost_no_more_than_all_may(reviews: Reviews, api: ApiServer) -> None:
    for number in range(500):
        await code(reviews, f"bad-{number}", f"10.0.{number // 250}.{number % 250}")
    assert len(api.asked) == LIMITS.per_second * 5


async def test_good_tokens_are_not_counted_however_many_come_from_one_address(reviews: Reviews, api: ApiServer) -> None:
    assert {await code(reviews, f"good-{number}") for number in range(1000)} == {None}
    assert len(api.asked) == 1000


async def test_calls_with_one_token_share_one_review_and_one_that_is_given_up_takes_nothing_from_the_others(
    reviews: Reviews, api: ApiServer
) -> None:
    api.held = asyncio.Event()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        calls = [group.create_task(reviews.caller("good", "10.0.0.1")) for _ in range(32)]
        await api.entered.wait()
        calls[0].cancel()
        api.held.set()
    assert [call.result().pod for call in calls[1:]] == ["good"] * 31
    assert api.asked == ["good"]


async def test_an_api_server_that_does_not_answer_says_nothing_of_a_token(reviews: Reviews, api: ApiServer) -> None:
    api.away = True
    with pytest.raises(Unknown):
        await reviews.caller("good", "10.0.0.1")
    api.away = False
    assert await code(reviews, "good") is None


async def test_wrong_tokens_push_no_good_one_out(reviews: Reviews, api: ApiServer, clock: FakeClock) -> None:
    unlimited = Reviews(api, clock, ReviewLimits(per_second=10_000, per_address=10_000))
    assert await code(unlimited, "good") is None
    for number in range(5000):
        await code(unlimited, f"bad-{number}")
    before = len(api.asked)
    assert await code(unlimited, "good") is None
    assert len(api.asked) == before


def test_a_rate_lets_a_burst_pass_and_then_so_many_a_second() -> None:
    rates: Rates[str] = Rates(10, 3)
    assert [rates.take("a", 0.0) for _ in range(4)] == [0, 0, 0, pytest.approx(0.1)]
    assert rates.take("b", 0.0) == 0
    assert rates.take("a", 0.1) == 0
    assert rates.take("a", 0.1) > 0
    # Waiting for a turn: each one stands behind those before.
    assert [rates.take("a", 0.1, longest=1) for _ in range(3)] == [pytest.approx(0.1 * number) for number in (1, 2, 3)]
    rates.give_back("a")
    assert rates.take("a", 0.1, longest=1) == pytest.approx(0.3)
    assert [rates.take("a", 100.0) for _ in range(3)] == [0, 0, 0]


def test_a_rate_keeps_a_bounded_number_of_keys() -> None:
    rates: Rates[int] = Rates(1, 1, size=10)
    for number in range(1000):
        rates.take(number, 0.0)
    assert len(rates._next) == 10
