"""The provider that effects are counted by: it must itself be right about what happened and what did not."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from e2e.provider.app import KEY_REUSED, LOG_FULL, Provider, make_app
from e2e.provider.client import ProviderClient, matcher
from e2e.provider.journal import Journal
from e2e.provider.server import running
from e2e.provider.wire import Entry, Fault, Happening, Route

REFUND = {"order": "4711", "amount": 4200}
SECONDS = 10.0


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with running() as address:
        yield address


@pytest.fixture
async def control(url: str) -> AsyncIterator[ProviderClient]:
    async with ProviderClient(url) as client:
        yield client


@pytest.fixture
async def worker(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as client:
        yield client


def keyed(key: str, **more: str) -> dict[str, str]:
    return {"Idempotency-Key": key, **more}


async def test_each_call_leaves_request_effect_and_answer_in_order(control: ProviderClient, worker: httpx.AsyncClient) -> None:
    headers = keyed("k1", **{"Stepfence-Run": "refund-4711", "Stepfence-Step": "refund", "Stepfence-Pod": "pod-1"})
    answer = await worker.post("/refunds", json=REFUND, headers=headers)
    entries = (await control.log()).entries
    assert answer.status_code == 201
    assert [entry.happening for entry in entries] == [Happening.REQUEST, Happening.EFFECT, Happening.ANSWER]
    assert [entry.seq for entry in entries] == [1, 2, 3]
    assert {(e.request, e.route, e.key, e.run, e.step, e.pod) for e in entries} == {
        (1, Route.CREATE_REFUND, "k1", "refund-4711", "refund", "pod-1")
    }
    assert entries[1].body == answer.json()
    assert entries[2].status == 201


async def test_a_known_key_gets_the_first_answer_and_no_second_effect(control: ProviderClient, worker: httpx.AsyncClient) -> None:
    first = await worker.post("/refunds", json=REFUND, headers=keyed("k1"))
    second = await worker.post("/refunds", json=REFUND, headers=keyed("k1"))
    assert second.json() == first.json()
    assert len(await control.effects(Route.CREATE_REFUND, key="k1")) == 1
    assert len(await control.entries(Happening.REPLAY, key="k1")) == 1


async def test_two_calls_at_once_with_one_key_make_one_effect(control: ProviderClient, worker: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(
        *(worker.post("/refunds", json=REFUND, headers=keyed("k1")) for _ in range(8)),
    )
    assert len({answer.text for answer in answers}) == 1
    assert len(await control.effects(key="k1")) == 1


async def test_a_key_that_is_ignored_makes_an_effect_each_time(control: ProviderClient, worker: httpx.AsyncClient) -> None:
    await control.tell(Route.CREATE_REFUND, honour_key=False, count=None)
    ids = {(await worker.post("/refunds", json=REFUND, headers=keyed("k1"))).json()["id"] for _ in range(2)}
    assert ids == {"re_1", "re_2"}
    assert len(await control.effects(key="k1")) == 2


async def test_a_key_used_for_another_request_is_refused(control: ProviderClient, worker: httpx.AsyncClient) -> None:
    await worker.post("/refunds", json=REFUND, headers=keyed("k1"))
    answer = await worker.post("/refunds", json={**REFUND, "amount": 1}, headers=keyed("k1"))
    assert answer.status_code == KEY_REUSED
    assert len(await control.effects(key="k1")) == 1


async def test_no_key_means_an_effect_each_time(control: ProviderClient, worker: httpx.AsyncClient) -> None:
    for _ in range(2):
        await worker.post("/notifications", json={"to": "a@example.com", "text": "hello"})
    assert len(await control.effects(Route.CREATE_NOTIFICATION)) == 2


@pytest.mark.parametrize(
    ("method", "path", "body", "effects"),
    [
        ("GET", "/orders/4711", None, 0),
        ("PUT", "/tickets/7", {"status": "closed"}, 1),
        ("DELETE", "/records/9", None, 1),
        ("POST", "/notifications", {"to": "a@example.com", "text": "hello"}, 1),
    ],
)
async def test_every_route_answers_and_only_writes_are_effects(
    control: ProviderClient, worker: httpx.AsyncClient, method: str, path: str, body: object, effects: int
) -> None:
    answer = await worker.request(method, path, json=body, headers=keyed("k1"))
    assert answer.is_success
    assert len(await control.effects()) == effects


async def test_the_same_ticket_twice_is_one_ticket(worker: httpx.AsyncClient) -> None:
    for status in ("open", "closed"):
        await worker.put("/tickets/7", json={"status": status})
    assert (await worker.get("/tickets/7")).json() == {"id": "7", "status": "closed"}
    assert (await worker.get("/tickets/8")).status_code == 404


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/refunds", "refunds", REFUND),
        ("/notifications", "notifications", {"to": "a@example.com", "text": "hello"}),
    ],
)
async def test_a_probe_finds_what_was_made_under_a_key(worker: httpx.AsyncClient, path: str, kind: str, body: object) -> None:
    assert (await worker.get(path, params={"key": "k1"})).json() == {kind: []}
    made = await worker.post(path, json=body, headers=keyed("k1"))
    assert (await worker.get(path, params={"key": "k1"})).json() == {kind: [made.json()]}
    assert (await worker.get(path, params={"key": "k2"})).json() == {kind: []}


@pytest.mark.parametrize("status", [402, 503])
async def test_failing_before_prevents_the_effect(control: ProviderClient, worker: httpx.AsyncClient, status: int) -> None:
    await control.tell(Route.CREATE_REFUND, before=Fault(status=status))
    answer = await worker.post("/refunds", json=REFUND, headers=keyed("k1"))
    assert answer.status_code == status
    assert await control.effects() == []
    assert (await worker.post("/refunds", json=REFUND, headers=keyed("k1"))).status_code == 201


async def test_failing_after_hides_an_effect_that_happened(control: ProviderClient, worker: httpx.AsyncClient) -> None:
    await control.tell(Route.CREATE_REFUND, after=Fault(status=500))
    answer = await worker.post("/refunds", json=REFUND, headers=keyed("k1"))
    assert answer.status_code == 500
    assert len(await control.effects(key="k1")) == 1


@pytest.mark.parametrize(("at", "effects"), [("before", 0), ("after", 1)])
async def test_a_dropped_connection_brings_no_answer(control: ProviderClient, worker: httpx.AsyncClient, at: str, effects: int) -> None:
    await control.tell(Route.CREATE_REFUND, **{at: Fault(drop=True)})  # type: ignore[arg-type]
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        await worker.post("/refunds", json=REFUND, headers=keyed("k1"))
    assert len(await control.effects(key="k1")) == effects
    assert len(await control.entries(Happening.DROP, key="k1")) == 1
    assert await control.entries(Happening.ANSWER, key="k1") == []


@pytest.mark.parametrize(("at", "effects"), [("before", 0), ("after", 1)])
async def test_a_hanging_call_goes_on_when_released(control: ProviderClient, worker: httpx.AsyncClient, at: str, effects: int) -> None:
    rule = await control.tell(Route.CREATE_REFUND, **{at: Fault(hang=True)})  # type: ignore[arg-type]
    call = asyncio.create_task(worker.post("/refunds", json=REFUND, headers=keyed("k1")))
    await control.wait_for(matcher(Happening.HANG, key="k1"), seconds=SECONDS)
    assert len(await control.effects(key="k1")) == effects
    assert [state.hanging for state in await control.rules()] == [1]
    await control.release(rule)
    assert (await call).status_code == 201
    assert len(await control.effects(key="k1")) == 1
    assert [state.hanging for state in await control.rules()] == [0]


async def test_the_effect_of_a_caller_that_died_lands_late(control: ProviderClient, url: str) -> None:
    await control.tell(Route.CREATE_REFUND, before=Fault(hang=True))
    async with httpx.AsyncClient(base_url=url) as dying:
        call = asyncio.create_task(dying.post("/refunds", json=REFUND, headers=keyed("k1")))
        await control.wait_for(matcher(Happening.HANG, key="k1"), seconds=SECONDS)
        call.cancel()
        await asyncio.wait({call})
    assert await control.effects() == []
    await control.release()
    await control.wait_for(matcher(Happening.EFFECT, key="k1"), seconds=SECONDS)


async def test_a_release_of_one_rule_leaves_others_hanging(control: ProviderClient, worker: httpx.AsyncClient) -> None:
    first, second = [await control.tell(Route.CREATE_REFUND, key=key, before=Fault(hang=True)) for key in ("a", "b")]
    calls = [asyncio.create_task(worker.post("/refunds", json=REFUND, headers=keyed(key))) for key in ("a", "b")]
    for key in ("a", "b"):
        await control.wait_for(matcher(Happening.HANG, key=key), seconds=SECONDS)
    await control.release(first)
    await calls[0]
    assert [state.hanging for state in await control.rules()] == [0, 1]
    await control.release(second)
    await calls[1]


async def test_a_delay_comes_before_what_it_delays(control: ProviderClient, worker: httpx.AsyncClient) -> None:
    await control.tell(Route.CREATE_REFUND, before=Fault(delay_seconds=0.2))
    await worker.post("/refunds", json=REFUND)
    request, effect, answer = (await control.log()).entries
    assert (effect.time - request.time).total_seconds() >= 0.2
    assert answer.seq == effect.seq + 1


async def test_skip_and_count_choose_the_nth_request(control: ProviderClient, worker: httpx.AsyncClient) -> None:
    await control.tell(Route.CREATE_REFUND, before=Fault(status=503), skip=1, count=2)
    statuses = [(await worker.post("/refunds", json=REFUND)).status_code for _ in range(4)]
    assert statuses == [201, 503, 503, 201]
    state = (await control.rules())[0]
    assert (state.seen, state.applied) == (4, 2)


@pytest.mark.parametrize(
    ("match", "headers"),
    [
        ({"key": "mine"}, {"Idempotency-Key": "mine"}),
        ({"run": "mine"}, {"Stepfence-Run": "mine"}),
        ({"step": "mine"}, {"Stepfence-Step": "mine"}),
    ],
)
async def test_a_rule_acts_on_what_it_names_and_on_nothing_else(
    control: ProviderClient, worker: httpx.AsyncClient, match: dict[str, str], headers: dict[str, str]
) -> None:
    await control.tell(Route.CREATE_REFUND, before=Fault(status=503), count=None, **match)  # type: ignore[arg-type]
    other = dict.fromkeys(headers, "another")
    assert (await worker.post("/refunds", json=REFUND, headers=other)).status_code == 201
    assert (await worker.get("/orders/1", headers=headers)).status_code == 200
    assert (await worker.post("/refunds", json=REFUND, headers=headers)).status_code == 503


async def test_cleared_rules_act_no_more_and_let_hanging_calls_go(control: ProviderClient, worker: httpx.AsyncClient) -> None:
    await control.tell(Route.CREATE_REFUND, before=Fault(hang=True), count=None)
    call = asyncio.create_task(worker.post("/refunds", json=REFUND, headers=keyed("k1")))
    await control.wait_for(matcher(Happening.HANG), seconds=SECONDS)
    await control.clear_rules()
    assert (await call).status_code == 201
    assert (await worker.post("/refunds", json=REFUND, headers=keyed("k2"))).status_code == 201
    assert await control.rules() == []


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"match": {"route": "POST /nothing"}}, "route"),
        ({"match": {"route": "POST /refunds"}, "before": {"hangs": True}}, "hangs"),
        ({"match": {"route": "POST /refunds"}, "after": {"status": 200}}, "status"),
        ({"match": {"route": "POST /refunds"}, "after": {"status": 500, "drop": True}}, "after"),
        ({"match": {"route": "POST /refunds", "count": 0}}, "count"),
    ],
)
async def test_a_rule_that_would_do_nothing_is_refused_by_field(worker: httpx.AsyncClient, rule: object, field: str) -> None:
    answer = await worker.post("/_control", json=rule)
    assert answer.status_code == 422
    assert field in answer.json()["detail"][0]["loc"]


async def test_a_bad_body_is_refused_without_an_effect(control: ProviderClient, worker: httpx.AsyncClient) -> None:
    answer = await worker.post("/refunds", json={"order": "4711"})
    assert answer.status_code == 422
    assert (await control.log()).entries == []


async def test_the_log_goes_on_after_it_was_cleared(control: ProviderClient, worker: httpx.AsyncClient) -> None:
    await worker.post("/refunds", json=REFUND)
    last = (await control.log()).last
    await control.clear_log()
    assert (await control.log()).entries == []
    await worker.post("/refunds", json=REFUND)
    assert [entry.seq for entry in (await control.log(after=last)).entries] == [4, 5, 6]


async def test_waiting_for_what_does_not_come_ends(control: ProviderClient) -> None:
    with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
        await control.wait_for(matcher(Happening.EFFECT), seconds=0.1)


async def test_the_file_holds_the_same_log(tmp_path: Path) -> None:
    file = tmp_path / "effects.jsonl"
    async with running(log_file=file) as url, ProviderClient(url) as control, httpx.AsyncClient(base_url=url) as worker:
        await asyncio.gather(*(worker.post("/refunds", json=REFUND, headers=keyed(f"k{i}")) for i in range(8)))
        entries = (await control.log()).entries
    written = [Entry.model_validate_json(line) for line in file.read_text().splitlines()]
    assert written == entries
    assert len(entries) == 24


async def test_a_full_log_refuses_what_it_could_not_record() -> None:
    provider = Provider(Journal(max_entries=12))
    transport = httpx.ASGITransport(make_app(provider))
    async with httpx.AsyncClient(transport=transport, base_url="http://provider") as worker:
        statuses = [(await worker.post("/refunds", json=REFUND)).status_code for _ in range(2)]
    assert statuses == [201, LOG_FULL]
    assert len(provider.refunds) == 1


async def test_a_taken_port_is_an_error(url: str) -> None:
    port = int(url.rsplit(":", 1)[1])
    with pytest.raises(OSError, match="in use"):
        async with running(port=port):
            pass


async def test_stopping_ends_hanging_calls() -> None:
    async with running() as url, ProviderClient(url) as control:
        await control.tell(Route.CREATE_REFUND, before=Fault(hang=True))
        call = asyncio.create_task(_refund_alone(url))
        await control.wait_for(matcher(Happening.HANG), seconds=SECONDS)
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        await call


async def _refund_alone(url: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as worker:
        return await worker.post("/refunds", json=REFUND)


async def test_a_port_that_is_taken_is_named_in_one_line(url: str) -> None:
    words = ["-m", "e2e.provider", "--host", "127.0.0.1", "--port", url.rpartition(":")[2]]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=asyncio.subprocess.PIPE)
    _, said = await asyncio.wait_for(process.communicate(), SECONDS)
    assert (process.returncode, said.decode()) == (1, f"error: {url.removeprefix('http://')}: Address already in use\n")
