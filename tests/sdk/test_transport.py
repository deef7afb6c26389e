"""Credentials are read again on each use; answers are JSON, problems, or a reason to repeat."""

import datetime as dt
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import stepfence
from stepfence.sdk.settings import Settings
from stepfence.sdk.transport import Problem, Transport, Unavailable
from tests.sdk import gateway as script
from tests.sdk.virtual import virtual_time


def transport(folder: Path, answer: Any) -> Transport:
    return Transport(script.settings(folder), httpx.MockTransport(answer))


@virtual_time
async def test_the_token_is_read_again_for_each_call(tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(200, json={})

    calls = transport(tmp_path, answer)
    await calls.send("POST", "/renew", {})
    (tmp_path / "token").write_text("rotated\n")
    await calls.send("POST", "/renew", {})
    await calls.aclose()
    assert seen == ["Bearer pod-token", "Bearer rotated"]


@virtual_time
async def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    calls = transport(tmp_path, lambda _request: httpx.Response(200))
    (tmp_path / "token").unlink()
    with pytest.raises(stepfence.NotInARun, match="STEPFENCE_TOKEN_FILE"):
        await calls.send("POST", "/renew", {})


def problem(code: str, status: int, **more: Any) -> httpx.Response:
    return script.Problem(code, status, more=more).response()


@pytest.mark.parametrize(
    ("answer", "sent"),
    [
        (problem("store-unavailable", 503), True),
        (problem("store-conflict", 409), False),
        (problem("over-budget", 429, retryAfterSeconds=3), False),
        (httpx.Response(502, text="<html>bad gateway</html>"), True),
        (httpx.Response(429), True),
        (httpx.Response(408), True),
        (httpx.Response(200, text="<html>a captive portal</html>"), True),
        (httpx.ReadError("broken"), True),
        (httpx.RemoteProtocolError("broken"), True),
        (httpx.ConnectError("refused"), False),
        (httpx.ConnectTimeout("slow"), False),
    ],
    ids=str,
)
@virtual_time
async def test_what_is_to_be_repeated_and_whether_it_may_have_been_heard(answer: Any, sent: bool, tmp_path: Path) -> None:
    def reply(_request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    with pytest.raises(Unavailable) as caught:
        await transport(tmp_path, reply).send("POST", "/renew", {})
    assert caught.value.sent is sent


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (problem("fenced", 409), "fenced"),
        (problem("bad-request", 400, field="payload"), "bad-request"),
        (httpx.Response(404, text="no such page"), "http-404"),
        (httpx.Response(413, text="<h1>413 Request Entity Too Large</h1>"), "too-large"),
        (httpx.Response(409, text="{", headers={"content-type": "application/problem+json"}), "http-409"),
    ],
    ids=str,
)
@virtual_time
async def test_refusals(answer: httpx.Response, code: str, tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        await transport(tmp_path, lambda _request: answer).send("POST", "/renew", {})
    assert caught.value.body.code == code
    assert caught.value.foreign is code.startswith("http-")


def certificate() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stepfence test")])
    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=36500))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


async def test_the_ca_is_loaded_again_when_its_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    real = ssl.create_default_context

    def load(**how: Any) -> ssl.SSLContext:
        loaded.append(Path(how["cafile"]).read_text())
        return real(**how)

    monkeypatch.setattr(ssl, "create_default_context", load)
    plain = script.settings(tmp_path)
    ca = tmp_path / "ca.crt"
    ca.write_bytes(certificate())
    settings = Settings(
        gateway="https://127.0.0.1:9",  # the discard port: nobody listens
        namespace="support",
        run="refund-4711",
        token_file=plain.token_file,
        ca_file=ca,
    )
    calls = Transport(settings)
    for expected in (1, 1, 2):
        if expected == 2:
            fresh = tmp_path / "fresh"
            fresh.write_bytes(certificate())
            fresh.replace(ca)
        with pytest.raises(Unavailable):
            await calls.send("POST", "/renew", {})
        assert len(loaded) == expected
    assert loaded[0] != loaded[1]
    await calls.aclose()
