"""The clock and the random bits that tests are given."""

import pytest

from stepfence.testing.clock import EPOCH, FakeClock, FakeIds


def test_time_moves_only_when_told_and_never_back() -> None:
    clock = FakeClock()
    assert (clock.now(), clock.monotonic()) == (EPOCH, 0.0)
    moved = clock.advance(1.5)
    assert (clock.now(), clock.monotonic(), (moved - EPOCH).total_seconds()) == (moved, 1.5, 1.5)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


def test_ids_differ_from_each_other_and_repeat_from_run_to_run() -> None:
    first, second = FakeIds(), FakeIds()
    drawn = [first.nonce() for _ in range(50)]
    assert drawn == [second.nonce() for _ in range(50)]
    assert len(set(drawn)) == 50
    assert FakeIds("other").nonce() not in drawn
