"""The certificate authority that workers trust, and the gateway's certificate: made and renewed by the leader, kept in Secrets.

Workers learn the authorities when they start, so a new one is announced long before it signs: it stands beside the old one in what workers
are told from 80 % of the old one's life on, and signs from 90 %. Everything here is a function of what is stored and the time.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Authority", "Pair", "Serving", "decode_secret", "encode_secret", "next_authority", "next_serving"]

_AUTHORITY_LIFE = timedelta(days=3650)
_SERVING_LIFE = timedelta(days=90)
_PROOF_KEY_BYTES = 32
_ANNOUNCE, _SWITCH, _RENEW = 0.8, 0.9, 2 / 3
# Clocks of workers may be behind ours.
_BACKDATE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key, both PEM."""

    certificate: bytes
    key: bytes

    @property
    def parsed(self) -> x509.Certificate:
        """The first certificate. Raises `ValueError` when it is none."""
        return x509.load_pem_x509_certificate(self.certificate)


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority that signs, and the one that will sign next."""

    current: Pair
    following: Pair | None = None

    @property
    def bundle(self) -> bytes:
        """What workers trust."""
        return self.current.certificate + (self.following.certificate if self.following is not None else b"")


@dataclass(frozen=True, slots=True)
class Serving:
    """The gateway's pair, the authorities as last published, and the keys of token proofs: one a line, in hex, the newest first."""

    pair: Pair
    bundle: bytes
    proof_keys: bytes = b""


def next_authority(stored: Authority | None, now: datetime) -> Authority:
    """Return the authority as it should stand now; the same one while nothing is due."""
    if stored is None or now >= stored.current.parsed.not_valid_after_utc:
        return Authority(_new_authority(now)) if stored is None or stored.following is None else Authority(stored.following)
    age = _age(stored.current.parsed, now)
    if age >= _SWITCH and stored.following is not None:
        return Authority(stored.following)
    if age >= _ANNOUNCE and stored.following is None:
        return Authority(stored.current, _new_authority(now))
    return stored


def next_serving(stored: Serving | None, authority: Authority, names: tuple[str, ...], now: datetime) -> Serving:
    """Return the gateway's certificate as it should stand now; the same one while it is young, signed by `authority` and for `names`."""
    # These stay: the proofs that workers have are good for as long as their keys are known.
    keys = (stored.proof_keys if stored is not None else b"") or secrets.token_hex(_PROOF_KEY_BYTES).encode() + b"\n"
    if stored is not None and _still_good(stored.pair, authority.current, names, now):
        return Serving(stored.pair, authority.bundle, keys)
    return Serving(_new_serving(authority.current, names, now), authority.bundle, keys)


def _still_good(pair: Pair, issuer: Pair, names: tuple[str, ...], now: datetime) -> bool:
    certificate = pair.parsed
    san = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if tuple(san.get_values_for_type(x509.DNSName)) != names or _age(certificate, now) >= _RENEW:
        return False
    return _key_id(certificate, issuer.parsed)


def _key_id(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    signed_by = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    return signed_by == issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest


def _age(certificate: x509.Certificate, now: datetime) -> float:
    """Return how much of its life has passed, 0 to 1 and more."""
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return (now - start) / (end - start)


def _new_authority(now: datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"stepfence {now:%Y-%m-%d}")])
    builder = (
        _builder(name, name, key.public_key(), now, _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def _new_serving(issuer: Pair, names: tuple[str, ...], now: datetime) -> Pair:
    signer = serialization.load_pem_private_key(issuer.key, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is no elliptic curve key")  # noqa: TRY004  (what is stored is wrong, not a type)
    authority = issuer.parsed
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stepfence gateway")])
    builder = (
        _builder(subject, authority.subject, key.public_key(), now, _SERVING_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return _pair(builder.sign(signer, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + life)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(certificate.public_bytes(pem), private)


def encode_secret(values: Mapping[str, bytes]) -> dict[str, str]:
    """Return a Secret's `data`."""
    return {name: base64.b64encode(value).decode() for name, value in values.items()}


def decode_secret(data: Mapping[str, str]) -> dict[str, bytes]:
    """Read a Secret's `data`."""
    return {name: base64.b64decode(value) for name, value in data.items()}
