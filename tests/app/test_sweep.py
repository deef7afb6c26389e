"""Orphans are swept; nothing that is referred to, put again, young or spent ever is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from stepfence.app.sweep import Sweeper, Swept
from stepfence.app.worker_calls import Call
from stepfence.core.errors import Refused, Unknown
from stepfence.core.model import Run
from stepfence.core.words import At, Settings, State
from stepfence.ports import BodyRecord, RunKey, Write
from tests.app.desk import KEY, Desk, large

GRACE = Settings().orphan_grace


class Meddled:
    """Records between whose listing, deleting and the sweeper something else happens."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.before_remove: Callable[[], Awaitable[object]] | None = None
        self.after_listing: Callable[[], Awaitable[object]] | None = None
        self.listed = self.removed = 0

    async def bodies(self) -> AsyncIterator[BodyRecord]:
        self.listed += 1
        found = [record async for record in self.desk.records.bodies()]
        meanwhile, self.after_listing = self.after_listing, None
        if meanwhile is not None:
            await meanwhile()
        for record in found:
            yield record

    async def remove(self, record: BodyRecord) -> bool:
        meanwhile, self.before_remove = self.before_remove, None
        if meanwhile is not None:
            await meanwhile()
        gone = await self.desk.records.remove(record)
        self.removed += gone
        return gone


class Scene:
    def __init__(self, **more: Any) -> None:
        self.desk = Desk()
        self.records = Meddled(self.desk)
        self.applier, _ = self.desk.gateway("controller")
        self.reads = 0
        self.more = more

    async def open(self) -> Call:
        await self.desk.open()
        self.sweeper = Sweeper(self.applier, self.records, self.desk.clock, **self.more)
        return await self.desk.claim("pod-1")

    async def passes(self, count: int = 2, pause: float = GRACE) -> Swept:
        swept = Swept(0, more=False)
        for _ in range(count):
            self.desk.clock.advance(pause)
            swept = await self.sweeper.sweep()
        return swept

    async def done(self, call: Call, step: str = "pay", payload: str = "p", result: str = "r") -> None:
        await self.desk.calls.begin(call, step, f"begin-{step}", large(payload))
        await self.desk.calls.complete(call, step, 1, large(result))


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_the_payload_of_a_step_that_is_done_is_swept_and_its_result_stays(scene: Scene) -> None:
    call = await scene.open()
    await scene.done(call)
    assert len(await scene.desk.records.names()) == 2
    assert await scene.passes() == Swept(1, more=False)
    (left,) = await scene.desk.records.names()
    entry = (await scene.desk.run()).ledger["pay"]
    assert entry.result is not None
    assert entry.result.record == left
    assert (await scene.desk.calls.begin(call, "pay", "again", {})).step.result == large("r")


async def test_what_a_refused_write_left_is_swept(scene: Scene) -> None:
    call = await scene.open()

    async def fence() -> None:
        await scene.desk.claim("pod-2")

    scene.desk.records.meanwhile = fence
    with pytest.raises(Refused):
        await scene.desk.calls.begin(call, "pay", "begin-1", large())
    assert await scene.passes() == Swept(1, more=False)
    assert await scene.desk.records.names() == []


async def test_an_orphan_lives_for_its_grace_and_one_more_pass(scene: Scene) -> None:
    await scene.done(await scene.open())
    await scene.passes(5, (GRACE - 1) / 5)
    assert len(await scene.desk.records.names()) == 2
    await scene.passes(1, 1)
    assert len(await scene.desk.records.names()) == 2
    await scene.passes(1, 1)
    assert len(await scene.desk.records.names()) == 1


async def test_what_any_part_of_the_status_names_is_kept_even_one_that_only_a_newer_version_knows(scene: Scene) -> None:
    await scene.done(await scene.open())
    names = await scene.desk.records.names()
    stored = await scene.desk.store.load(KEY)
    raw = {**stored.raw, "checkpoints": [{"of": "newer", "record": name} for name in names]}
    await scene.desk.store.save(Write(stored, stored.run, raw))
    assert await scene.passes(4) == Swept(0, more=False)
    assert await scene.desk.records.names() == names


async def test_bodies_of_steps_that_are_open_in_doubt_failed_or_asked_about_are_kept(scene: Scene) -> None:
    call = await scene.open()
    with pytest.raises(Refused):
        await scene.desk.calls.begin(call, "drop", "begin-0", large("a"))
    scene.desk.store.delete(KEY)
    call = await scene.open()
    await scene.desk.calls.begin(call, "pay", "begin-1", large("b"))
    await scene.desk.calls.begin(call, "mail", "begin-2", large("c"))
    await scene.desk.calls.fail(call, "mail", 1, "No", "", final=True)
    await scene.desk.calls.lose(call, "pay", 1, "Lost", "")
    await scene.passes(4)
    run = await scene.desk.run()
    kept = [entry.payload.record for entry in run.ledger.values() if entry.payload is not None]
    assert set(kept) <= set(await scene.desk.records.names())
    assert {entry.state for entry in run.ledger.values()} == {State.UNKNOWN, State.FAILED}


async def test_a_spent_identity_is_never_looked_at(scene: Scene) -> None:
    await scene.open()
    run = await scene.desk.run()
    await scene.desk.records.spend(run)
    await scene.passes(4)
    assert await scene.desk.records.spend(run) == run.uid
    assert scene.records.removed == 0


async def test_records_of_a_run_that_is_gone_or_another_one_now_are_left_to_their_owner(scene: Scene) -> None:
    await scene.done(await scene.open())
    scene.desk.store.delete(KEY)
    assert await scene.passes(3) == Swept(0, more=False)
    await scene.desk.open()
    assert await scene.passes(3) == Swept(0, more=False)
    assert len(await scene.desk.records.names()) == 2


def resumed(run: Run, at: At) -> tuple[Run, None]:
    return replace(run, hold=None), None


async def test_a_held_run_keeps_everything_until_a_person_has_answered(scene: Scene) -> None:
    call = await scene.open()
    await scene.done(call)
    await scene.desk.calls.halt_run(call, "Odd", "")
    assert await scene.passes(3) == Swept(0, more=False)
    await scene.desk.applier.apply(KEY, resumed)
    assert await scene.passes(2) == Swept(1, more=False)


class TestRaces:
    """A record that is put again by a write at the moment when it is swept."""

    async def orphan(self, scene: Scene) -> Call:
        call = await scene.open()
        await scene.done(call, payload="p", result="r")
        await scene.passes(1)
        scene.desk.clock.advance(1)
        scene.desk.records.puts.clear()
        return call

    async def kept(self, scene: Scene, call: Call) -> None:
        """The step was begun with the body that the sweeper was after, and it can be read."""
        view = await scene.desk.calls.begin(call, "mail", "begin-mail", large("p"))
        payload = (await scene.desk.run()).ledger["mail"].payload
        assert payload is not None
        assert await scene.desk.records.get(await scene.desk.run(), payload.record or "")
        assert view.payload == large("p")

    async def test_put_and_referred_to_between_the_listing_and_the_look_at_the_run(self, scene: Scene) -> None:
        call = await self.orphan(scene)
        scene.records.after_listing = lambda: scene.desk.calls.begin(call, "mail", "begin-mail", large("p"))
        await scene.sweeper.sweep()
        await self.kept(scene, call)

    async def test_put_and_referred_to_right_before_the_delete(self, scene: Scene) -> None:
        call = await self.orphan(scene)
        scene.records.before_remove = lambda: scene.desk.calls.begin(call, "mail", "begin-mail", large("p"))
        await scene.sweeper.sweep()
        assert scene.records.removed == 0
        await self.kept(scene, call)

    async def test_put_before_the_sweep_and_referred_to_after_it(self, scene: Scene) -> None:
        """The write is paused between the two for the whole sweep: it was decided before, and must not take effect as it is."""
        call = await self.orphan(scene)

        async def whole_sweep() -> None:
            await scene.passes(2)

        scene.desk.records.meanwhile = whole_sweep
        await self.kept(scene, call)
        assert len(scene.desk.records.puts) == 2

    async def test_seen_standing_before_the_sweep_and_referred_to_after_it_although_every_clock_stood_still(self, scene: Scene) -> None:
        """A machine that is frozen with all its clocks: only the order of the writes is left to go by."""
        call = await self.orphan(scene)
        frozen = scene.desk.clock.now()

        async def whole_sweep() -> None:
            await scene.passes(2)
            scene.desk.clock._now = frozen

        scene.desk.records.meanwhile = whole_sweep
        await self.kept(scene, call)

    async def test_the_run_moves_between_the_look_and_the_fence(self, scene: Scene) -> None:
        call = await self.orphan(scene)
        fence = scene.applier.fence

        async def overtaken(stored: Any) -> Any:
            await scene.desk.calls.begin(call, "mail", "begin-mail", large("p"))
            return await fence(stored)

        scene.applier.fence = overtaken  # type: ignore[method-assign]
        await scene.sweeper.sweep()
        assert scene.records.removed == 0
        await self.kept(scene, call)

    async def test_a_body_put_again_is_as_young_as_a_new_one(self, scene: Scene) -> None:
        call = await self.orphan(scene)
        run = await scene.desk.run()
        (record,) = [each async for each in scene.desk.records.bodies() if each.name not in str(run.ledger)]
        await self.kept(scene, call)
        again = {each.name: each async for each in scene.desk.records.bodies()}[record.name]
        assert again.put_at > record.put_at
        assert again.mark != record.mark


class TestBounds:
    async def test_a_pass_deletes_no_more_than_it_may_and_says_that_there_is_more(self) -> None:
        scene = Scene(most=2)
        call = await scene.open()
        for number, step in enumerate(("pay", "mail")):
            await scene.done(call, step, payload=f"{number}", result="r")
        other = RunKey("support", "other")
        await scene.desk.open(other)
        theirs = await scene.desk.claim("pod-9", other)
        await scene.done(theirs, "pay", payload="x", result="y")
        await scene.passes(1)
        assert await scene.sweeper.sweep() == Swept(2, more=True)
        assert await scene.sweeper.sweep() == Swept(1, more=False)
        assert await scene.sweeper.sweep() == Swept(0, more=False)

    async def test_a_run_that_has_not_moved_is_not_read_again(self) -> None:
        revisions: dict[RunKey, str] = {}
        scene = Scene(revision_of=lambda key, _uid: revisions.get(key))
        call = await scene.open()
        await scene.done(call)
        await scene.passes(2)
        revisions[KEY] = (await scene.desk.store.load(KEY)).revision
        reads = 0
        read = scene.applier.read

        async def counted(key: RunKey) -> Any:
            nonlocal reads
            reads += 1
            return await read(key)

        scene.applier.read = counted  # type: ignore[method-assign]
        await scene.passes(3)
        assert reads == 1
        await scene.done(call, "mail", payload="q", result="s")
        revisions[KEY] = (await scene.desk.store.load(KEY)).revision
        await scene.passes(1)
        assert reads == 2

    async def test_who_leads_no_more_stops(self) -> None:
        leads = True
        scene = Scene(may_go_on=lambda: leads)
        await scene.done(await scene.open())
        await scene.passes(1)
        leads = False
        assert await scene.passes(1) == Swept(0, more=False)
        leads = True
        assert await scene.passes(1) == Swept(1, more=False)

    async def test_a_run_without_orphans_is_not_written(self, scene: Scene) -> None:
        call = await scene.open()
        await scene.desk.calls.begin(call, "pay", "begin-1", large())
        before = scene.desk.store.document(KEY)
        await scene.passes(3)
        assert scene.desk.store.document(KEY) == before

    async def test_what_the_store_does_not_answer_is_for_the_next_pass(self, scene: Scene) -> None:
        await scene.done(await scene.open())
        await scene.passes(1)

        async def lost() -> None:
            raise Unknown("no answer")

        scene.records.before_remove = lost
        with pytest.raises(Unknown):
            await scene.sweeper.sweep()
        assert await scene.passes(1) == Swept(1, more=False)
