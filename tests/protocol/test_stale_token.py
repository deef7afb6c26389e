"""A worker whose token is stale, or that it made up, loses in every operation that it has, and what is stored does not change."""

from collections.abc import Awaitable, Callable

import pytest

from stepfence.app import Applier, TokenProofs, WorkerCalls
from stepfence.app.worker_calls import Call
from stepfence.core.decide import decide
from stepfence.core.errors import Code, Refused
from stepfence.core.fencing import Release
from stepfence.core.words import Settings, Verdict
from stepfence.core.world import World
from stepfence.ports import Caller, RunKey
from stepfence.stores import MemoryRecordStore, MemoryRunStore
from stepfence.testing.builders import seconds, step
from stepfence.testing.clock import FakeClock, FakeIds
from stepfence.testing.pods import MemoryGate, Pod

KEY = RunKey("support", "refund")
PROOFS = TokenProofs((b"k" * 32,))
OLD, NEW = Caller("support", "pod-1", "pod-1-uid"), Caller("support", "pod-2", "pod-2-uid")
Said = Callable[[WorkerCalls, Call], Awaitable[object]]

OPERATIONS: dict[str, Said] = {
    "plan": lambda calls, call: calls.submit_plan(call, [step("pay"), step("look"), step("more")]),
    "begin": lambda calls, call: calls.begin(call, "look", "new", {}),
    "begin of what is in flight": lambda calls, call: calls.begin(call, "pay", "new", {}),
    "fail": lambda calls, call: calls.fail(call, "pay", 1, "No", "", final=False, retry_after=None),
    "lose": lambda calls, call: calls.lose(call, "pay", 2, "TimedOut", ""),
    "probe leave": lambda calls, call: calls.probe_leave(call, "pay", 1),
    "probe": lambda calls, call: calls.probe(call, "pay", 1, Verdict.HAPPENED, {}, as_of=seconds(1), give_up=False),
    "renew": lambda calls, call: calls.renew(call),
    "drain": lambda calls, call: calls.drain(call),
    "release": lambda calls, call: calls.release(call, Release.DRAINED),
    "finish": lambda calls, call: calls.finish(call, {}),
    "fail the run": lambda calls, call: calls.fail_run(call, "NoGo", ""),
    "halt the run": lambda calls, call: calls.halt_run(call, "Odd", ""),
}
# These answer by the pod alone, or are the one exception (I2).
OTHERS = {"claim", "result", "complete", "standing", "lease_seconds", "works_for"}


@pytest.fixture
async def fenced() -> tuple[WorkerCalls, MemoryRunStore]:
    """pod-1 began a payment under token 1; it is gone, and pod-2 holds the run under token 2."""
    clock, store = FakeClock(), MemoryRunStore()
    plan = {"steps": [{"id": "pay", "action": "Payment", "probe": {"giveUpAfterSeconds": 300}}, {"id": "look", "action": "Read"}]}
    store.create({"metadata": {"namespace": KEY.namespace, "name": KEY.name}, "spec": {"plan": plan, "template": {}}})
    applier = Applier(store, clock, FakeIds(), Settings())
    gate = MemoryGate(clock)
    calls = WorkerCalls(applier, MemoryRecordStore(), gate, PROOFS)
    uid = (await store.load(KEY)).run.uid
    await applier.apply(KEY, lambda run, at: (decide(run, World(mark=uid), at).run, None))
    stored = (await applier.apply(KEY, lambda run, at: (decide(run, World(mark=uid), at).run, None))).stored
    assert stored.run.worker is not None
    for caller in (OLD, NEW):
        gate.pods[caller.pod_uid] = Pod(caller.pod, caller.pod_uid, stored.run.worker.job, KEY, uid, clock.now())
    first = await calls.claim(OLD, KEY, "claim-1")
    await calls.begin(Call(OLD, KEY, first.token), "pay", "begin-1", {"amount": 1})
    gate.pods[OLD.pod_uid].vanished = True
    second = await calls.claim(NEW, KEY, "claim-2")
    assert (first.token, second.token) == (1, 2)
    return calls, store


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(("says", "caller", "token"), [("the old one", OLD, 1), ("another pod's", OLD, 2), ("none of its own", NEW, 1)])
async def test_a_stale_token_loses(name: str, says: str, caller: Caller, token: int, fenced: tuple[WorkerCalls, MemoryRunStore]) -> None:
    calls, store = fenced
    before = store.document(KEY)
    with pytest.raises(Refused) as refused:
        await OPERATIONS[name](calls, Call(caller, KEY, token))
    assert refused.value.code is Code.FENCED
    assert store.document(KEY) == before


async def test_the_truth_is_heard_under_an_old_token(fenced: tuple[WorkerCalls, MemoryRunStore]) -> None:
    calls, store = fenced
    view = await calls.complete(Call(OLD, KEY, 1), "pay", 1, {"refund": "re_9"})
    assert view.result == {"refund": "re_9"}
    assert store.document(KEY)["status"]["ledger"]["pay"]["state"] == "Done"


WITH_A_TOKEN: dict[str, Said] = {**OPERATIONS, "complete": lambda calls, call: calls.complete(call, "pay", 1, {"refund": "re_9"})}


FORGED: dict[str, Callable[[str], str | None]] = {
    "nothing": lambda _uid: None,
    "a text": lambda _uid: "p1.0000000000000000000000000000000000000000000",
    "the proof of its own token": lambda uid: PROOFS.of(uid, 2),
    "the proof of another run": lambda _uid: PROOFS.of("uid-of-another-run", 9),
    "a proof under a key of its own": lambda uid: TokenProofs((b"x" * 32,)).of(uid, 9),
}


@pytest.mark.parametrize("name", WITH_A_TOKEN)
@pytest.mark.parametrize("brings", FORGED)
async def test_a_token_that_no_server_gave_is_refused_and_changes_nothing(
    name: str, brings: str, fenced: tuple[WorkerCalls, MemoryRunStore]
) -> None:
    calls, store = fenced
    before = store.document(KEY)
    uid = before["metadata"]["uid"]
    for caller in (NEW, OLD):
        with pytest.raises(Refused) as refused:
            await WITH_A_TOKEN[name](calls, Call(caller, KEY, 9, FORGED[brings](uid)))
        assert refused.value.code is Code.FENCED
    assert store.document(KEY) == before
    # Its own run goes on under the token that it has.
    assert (await calls.begin(Call(NEW, KEY, 2), "look", "new", {})).outcome == "Go"


@pytest.mark.parametrize("name", WITH_A_TOKEN)
async def test_a_token_that_a_server_gave_and_the_store_does_not_know_means_that_the_store_went_back_in_time(
    name: str, fenced: tuple[WorkerCalls, MemoryRunStore]
) -> None:
    calls, store = fenced
    with pytest.raises(Refused) as refused:
        await WITH_A_TOKEN[name](calls, given(store, 9))
    assert refused.value.code is Code.HELD
    assert store.document(KEY)["status"]["hold"]["reason"] == "LedgerBehind"


def given(store: MemoryRunStore, token: int) -> Call:
    """A call under a token that a server gave before the store went back."""
    return Call(NEW, KEY, token, PROOFS.of(store.document(KEY)["metadata"]["uid"], token))


async def test_a_token_of_the_future_asks_anew_about_a_hold_whose_answer_may_stand_in_the_spec_and_once(
    fenced: tuple[WorkerCalls, MemoryRunStore],
) -> None:
    calls, store = fenced
    await calls.halt_run(Call(NEW, KEY, 2), "PriceChanged", "12 % more")
    asked = store.document(KEY)["status"]["hold"]
    holds = []
    for request in ("one", "two"):
        with pytest.raises(Refused):
            await calls.begin(given(store, 9), "look", request, {})
        holds.append(store.document(KEY)["status"]["hold"])
    assert holds[0] == holds[1]
    assert holds[0]["question"] != asked["question"]
    assert holds[0]["message"].endswith("It was held before (PriceChanged: 12 % more)")


def test_no_operation_of_a_worker_is_left_out() -> None:
    public = {name for name in vars(WorkerCalls) if not name.startswith("_")}
    renamed = {"submit_plan": "plan", "probe_leave": "probe leave", "fail_run": "fail the run", "halt_run": "halt the run"}
    assert {renamed.get(name, name) for name in public} - OTHERS == {name for name in OPERATIONS if name != "begin of what is in flight"}
