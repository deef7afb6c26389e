"""`python -m e2e.contract.flooding PORT CONNECTIONS TOKENS`: idle TLS connections and wrong tokens, all from an address of their own."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import ssl
import sys
import time
from collections import Counter

ADDRESS = "127.0.0.3"
_AT_ONCE = 200
_GUESSING = 250
_LONGEST_SECONDS = 120.0

_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_CONTEXT.check_hostname, _CONTEXT.verify_mode = False, ssl.CERT_NONE

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _connect(port: int) -> Streams:
    loop = asyncio.get_running_loop()
    plain = socket.socket()
    plain.setblocking(False)
    try:
        plain.bind((ADDRESS, 0))
        await loop.sock_connect(plain, ("127.0.0.1", port))
        return await asyncio.open_connection(sock=plain, ssl=_CONTEXT, server_hostname="gateway")
    except BaseException:
        plain.close()
        raise


async def _idle(port: int, places: asyncio.Semaphore, told: Counter[str]) -> None:
    try:
        async with places:
            reader, writer = await _connect(port)
    except OSError:
        told["idle ones refused"] += 1
        return
    told["idle ones opened"] += 1
    with contextlib.suppress(OSError):
        await reader.read(1)
        told["idle ones closed on"] += 1
    writer.transport.abort()


async def _guess(port: int, left: list[int], told: Counter[str]) -> None:
    streams: Streams | None = None
    while left[0] > 0:
        left[0] -= 1
        try:
            streams = streams or await _connect(port)
            told[f"tokens answered {await _ask(streams)}"] += 1
        except (OSError, asyncio.IncompleteReadError):
            told["tokens without an answer"] += 1
            if streams is not None:
                streams[1].transport.abort()
            streams = None
    if streams is not None:
        streams[1].transport.abort()


async def _ask(streams: Streams) -> int:
    reader, writer = streams
    head = f"POST /v1/namespaces/support/agentruns/run-1/claim HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {secrets.token_hex(400)}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}".encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length"))
    await reader.readexactly(length)
    return int(answer.split()[1])


async def _main(port: int, connections: int, tokens: int) -> None:
    told: Counter[str] = Counter()
    places, left = asyncio.Semaphore(_AT_ONCE), [tokens]
    began = time.monotonic()
    idle = [asyncio.create_task(_idle(port, places, told)) for _ in range(connections)]
    guessing = [asyncio.create_task(_guess(port, left, told)) for _ in range(_GUESSING)]
    _, late = await asyncio.wait(guessing, timeout=_LONGEST_SECONDS)
    for task in [*idle, *late]:
        task.cancel()
    sys.stdout.write(f"{dict(sorted(told.items()))} in {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    asyncio.run(_main(*(int(word) for word in sys.argv[1:])))
