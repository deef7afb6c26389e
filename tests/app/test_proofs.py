"""A token is believed to come from a server when its proof was made under one of the servers' keys, for that token of that run."""

import pytest

from stepfence.app.proofs import TokenProofs

OLD, NEW = b"o" * 32, b"n" * 32


def test_a_proof_speaks_of_one_token_of_one_run() -> None:
    proofs = TokenProofs((OLD,))
    proof = proofs.of("uid-1", 2)
    assert proof is not None
    assert proofs.shown(proof, "uid-1", 2)
    assert not proofs.shown(proof, "uid-1", 3)
    assert not proofs.shown(proof, "uid-2", 2)
    assert not TokenProofs((NEW,)).shown(proof, "uid-1", 2)


@pytest.mark.parametrize("proof", [None, "", "p1.", "p1." + "A" * 43, "ü", "\ud800", "x" * 5000])
def test_what_no_server_made_shows_nothing(proof: str | None) -> None:
    assert not TokenProofs((OLD,)).shown(proof, "uid-1", 2)


def test_a_new_key_signs_and_proofs_under_the_one_before_stay_good() -> None:
    proofs = TokenProofs((OLD,))
    before = proofs.of("uid-1", 2)
    proofs.learn((NEW, OLD))
    assert proofs.of("uid-1", 2) != before
    assert proofs.shown(before, "uid-1", 2)
    # As a gateway that was started since knows them.
    assert TokenProofs((NEW, OLD)).shown(before, "uid-1", 2)


def test_a_key_that_is_taken_away_stays_good_in_a_process_that_knew_it() -> None:
    proofs = TokenProofs((OLD,))
    before = proofs.of("uid-1", 2)
    proofs.learn(())
    assert proofs.of("uid-1", 2) == before
    proofs.learn((NEW,))
    assert proofs.shown(before, "uid-1", 2)
    for number in range(40):
        proofs.learn((bytes([number]) * 32,))
    assert proofs.known == 16


def test_without_a_key_no_proof_is_made_and_none_is_good() -> None:
    proofs = TokenProofs()
    assert proofs.of("uid-1", 2) is None
    assert not proofs.shown(TokenProofs((OLD,)).of("uid-1", 2), "uid-1", 2)
