"""The story as Events."""

from __future__ import annotations

from dataclasses import replace

from stepfence.controller.events import EventSink, event_object
from stepfence.core.errors import Unknown
from stepfence.core.notices import Notice
from stepfence.testing.builders import new_run, seconds
from tests.controller.harness import World

RUN = replace(new_run(), version=7)


def test_the_same_notice_of_the_same_version_has_the_same_name() -> None:
    notice = Notice("Normal", "Claimed", "pod-1")
    first = event_object(RUN, notice, 0, seconds(0), "a")
    assert event_object(RUN, notice, 0, seconds(9), "b")["metadata"] == first["metadata"]
    assert event_object(replace(RUN, version=8), notice, 0, seconds(0), "a")["metadata"] != first["metadata"]


def test_names_sort_as_the_story_goes() -> None:
    story = [Notice("Normal", reason, "") for reason in ("Zeta", "Alpha")]
    names = [event_object(RUN, notice, place, seconds(0), "a")["metadata"]["name"] for place, notice in enumerate(story)]
    later = event_object(replace(RUN, version=16), story[0], 0, seconds(0), "a")["metadata"]["name"]
    assert sorted([later, *names]) == [*names, later]


def test_a_note_is_cut_to_what_the_api_server_takes_in_bytes() -> None:
    note = event_object(RUN, Notice("Warning", "Held", "ä" * 2000), 0, seconds(0), "a")["note"]
    assert len(note.encode()) <= 1024
    assert note.endswith("ä...")


async def test_an_event_that_cannot_be_posted_stops_the_story_and_nothing_else() -> None:
    cluster = World().cluster
    posted = cluster.post_event
    calls: list[str] = []

    async def fails_at_the_second(event: dict[str, object]) -> None:
        calls.append(str(event["reason"]))
        if len(calls) == 2:
            raise Unknown("away")
        await posted(event)

    cluster.post_event = fails_at_the_second  # type: ignore[method-assign, assignment]
    await EventSink(cluster, "a").tell(RUN, [Notice("Normal", reason, "") for reason in "ABC"], seconds(0))
    assert calls == ["A", "B"]
    assert [event["reason"] for event in cluster.events] == ["A"]
