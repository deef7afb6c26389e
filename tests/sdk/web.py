"""A provider on real sockets, for what only real clients do: repeat, redirect, keep connections. It counts what it applied."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import h2.config
import h2.connection
import h2.events

Scene = Callable[["Provider", socket.socket, str], None]


class Provider:
    """Plays one scene a request, in order, the last one again and again. `applied`: requests that took effect."""

    def __init__(self, *scenes: Scene) -> None:
        self.scenes = list(scenes)
        self.applied: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/refunds"

    def serve(self) -> None:
        """Serve until it is closed, each connection in a thread of its own."""
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(20)
            while head := self._read(connection):
                scene = self.scenes.pop(0) if len(self.scenes) > 1 else self.scenes[0]
                scene(self, connection, head.split(" ", 1)[0])
                if scene in (applies_and_hangs_up, applies_and_disappears):
                    break

    @staticmethod
    def _read(connection: socket.socket) -> str:
        head = b""
        while b"\r\n\r\n" not in head:
            more = connection.recv(65536)
            if not more:
                return ""
            head += more
        wanted = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
        body = head.partition(b"\r\n\r\n")[2]
        while len(body) < wanted:
            body += connection.recv(65536)
        return head.decode("latin-1")

    def close(self) -> None:
        """Stop serving."""
        with suppress(OSError):  # closed before
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@contextmanager
def provider(*scenes: Scene) -> Iterator[Provider]:
    """Serve in a thread of its own."""
    made = Provider(*scenes)
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.close()
        thread.join(20)


def answers(status: int, *, applies: bool = False, **headers: str) -> Scene:
    """Answer so, having applied the request or not."""

    def scene(provider: Provider, connection: socket.socket, method: str) -> None:
        if applies:
            provider.applied.append(method)
        lines = [f"HTTP/1.1 {status} Told", "Content-Length: 0", *(f"{name}: {value}" for name, value in headers.items())]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())

    return scene


def applies_and_hangs_up(provider: Provider, connection: socket.socket, method: str) -> None:
    """Apply the request, then drop the connection without an answer."""
    provider.applied.append(method)


def applies_and_disappears(provider: Provider, connection: socket.socket, method: str) -> None:
    """The same, and nobody listens any more."""
    provider.applied.append(method)
    provider.close()


@contextmanager
def goes_away(last_stream: int) -> Iterator[Provider]:
    """An HTTP/2 provider that applies what it is asked and then says GOAWAY, having processed streams up to `last_stream`."""
    made = Provider(answers(200))

    def serve() -> None:
        while True:
            try:
                raw, _ = made._listening.accept()
            except OSError:
                return
            with raw:
                raw.settimeout(20)
                _http2(made, raw, last_stream)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.close()
        thread.join(20)


def _http2(made: Provider, raw: socket.socket, last_stream: int) -> None:
    state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    state.initiate_connection()
    raw.sendall(state.data_to_send())
    while data := raw.recv(65536):
        for event in state.receive_data(data):
            if isinstance(event, h2.events.StreamEnded):
                made.applied.append("POST")
                state.close_connection(last_stream_id=last_stream)
        raw.sendall(state.data_to_send())
        if made.applied:
            return
