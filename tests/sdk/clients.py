"""Clients whose provider is played by a script: what goes out passes through a real client of httpx."""

from collections.abc import Callable
from typing import Any

import httpx

URL = "http://provider.test/refunds"
Answer = httpx.Response | Exception


class Provider:
    """Answers each request with the next of `answers`, the last one again and again. `log` holds what it was asked: method and path."""

    def __init__(self, *answers: Answer | Callable[[httpx.Request], Answer]) -> None:
        self.answers = list(answers)
        self.log: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.log.append(f"{request.method} {request.url.path}")
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        answer = answer(request) if callable(answer) else answer
        if isinstance(answer, httpx.RequestError):
            answer.request = request
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def asked(self) -> list[str]:
        """What may have had an effect: requests that were no GET and whose connection was not refused."""
        return [entry for entry in self.log if not entry.startswith("GET")]

    def client(self, **how: Any) -> httpx.AsyncClient:
        """A client that asks it."""
        return httpx.AsyncClient(transport=httpx.MockTransport(self), **how)

    def blocking(self, **how: Any) -> httpx.Client:
        """The same without a loop."""
        return httpx.Client(transport=httpx.MockTransport(self), **how)


def refused() -> httpx.ConnectError:
    """No connection came to be."""
    return httpx.ConnectError("refused")


def slow() -> httpx.ReadTimeout:
    """No answer came."""
    return httpx.ReadTimeout("slow")


async def post(*answers: Answer, **how: Any) -> httpx.Response:
    """Ask a provider that answers so, once."""
    async with Provider(*answers).client(**how) as http:
        return await http.post(URL)


def post_blocking(*answers: Answer, **how: Any) -> httpx.Response:
    """The same without a loop."""
    with Provider(*answers).blocking(**how) as http:
        return http.post(URL)
