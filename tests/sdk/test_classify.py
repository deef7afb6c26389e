"""Classifiers against the real exceptions of httpx and requests, made by real sockets where that is possible."""

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
import requests
import requests.adapters
import urllib3.exceptions

import stepfence
from stepfence.sdk.classify import NOT_APPLIED_STATUS, classify, classify_httpx, classify_os, classify_requests

TYPES = stepfence.DEFAULT_CLASSIFIERS
POST = httpx.Request("POST", "http://provider.test/refunds")


@pytest.fixture
def closed_port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Accepts connections (by its backlog) and never answers."""
    with closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield int(listening.getsockname()[1])


def raised(call: Any) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011  (which one is what the test is about)
        call()
    return caught.value


def test_a_refused_connection_is_not_applied(closed_port: int) -> None:
    url = f"http://127.0.0.1:{closed_port}/"
    for call in (lambda: httpx.post(url, trust_env=False), lambda: requests.post(url, timeout=5)):
        error = raised(call)
        verdict = classify(error, TYPES)
        assert verdict is not None, error
        assert not verdict.final
    bare = raised(lambda: socket.create_connection(("127.0.0.1", closed_port)))
    assert classify_os(bare) is not None
    assert classify(bare, TYPES) is None, "nobody sees what else goes out through sockets: the program must say that nothing does"


def test_an_unknown_host_is_not_applied() -> None:
    error = requests.ConnectionError(
        urllib3.exceptions.MaxRetryError(
            urllib3.HTTPConnectionPool("no.invalid"),
            "/",
            urllib3.exceptions.NameResolutionError("no.invalid", urllib3.HTTPConnectionPool("no.invalid"), socket.gaierror()),  # type: ignore[arg-type]
        ),
        request=requests.Request("POST", "http://no.invalid/").prepare(),
    )
    assert classify_requests(error) is not None
    assert classify_os(socket.gaierror(-2, "unknown")) is not None


def test_a_read_time_out_is_not_told(silent_port: int) -> None:
    url = f"http://127.0.0.1:{silent_port}/"
    for call in (lambda: httpx.post(url, timeout=0.05, trust_env=False), lambda: requests.post(url, timeout=0.05)):
        assert classify(raised(call), TYPES) is None


@pytest.mark.parametrize(
    ("error", "applied_nothing"),
    [
        (httpx.ConnectTimeout("", request=POST), True),
        (httpx.PoolTimeout("", request=POST), True),
        (httpx.UnsupportedProtocol("", request=POST), True),
        (httpx.InvalidURL("x"), False),
        (httpx.ReadTimeout("", request=POST), False),
        (httpx.WriteTimeout("", request=POST), False),
        (httpx.ReadError("", request=POST), False),
        (httpx.WriteError("", request=POST), False),
        (httpx.RemoteProtocolError("", request=POST), False),
        (httpx.LocalProtocolError("", request=POST), False),
        (httpx.ProxyError("", request=POST), False),
        (requests.ConnectTimeout(), True),
        (requests.exceptions.InvalidURL(), False),
        (requests.exceptions.MissingSchema(), False),
        (requests.ReadTimeout(), False),
        (requests.ConnectionError(urllib3.exceptions.ProtocolError("aborted")), False),
        (requests.ConnectionError(), False),
        (requests.exceptions.ChunkedEncodingError(), False),
        (requests.HTTPError(), False),
        (ConnectionResetError(), False),
        (TimeoutError(), False),
        (KeyError("x"), False),
        (stepfence.NotApplied("x"), True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_what_an_exception_says(error: BaseException, applied_nothing: bool) -> None:
    assert (classify(error, TYPES) is not None) is applied_nothing


def answer(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(status, request=POST, headers=headers)


def requests_answer(status: int, **headers: str) -> requests.Response:
    made = requests.Response()
    made.status_code = status
    made.headers.update(headers)
    return made


@pytest.mark.parametrize("make", [answer, requests_answer])
@pytest.mark.parametrize("status", sorted(NOT_APPLIED_STATUS))
def test_answers_that_apply_nothing(status: int, make: Any) -> None:
    verdict = classify(raised(make(status).raise_for_status), TYPES)
    assert verdict is not None
    assert verdict.reason == f"HTTP{status}"
    with pytest.raises(stepfence.NotApplied):
        stepfence.raise_for_status(make(status))


@pytest.mark.parametrize("make", [answer, requests_answer])
@pytest.mark.parametrize("status", [408, 409, 500, 502, 503, 504])
def test_answers_that_say_nothing(status: int, make: Any) -> None:
    assert classify(raised(make(status).raise_for_status), TYPES) is None
    error = raised(lambda: stepfence.raise_for_status(make(status)))
    assert not isinstance(error, stepfence.NotApplied)


def test_success_raises_nothing() -> None:
    stepfence.raise_for_status(answer(201))
    stepfence.raise_for_status(requests_answer(204))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), ("0.5", 0.5), ("-3", 0.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", None), ("", None)],
)
def test_retry_after_is_read(value: str, seconds: float | None) -> None:
    verdict = classify_httpx(raised(answer(429, **{"retry-after": value}).raise_for_status))
    assert verdict is not None
    assert verdict.retry_after == seconds


def test_the_answer_after_a_redirect_is_no_answer_to_the_first_request() -> None:
    followed, plain = answer(404), requests_answer(404)
    followed.history, plain.history = [answer(303)], [requests_answer(303)]
    for response in (followed, plain):
        assert classify(raised(response.raise_for_status), TYPES) is None
        assert not isinstance(raised(lambda response=response: stepfence.raise_for_status(response)), stepfence.NotApplied)
