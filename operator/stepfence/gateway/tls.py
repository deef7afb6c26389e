"""The server's certificate, from a mounted Secret: waited for at the start, read again when it changes."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import structlog

__all__ = ["Certificate"]

log = structlog.get_logger(__name__)

_WAIT_SECONDS = 1.0
_LOOK_SECONDS = 10.0


class Certificate:
    """A TLS context that follows `tls.crt` and `tls.key` of a folder. Connections made before a change go on as they are.

    The context that listens hands each handshake to the newest one: a certificate changed in place would, for a moment, stand there without
    its key.
    """

    def __init__(self, folder: Path, *, look_seconds: float = _LOOK_SECONDS) -> None:
        self._chain, self._key = folder / "tls.crt", folder / "tls.key"
        self._look_seconds = look_seconds
        self._stamp: bytes | None = None
        self.context = self._current = _context()
        self.context.sni_callback = self._hand_over

    def load(self) -> bool:
        """Read the files if they changed; return whether they did. Raises `OSError` or `ssl.SSLError`; the old certificate then stays."""
        stamp = self._chain.read_bytes() + b"\0" + self._key.read_bytes()
        if stamp == self._stamp:
            return False
        fresh = _context() if self._stamp is not None else self.context
        fresh.load_cert_chain(self._chain, self._key)
        self._current, self._stamp = fresh, stamp
        return True

    def _hand_over(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _listening: ssl.SSLContext) -> None:
        # Called in each handshake, whether or not the client names a server.
        if self._current is not self.context:
            connection.context = self._current

    async def wait(self) -> None:
        """Wait until there is a certificate. It has no deadline of its own: the pod is not ready meanwhile, and says why."""
        said = ""
        while True:
            try:
                await asyncio.to_thread(self.load)
                return
            except OSError as error:  # ssl.SSLError is one
                if str(error) != said:
                    said = str(error)
                    log.warning("gateway.certificate.missing", error=said)
            await asyncio.sleep(min(_WAIT_SECONDS, self._look_seconds))

    async def follow(self) -> None:
        """Read the files again whenever they change, until cancelled."""
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                if await asyncio.to_thread(self.load):
                    log.info("gateway.certificate.renewed")
            except OSError as error:
                log.error("gateway.certificate.unusable", error=str(error))  # noqa: TRY400  (the text says it all)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
