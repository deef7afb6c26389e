"""Whether a function marks is read from its code: what looks like a mark and is none must not make a payment "not sent"."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from stepfence import Step
from stepfence.sdk.step import marks_sending
from tests.sdk.clients import URL, Provider
from tests.sdk.payments import Perform, in_doubt


class Proxy:
    """Stands before a function as decorators of wrapt do: it has the function's class, code and signature, and runs code of its own."""

    def __init__(self, wrapped: Perform, before: Callable[[], Any]) -> None:
        self.wrapped = wrapped
        self.before = before

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.wrapped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    async def __call__(self, payload: Any, step: Step) -> Any:
        await self.before()
        return await self.wrapped(payload, step)


class PayingPartial(functools.partial[Any]):
    """A partial that runs code of its own."""

    before: Any = None

    async def __call__(self, /, *args: Any, **more: Any) -> Any:
        await self.before()
        return await super().__call__(*args, **more)


class Campaign:
    """Has a step, which is none of ours."""

    class step:  # noqa: N801
        @staticmethod
        def sending() -> bool:
            return True


async def _marked(payload: Any, step: Step) -> Any:
    order = payload["order"]
    async with step.sending():
        return order


@pytest.mark.parametrize("how", ["proxy", "callable with a proxy", "partial"])
async def test_what_a_stand_in_sends_is_not_covered_by_the_mark_of_what_it_stands_for(how: str) -> None:
    provider = Provider(httpx.Response(200))

    async def post() -> None:
        async with provider.client() as http:
            await http.post(URL)

    class Paying:
        __call__ = Proxy(_marked, post)

    partial = PayingPartial(_marked)
    partial.before = post
    stand_ins: dict[str, Perform] = {"proxy": Proxy(_marked, post), "callable with a proxy": Paying(), "partial": partial}
    await in_doubt(stand_ins[how], provider)


async def test_a_step_of_another_object_marks_nothing() -> None:
    provider, campaign = Provider(httpx.Response(200)), Campaign()

    async def pay(_payload: Any, step: Step) -> Any:
        async with provider.client(headers={"Idempotency-Key": step.key}) as http:
            await http.post(URL)
        if campaign.step.sending():
            raise KeyError("receipt")

    await in_doubt(pay, provider)


def _by_assignment(payload: Any, step: Any) -> Any:
    step = payload.step
    return step.sending()


def _by_walrus(payload: Any, step: Any) -> Any:
    return (step := payload.step) and step.sending()


def _by_loop(payload: Any, step: Any) -> Any:
    for step in payload:  # noqa: PLR1704
        step.sending()


def _by_inner_function(payload: Any, step: Any) -> Any:
    def other() -> None:
        nonlocal step
        step = payload.step

    other()
    return step.sending()


def _by_comprehension(payload: Any, step: Any) -> Any:
    return [step.sending() for step in payload]


def _other_order(step: Any, payload: Any) -> Any:
    return payload or step.sending()


def _with_a_signature_that_is_none(*given: Any) -> Any:
    step = given[0]
    return step.sending()


_with_a_signature_that_is_none.__signature__ = inspect.signature(_marked)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "perform", [_by_assignment, _by_walrus, _by_loop, _by_inner_function, _by_comprehension, _other_order, _with_a_signature_that_is_none]
)
def test_a_name_that_may_be_another_object_by_then_marks_nothing(perform: Perform) -> None:
    assert not marks_sending(perform)


def _in_lambda(payload: Any, step: Any) -> Any:
    return functools.reduce(lambda _done, _part: step.sending(), payload)


class _Marking:
    async def __call__(self, payload: Any, step: Any) -> Any:
        async with step.sending():
            return payload

    async def pay(self, payload: Any, step: Any) -> Any:
        async with step.sending():
            return payload


@pytest.mark.parametrize(
    "perform",
    [
        _marked,
        _in_lambda,
        _Marking(),
        _Marking().pay,
        functools.partial(_Marking.pay, _Marking()),
        lambda _payload, at: at.sending(),
    ],
)
def test_these_mark(perform: Perform) -> None:
    assert marks_sending(perform)
