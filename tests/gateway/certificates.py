"""Short-lived certificates for tests, each with a name of its own."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def write(folder: Path, name: str = "gateway") -> None:
    """Write `tls.crt` (self-signed, also `ca.crt`) and `tls.key` for 127.0.0.1 under that common name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain = certificate.public_bytes(serialization.Encoding.PEM)
    form, nothing = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tls.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, nothing))
    (folder / "tls.crt").write_bytes(chain)
    (folder / "ca.crt").write_bytes(chain)
