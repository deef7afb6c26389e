"""The gateway's own routes on a loopback port, which stays the same from one `stepfence local` to the next: workers may outlive one."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Iterator

import structlog
import uvicorn

from stepfence.app import TokenProofs, WorkerCalls
from stepfence.app.proofs import KEY_BYTES
from stepfence.gateway.app import create_app
from stepfence.local.gate import LocalGate
from stepfence.local.state import State

__all__ = ["gateway", "token_proofs"]

_LOG = structlog.get_logger(__name__)
_HOST = "127.0.0.1"
_PORT = "gateway-port"
_PROOF_KEY = "token-proof-key"
_DRAIN_SECONDS = 10


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are the caller's


@contextlib.asynccontextmanager
async def gateway(state: State) -> AsyncIterator[str]:
    """Serve the worker API around a block and yield its URL. Raises `OSError` when there is no port."""
    gate = LocalGate(state.workers, state.clock)
    app = create_app(WorkerCalls(state.applier, state.records, gate, await token_proofs(state)), gate)
    listener = await _listen(state)
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve([listener]), name="gateway")
    try:
        yield f"http://{_HOST}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


async def token_proofs(state: State) -> TokenProofs:
    """Read the state file's own key, made once: workers may outlive the process that gave them their token."""
    known = await state.workers.setting(_PROOF_KEY)
    if known is None:
        known = secrets.token_hex(KEY_BYTES)
        await state.workers.remember(_PROOF_KEY, known)
    return TokenProofs((bytes.fromhex(known),))


async def _listen(state: State) -> socket.socket:
    remembered = int(await state.workers.setting(_PORT) or 0)
    try:
        listener = socket.create_server((_HOST, remembered), backlog=512)
    except OSError:
        if not remembered:
            raise
        # Workers that still know the old port cannot call any more: they are told to go like any that is not heard of.
        listener = socket.create_server((_HOST, 0), backlog=512)
        if living := await state.workers.living():
            taken = "another program has the port of the last run: workers that still live cannot call any more"
            _LOG.warning(taken, port=remembered, workers=[row.pod for row in living])
    await state.workers.remember(_PORT, str(listener.getsockname()[1]))
    return listener
