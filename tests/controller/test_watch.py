"""kopf, set up so that it watches and does nothing else."""

from __future__ import annotations

from itertools import islice

import kopf

from stepfence.controller.cache import Cache
from stepfence.controller.health import WatchHealth
from stepfence.controller.watch import EndlessBackoffs, kopf_settings, watch_registry
from stepfence.testing.clock import FakeClock


def test_pauses_have_no_end_grow_to_a_cap_and_start_anew_for_each_request() -> None:
    failures: list[None] = []
    pauses = EndlessBackoffs(lambda: failures.append(None))
    assert list(islice(pauses, 8)) == [0.5, 1, 2, 4, 8, 8, 8, 8]
    assert len(failures) == 8
    assert next(iter(pauses)) == 0.5
    assert not hasattr(pauses, "__len__")


def test_kopf_writes_nothing_and_lists_only_what_is_ours() -> None:
    settings = kopf_settings(WatchHealth(FakeClock().monotonic))
    assert not settings.posting.enabled
    assert settings.peering.standalone
    selectors = settings.watching.label_selectors
    for resource in (("batch", "v1", "jobs"), ("", "v1", "pods")):
        assert selectors[resource] == "app.kubernetes.io/managed-by=stepfence"


def test_only_event_handlers_are_registered() -> None:
    registry = watch_registry(Cache(lambda _: None), WatchHealth(FakeClock().monotonic), lambda _: None)
    assert isinstance(registry, kopf.OperatorRegistry)
    assert len(registry._watching.get_all_handlers()) == 3
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()
    assert not registry._indexing.get_all_handlers()
