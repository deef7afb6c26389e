"""What the Kubernetes stores make of answers that no API server of ours gives: scripted ones."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from stepfence.core.errors import Code, Refused, Unknown
from stepfence.core.fencing import HolderFact
from stepfence.core.model import Holder, Run, RunSpec
from stepfence.ports import Caller
from stepfence.stores.kube_client import JSON, KubeClient, Reply, kube_path, refusal
from stepfence.stores.kube_gate import KubeWorkerGate
from stepfence.stores.kube_peers import ready_endpoints
from stepfence.stores.ttl_cache import TtlCache
from stepfence.testing import FakeClock


class Scripted(KubeClient):
    """A client that gives the same answer to everything."""

    def __init__(self, body: Mapping[str, Any], status: int = 200) -> None:
        self.reply = Reply(status, body)

    async def get(self, path: str, *, query: Mapping[str, str] | None = None, seconds: float | None = None, accept: str = JSON) -> Reply:
        return self.reply

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        return self.reply


MISSING = {"message": "not found", "details": {"name": "x"}}


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (404, MISSING, Code.NOT_FOUND),
        (404, {"message": "404 page not found"}, Code.STORE_UNAVAILABLE),
        (400, {}, Code.BAD_REQUEST),
        (422, {"message": "spec.plan: Invalid value"}, Code.BAD_REQUEST),
        (413, {}, Code.TOO_LARGE),
        (429, {}, Code.OVER_BUDGET),
        (401, {}, Code.STORE_UNAVAILABLE),
        (403, {"message": "forbidden"}, Code.STORE_UNAVAILABLE),
    ],
)
def test_what_surely_wrote_nothing_is_a_refusal(status: int, body: dict[str, Any], code: Code) -> None:
    error = refusal(Reply(status, body), "AgentRun a/b")
    assert isinstance(error, Refused)
    assert error.code is code
    assert "AgentRun a/b" in error.detail or code is Code.OVER_BUDGET


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_5xx_may_have_written(status: int) -> None:
    error = refusal(Reply(status, {"message": "etcdserver: request timed out"}), "AgentRun a/b")
    assert isinstance(error, Unknown)
    assert "request timed out" in str(error)


def test_the_api_servers_own_time_to_come_back_is_passed_on() -> None:
    error = refusal(Reply(429, {}, retry_after=7.0), "x")
    assert isinstance(error, Refused)
    assert error.retry_after == 7.0


def test_a_name_cannot_lead_out_of_its_path() -> None:
    assert kube_path("batch/v1", "jobs", "a/../b", "c?d") == "/apis/batch/v1/namespaces/a%2F..%2Fb/jobs/c%3Fd"
    assert kube_path("v1", "pods", "a", "b", "status") == "/api/v1/namespaces/a/pods/b/status"
    assert kube_path("v1", "nodes") == "/api/v1/nodes"


USER: dict[str, Any] = {
    "username": "system:serviceaccount:support:worker",
    "extra": {"authentication.kubernetes.io/pod-name": ["pod-1"], "authentication.kubernetes.io/pod-uid": ["uid-1"]},
}
GOOD: dict[str, Any] = {"authenticated": True, "audiences": ["stepfence"], "user": USER}


async def test_a_good_review_names_the_pod() -> None:
    gate = KubeWorkerGate(Scripted({"status": GOOD}, 201), FakeClock())
    assert await gate.identify("a.b.c") == Caller("support", "pod-1", "uid-1")


@pytest.mark.parametrize(
    "changes",
    [
        {"authenticated": False},
        {"audiences": []},
        {"audiences": None},
        {"audiences": ["https://kubernetes.default.svc"]},
        {"user": {**USER, "username": "jane"}},
        {"user": {**USER, "username": "system:node:node1"}},
        {"user": {**USER, "extra": {}}},
        {"user": {**USER, "extra": {**USER["extra"], "authentication.kubernetes.io/pod-uid": ["a", "b"]}}},
        {"user": None},
    ],
    ids=str,
)
async def test_a_review_that_says_less_is_no_identity(changes: dict[str, Any]) -> None:
    gate = KubeWorkerGate(Scripted({"status": {**GOOD, **changes}}, 201), FakeClock())
    with pytest.raises(Refused) as refused:
        await gate.identify("a.b.c")
    assert refused.value.code is Code.UNAUTHENTICATED


async def test_a_review_that_cannot_be_made_is_not_the_callers_fault() -> None:
    with pytest.raises(Refused) as refused:
        await KubeWorkerGate(Scripted({}, 403), FakeClock()).identify("a.b.c")
    assert refused.value.code is Code.STORE_UNAVAILABLE
    with pytest.raises(Unknown):
        await KubeWorkerGate(Scripted({}, 500), FakeClock()).identify("a.b.c")


TERMINATED: dict[str, Any] = {"terminated": {"exitCode": 0}}
RUNNING: dict[str, Any] = {"running": {}}
LOST_SIGHT: dict[str, Any] = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}


@pytest.mark.parametrize(
    ("states", "fact"),
    [
        ([TERMINATED, TERMINATED], HolderFact.OVER),
        ([TERMINATED], HolderFact.ALIVE),
        ([TERMINATED, RUNNING], HolderFact.ALIVE),
        ([TERMINATED, {}], HolderFact.ALIVE),
        ([TERMINATED, LOST_SIGHT], HolderFact.ALIVE),
        ([], HolderFact.ALIVE),
    ],
    ids=["both ended", "one not reported", "one runs", "one says nothing", "one that the kubelet lost sight of", "none reported"],
)
async def test_a_pod_of_two_containers_is_over_when_both_are(states: list[dict[str, Any]], fact: HolderFact) -> None:
    pod = {
        "metadata": {"uid": "uid-1"},
        "spec": {"containers": [{"name": "agent"}, {"name": "helper"}]},
        "status": {"phase": "Failed", "containerStatuses": [{"state": state} for state in states]},
    }
    now = datetime(2026, 1, 2, tzinfo=UTC)
    run = Run("support", "run", "run-uid", 1, RunSpec(), holder=Holder("pod-1", "uid-1", "r", now, now, 60))
    assert await KubeWorkerGate(Scripted(pod), FakeClock()).holder(run) is fact


async def test_ready_endpoints_are_counted_by_pod() -> None:
    def endpoint(uid: str, ready: bool | None) -> dict[str, Any]:
        return {"addresses": ["10.0.0.1"], "conditions": {} if ready is None else {"ready": ready}, "targetRef": {"uid": uid}}

    first = {"endpoints": [endpoint("a", True), endpoint("b", False), endpoint("c", None)]}
    other_family = {"endpoints": [endpoint("a", True)]}
    assert await ready_endpoints(Scripted({"items": [first, other_family, {"endpoints": None}]}), "ns", "svc") == 2
    assert await ready_endpoints(Scripted({"items": []}), "ns", "svc") == 0


class TestTtlCache:
    def test_an_entry_lives_until_its_time(self) -> None:
        cache: TtlCache[str, int] = TtlCache(2)
        cache.put("a", 1, until=10)
        assert (cache.get("a", 9.9), cache.get("a", 10), cache.get("a", 0)) == (1, None, None)

    def test_the_least_recently_used_goes_first(self) -> None:
        cache: TtlCache[str, int] = TtlCache(2)
        cache.put("a", 1, until=10)
        cache.put("b", 2, until=10)
        cache.get("a", 0)
        cache.put("c", 3, until=10)
        assert [cache.get(key, 0) for key in "abc"] == [1, None, 3]
        assert len(cache) == 2
