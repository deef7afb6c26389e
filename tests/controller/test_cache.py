"""What the watches told, as it is kept."""

from __future__ import annotations

from typing import Any

import pytest

from stepfence.controller.cache import Cache
from stepfence.ports import RunKey

KEY = RunKey("support", "refund")
LABELS = {"stepfence.dev/run": "refund", "stepfence.dev/run-uid": "run-1", "stepfence.dev/worker": "1"}
NOW = "2026-01-02T03:04:05Z"


def run(revision: str = "1", uid: str = "run-1", **status: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "support", "name": "refund", "uid": uid, "resourceVersion": revision}, "status": status}


def owned(kind: str, uid: str, owner: str, owner_kind: str, **rest: Any) -> dict[str, Any]:
    reference = {"kind": owner_kind, "name": "refund-abcde-1" if owner_kind == "Job" else "refund", "uid": owner, "controller": True}
    metadata = {"namespace": "support", "name": rest.pop("name", kind), "uid": uid, "labels": LABELS, "creationTimestamp": NOW}
    return {"metadata": {**metadata, "ownerReferences": [reference]}, "spec": {"containers": [{"name": "main"}]}, "status": {}, **rest}


def job(**rest: Any) -> dict[str, Any]:
    return owned("job", "job-1", "run-1", "AgentRun", name="refund-abcde-1", **rest)


def pod(**rest: Any) -> dict[str, Any]:
    return owned("pod", "pod-1", "job-1", "Job", **rest)


@pytest.fixture
def woken() -> list[RunKey]:
    return []


@pytest.fixture
def cache(woken: list[RunKey]) -> Cache:
    return Cache(woken.append)


def test_every_event_of_a_run_wakes_it(cache: Cache, woken: list[RunKey]) -> None:
    cache.see_run(run())
    cache.see_run(run("2", phase="Running"))
    assert woken == [KEY, KEY]
    assert cache.runs[KEY].phase == "Running"
    cache.see_run(run("3"), deleted=True)
    assert list(cache.known()) == []


def test_the_end_of_an_older_run_does_not_take_the_new_one_of_its_name(cache: Cache) -> None:
    cache.see_run(run(uid="run-2"))
    cache.see_run(run(uid="run-1"), deleted=True)
    assert list(cache.known()) == [KEY]


def test_a_job_or_pod_wakes_its_run_only_when_a_fact_changed(cache: Cache, woken: list[RunKey]) -> None:
    for _ in range(2):
        cache.see_job(job())
        cache.see_pod(pod())
    assert woken == [KEY, KEY]
    cache.see_pod(pod(status={"phase": "Failed"}))
    assert len(woken) == 3


def test_what_is_gone_stays_until_a_pass_took_notice_of_it(cache: Cache) -> None:
    cache.see_job(job())
    cache.see_pod(pod())
    before = cache.pods("run-1")
    cache.see_pod(pod(status={"phase": "Failed"}), deleted=True)
    cache.sweep("run-1", frozenset(before))
    (gone,) = cache.pods("run-1")
    assert (gone.gone, gone.terminal) == (True, True)
    cache.sweep("run-1", frozenset([gone]))
    assert cache.pods("run-1") == ()
    assert len(cache.jobs("run-1")) == 1


def test_a_job_that_was_deleted_is_gone_and_was_seen(cache: Cache) -> None:
    cache.see_job(job())
    cache.see_job(job(), deleted=True)
    (gone,) = cache.jobs("run-1")
    assert (gone.gone, gone.seen) == (True, True)


def test_what_a_list_does_not_show_is_gone_unless_it_came_after_the_list_was_asked_for(cache: Cache, woken: list[RunKey]) -> None:
    cache.see_job(job())
    before = cache.uids("pods")
    cache.see_pod(pod())
    cache.absent("pods", frozenset(), before)
    assert not cache.pods("run-1")[0].gone
    cache.absent("pods", frozenset({"pod-1"}), cache.uids("pods"))
    assert not cache.pods("run-1")[0].gone
    woken.clear()
    cache.absent("pods", frozenset(), cache.uids("pods"))
    assert cache.pods("run-1")[0].gone
    assert woken == [KEY]


@pytest.mark.parametrize(
    "document",
    [
        {**job(), "metadata": {**job()["metadata"], "labels": {}}},
        {**job(), "metadata": {**job()["metadata"], "ownerReferences": []}},
        {**job(), "metadata": {**job()["metadata"], "labels": {**LABELS, "stepfence.dev/run-uid": "run-2"}}},
    ],
    ids=["without labels", "owned by nobody", "labelled with another run"],
)
def test_a_job_is_not_believed(cache: Cache, document: dict[str, Any]) -> None:
    cache.see_job(document)
    assert cache.jobs("run-1") == cache.jobs("run-2") == ()


def test_metrics_know_since_when_people_are_asked(cache: Cache) -> None:
    cache.see_run(run(phase="NeedsReconciliation", questions={"pay.x": {"since": NOW}}))
    assert len(cache.runs[KEY].asked) == 1


@pytest.mark.parametrize(
    "questions", [{"pay.x": {"since": "yesterday"}}, {"pay.x": "a text"}, ["pay.x"]], ids=["a time", "an entry", "a list"]
)
def test_a_run_whose_questions_cannot_be_read_is_seen_all_the_same(cache: Cache, woken: list[RunKey], questions: Any) -> None:
    cache.see_run(run(phase="Running", questions=questions))
    assert (cache.runs[KEY].phase, cache.runs[KEY].asked, woken) == ("Running", (), [KEY])
