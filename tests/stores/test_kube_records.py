"""What records make of answers in an order that no API server of ours gives on demand: races between a put and a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from stepfence.core.canonical import canonical, digest
from stepfence.core.errors import Code, Refused, Unknown
from stepfence.core.words import Settings
from stepfence.ports import BodyRecord, RecordKind, RunKey
from stepfence.schema import PUT_AT_ANNOTATION, record_name
from stepfence.schema.times import format_time
from stepfence.stores.kube_client import JSON, KubeClient, Reply
from stepfence.stores.kube_records import KubeRecordStore
from stepfence.testing import FakeClock
from stepfence.testing.builders import new_run, step
from stepfence.testing.clock import EPOCH

GRACE = Settings().orphan_grace
RUN = new_run(step())
TEXT = canonical("body")
NAME = record_name(RUN.uid, digest(TEXT))
TAKEN = Reply(409, {"reason": "AlreadyExists"})
MADE = Reply(201, {})
MISSING = Reply(404, {"message": "not found", "details": {"name": NAME}})
MOVED = Reply(409, {"reason": "Conflict"})
FORBIDDEN = Reply(403, {"message": "forbidden"})


def standing(age: float, **changes: Any) -> Reply:
    """The record as it stands, put so many seconds before the start of the test."""
    metadata = {"name": NAME, "namespace": RUN.namespace, "uid": "uid-1", "resourceVersion": "7"}
    metadata |= {"creationTimestamp": format_time(EPOCH - timedelta(seconds=age)), **changes}
    return Reply(200, {"metadata": metadata, "spec": {"digest": digest(TEXT), "runUID": RUN.uid, "data": TEXT}})


class Scripted(KubeClient):
    """A client that gives the answers of a script, and knows what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.asked: list[tuple[str, Any]] = []

    async def get(self, path: str, *, query: Mapping[str, str] | None = None, seconds: float | None = None, accept: str = JSON) -> Reply:
        return self._answer("get", accept)

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        return self._answer("post", body)

    async def merge(self, path: str, body: Mapping[str, Any]) -> Reply:
        return self._answer("merge", body)

    async def delete(self, path: str, uid: str, revision: str | None = None) -> Reply:
        return self._answer("delete", (uid, revision))

    def _answer(self, verb: str, what: Any) -> Reply:
        self.asked.append((verb, what))
        return self.replies.pop(0)

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.asked]


async def put(*replies: Reply) -> Scripted:
    client = Scripted(*replies)
    assert await KubeRecordStore(client, FakeClock().now).put(RUN, RecordKind.RESULT, TEXT, digest(TEXT)) == NAME
    assert client.replies == []
    return client


async def test_a_young_record_is_left_as_it_is() -> None:
    assert (await put(TAKEN, standing(GRACE / 2 - 1))).verbs == ["post", "get"]


async def test_an_old_record_gets_a_new_time_and_nothing_else_under_its_uid() -> None:
    client = await put(TAKEN, standing(GRACE / 2), Reply(200, {}))
    assert client.asked[2] == ("merge", {"metadata": {"uid": "uid-1", "annotations": {PUT_AT_ANNOTATION: format_time(EPOCH)}}})


async def test_one_that_was_put_again_lately_is_as_young_as_that() -> None:
    again = {PUT_AT_ANNOTATION: format_time(EPOCH - timedelta(seconds=5))}
    assert (await put(TAKEN, standing(10 * GRACE, annotations=again))).verbs == ["post", "get"]


@pytest.mark.parametrize("text", ["nonsense", "2026-01-02", ""])
async def test_a_time_that_cannot_be_read_makes_nothing_young(text: str) -> None:
    assert (await put(TAKEN, standing(10 * GRACE, annotations={PUT_AT_ANNOTATION: text}), Reply(200, {}))).verbs[-1] == "merge"


@pytest.mark.parametrize("between", [[MISSING], [standing(GRACE), MISSING], [standing(GRACE), MOVED]], ids=["look", "touch", "another"])
async def test_a_record_that_is_swept_while_it_is_put_is_made_anew(between: list[Reply]) -> None:
    assert (await put(TAKEN, *between, MADE)).verbs[-1] == "post"


async def test_a_record_that_comes_and_goes_is_unknown_in_the_end() -> None:
    client = Scripted(*[TAKEN, MISSING] * 4)
    with pytest.raises(Unknown):
        await KubeRecordStore(client).put(RUN, RecordKind.RESULT, TEXT, digest(TEXT))


async def test_without_the_right_to_touch_an_old_record_nothing_refers_to_it() -> None:
    client = Scripted(TAKEN, standing(GRACE), FORBIDDEN)
    with pytest.raises(Refused) as refused:
        await KubeRecordStore(client, FakeClock().now).put(RUN, RecordKind.RESULT, TEXT, digest(TEXT))
    assert refused.value.code is Code.STORE_UNAVAILABLE


@pytest.mark.parametrize(("reply", "kept"), [(standing(0), True), (standing(GRACE), False), (MISSING, False)])
async def test_it_is_kept_when_it_stands_and_is_young(reply: Reply, kept: bool) -> None:
    assert await KubeRecordStore(Scripted(reply), FakeClock().now).keep(RUN, NAME) is kept


async def listed(**changes: Any) -> list[BodyRecord]:
    owner = {"labels": {"stepfence.dev/run": RUN.name, "stepfence.dev/run-uid": RUN.uid}, "ownerReferences": [{"uid": RUN.uid}]}
    item = {"metadata": {**standing(10).body["metadata"], **owner, **changes}}
    store = KubeRecordStore(Scripted(Reply(200, {"items": [item], "metadata": {}})))
    return [record async for record in store.bodies()]


async def test_a_body_is_listed_with_its_run_its_age_and_its_version() -> None:
    key = RunKey(RUN.namespace, RUN.name)
    assert await listed() == [BodyRecord(key, RUN.uid, NAME, EPOCH - timedelta(seconds=10), "uid-1/7")]


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "id-" + "0" * 40},
        {"name": f"{RUN.uid}-checkpoint"},
        {"name": f"another-{RUN.uid}-0123456789abcdef"},
        {"ownerReferences": []},
        {"ownerReferences": [{"uid": "another"}]},
        {"labels": {}},
        {"labels": None},
    ],
    ids=str,
)
async def test_what_is_not_surely_a_body_of_its_run_is_never_listed(changes: dict[str, Any]) -> None:
    assert await listed(**changes) == []


@pytest.mark.parametrize(("reply", "gone"), [(Reply(200, {}), True), (MISSING, False), (MOVED, False)])
async def test_it_is_removed_as_it_was_seen(reply: Reply, gone: bool) -> None:
    (record,) = await listed()
    client = Scripted(reply)
    assert await KubeRecordStore(client).remove(record) is gone
    assert client.asked == [("delete", ("uid-1", "7"))]
