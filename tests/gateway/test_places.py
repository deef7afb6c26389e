"""Who gives way when all places are taken: the one that has done nothing for longest, never one that is being served."""

import resource

import pytest

from stepfence.gateway import files
from stepfence.gateway.places import Places


class Guest:
    def __init__(self) -> None:
        self.dismissed = False

    def dismiss(self) -> None:
        self.dismissed = True


def arrived(places: Places, count: int, address: str = "10.0.0.1") -> list[Guest]:
    guests = [Guest() for _ in range(count)]
    for guest in guests:
        assert places.arrive(guest, address)
    return guests


def dismissed(guests: list[Guest]) -> list[int]:
    return [number for number, guest in enumerate(guests) if guest.dismissed]


def test_a_flood_from_one_address_pushes_out_itself_alone() -> None:
    places = Places(total=10, per_address=4)
    others = arrived(places, 3, "10.0.0.2")
    flood = arrived(places, 100)
    assert dismissed(flood) == [*range(96)]
    assert dismissed(others) == []
    assert len(places) == 7


def test_when_all_are_taken_the_oldest_unknown_one_of_any_address_gives_way() -> None:
    places = Places(total=6, per_address=4)
    first, second = arrived(places, 3, "10.0.0.1"), arrived(places, 3, "10.0.0.2")
    third = arrived(places, 2, "10.0.0.3")
    assert (dismissed(first), dismissed(second), dismissed(third)) == ([0, 1], [], [])
    assert len(places) == 6


def test_one_that_had_a_call_under_a_good_token_gives_way_after_all_that_had_none() -> None:
    places = Places(total=4, per_address=4)
    (known,) = arrived(places, 1)
    places.serve(known)
    places.rest(known, known=True)
    flood = arrived(places, 100)
    assert not known.dismissed
    for guest in flood[-3:]:
        places.serve(guest)
    arrived(places, 1)
    assert known.dismissed


def test_one_that_is_served_never_gives_way_and_a_newcomer_is_refused() -> None:
    places = Places(total=10, per_address=2)
    served = arrived(places, 2)
    for guest in served:
        places.serve(guest)
    assert not places.arrive(Guest(), "10.0.0.1")
    assert dismissed(served) == []
    assert places.arrive(Guest(), "10.0.0.2")
    places.rest(served[0], known=False)
    assert places.arrive(Guest(), "10.0.0.1")
    assert dismissed(served) == [0]


def test_one_that_rests_again_stands_at_the_end_of_the_line() -> None:
    places = Places(total=3, per_address=3)
    guests = arrived(places, 3)
    places.serve(guests[0])
    places.rest(guests[0], known=False)
    arrived(places, 1)
    assert dismissed(guests) == [1]


def test_whoever_leaves_takes_nothing_along() -> None:
    places = Places(total=1000, per_address=1000)
    guests = [guest for number in range(50) for guest in arrived(places, 3, f"10.0.0.{number}")]
    for guest in guests:
        places.serve(guest)
        places.leave(guest)
        places.leave(guest)
        places.rest(guest, known=True)
    assert (len(places), dict(places._count), places._lines, places._addresses) == (0, {}, {}, {})


@pytest.mark.parametrize(
    ("soft", "hard", "places", "raised"),
    [
        (1024, 524_288, 4096, 4352),
        (1024, -1, 4096, 4352),
        (1024, 2048, 1792, 2048),
        (20_000, 20_000, 4096, None),
        (-1, -1, 4096, None),
        (64, 64, 1, 64),
    ],
)
def test_a_process_makes_room_for_its_connections_as_far_as_it_may(
    soft: int, hard: int, places: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _what, both: limits.append(both[0]))
    assert files.places_for(4096) == places
    assert limits == ([] if raised is None else [raised])
