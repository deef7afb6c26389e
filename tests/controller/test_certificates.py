"""When certificates are made, announced, switched and renewed; and that what is made is believed by a TLS client."""

from __future__ import annotations

import ssl
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from stepfence.app.proofs import KEY_BYTES
from stepfence.controller.certificate_keeper import gateway_names
from stepfence.controller.certificates import Authority, Pair, Serving, decode_secret, encode_secret, next_authority, next_serving
from stepfence.testing.clock import EPOCH

NAMES = gateway_names("stepfence-system", "gateway.example, other.example")


def later(**delta: float) -> datetime:
    return EPOCH + timedelta(**delta)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return next_authority(None, EPOCH)


@pytest.fixture(scope="module")
def serving(authority: Authority) -> Serving:
    return next_serving(None, authority, NAMES, EPOCH)


def test_an_authority_stays_until_its_successor_is_announced_and_then_switches(authority: Authority) -> None:
    assert next_authority(authority, later(days=2900)) == authority
    announced = next_authority(authority, later(days=2930))
    assert announced.current == authority.current
    assert announced.following is not None
    assert announced.bundle == authority.current.certificate + announced.following.certificate
    assert next_authority(announced, later(days=3200)) == announced
    switched = next_authority(announced, later(days=3300))
    assert switched == Authority(announced.following)


@pytest.mark.parametrize("announced", [True, False])
def test_an_authority_that_ran_out_unseen_is_replaced(authority: Authority, announced: bool) -> None:
    following = next_authority(None, later(days=3000)).current if announced else None
    replaced = next_authority(Authority(authority.current, following), later(days=4000))
    assert replaced.current != authority.current
    assert (replaced.current == following) is announced


def test_a_serving_certificate_is_renewed_after_two_thirds_of_its_life(authority: Authority, serving: Serving) -> None:
    assert next_serving(serving, authority, NAMES, later(days=59)) == serving
    assert next_serving(serving, authority, NAMES, later(days=61)).pair != serving.pair


def test_a_serving_certificate_is_renewed_for_other_names_and_by_another_authority(authority: Authority, serving: Serving) -> None:
    assert next_serving(serving, authority, (*NAMES, "new.example"), EPOCH).pair != serving.pair
    assert next_serving(serving, next_authority(None, EPOCH), NAMES, EPOCH).pair != serving.pair


def test_the_keys_of_token_proofs_are_made_once_and_stay_when_certificates_change(authority: Authority, serving: Serving) -> None:
    assert len(bytes.fromhex(serving.proof_keys.decode())) == KEY_BYTES
    assert next_serving(None, authority, NAMES, EPOCH).proof_keys != serving.proof_keys
    for again in (
        next_serving(serving, authority, NAMES, later(days=61)),
        next_serving(serving, next_authority(None, EPOCH), NAMES, EPOCH),
        next_serving(serving, Authority(authority.current, authority.current), NAMES, EPOCH),
    ):
        assert again.proof_keys == serving.proof_keys
    both = replace(serving, proof_keys=serving.proof_keys + b"ab" * KEY_BYTES)
    assert next_serving(both, authority, NAMES, later(days=61)).proof_keys == both.proof_keys


def test_a_secret_of_an_older_version_gets_keys_without_a_new_certificate(authority: Authority, serving: Serving) -> None:
    fresh = next_serving(replace(serving, proof_keys=b""), authority, NAMES, EPOCH)
    assert fresh.proof_keys
    assert replace(fresh, proof_keys=serving.proof_keys) == serving


def test_an_announced_authority_is_published_without_a_new_certificate(authority: Authority, serving: Serving) -> None:
    announced = Authority(authority.current, next_authority(None, EPOCH).current)
    published = next_serving(serving, announced, NAMES, EPOCH)
    assert (published.pair, published.bundle) == (serving.pair, announced.bundle)


def _contexts(tmp_path: Path, pair: Pair, bundle: bytes) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    (tmp_path / "tls.crt").write_bytes(pair.certificate)
    (tmp_path / "tls.key").write_bytes(pair.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    client.load_verify_locations(cadata=bundle.decode())
    return server, client


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [server.wrap_bio(to_server, to_client, server_side=True), client.wrap_bio(to_client, to_server, server_hostname=name)]
    for _ in range(4):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
    assert not ends


@pytest.mark.parametrize("name", ["stepfence-gateway.stepfence-system.svc", "other.example"])
def test_a_client_that_trusts_the_bundle_believes_the_gateway(tmp_path: Path, name: str) -> None:
    now = datetime.now(EPOCH.tzinfo)
    authority = next_authority(None, now)
    both = Authority(authority.current, next_authority(None, now).current)
    serving = next_serving(None, both, NAMES, now)
    server, client = _contexts(tmp_path, serving.pair, serving.bundle)
    _shake_hands(server, client, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake_hands(server, client, "elsewhere.example")


def test_secrets_are_read_as_they_were_written() -> None:
    values = {"tls.crt": b"\x00\xff", "tls.key": b""}
    assert decode_secret(encode_secret(values)) == values
