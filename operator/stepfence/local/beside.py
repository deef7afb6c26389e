"""Warnings beside the loop: a terminal that its user stopped holds up neither workers nor signals."""

from __future__ import annotations

import io
import queue
import sys
import threading

__all__ = ["Beside"]

_MOST = 1000
_END_SECONDS = 1.0


class Beside(io.TextIOBase):
    """Standard error, written to by a thread of its own. What a reader who takes nothing leaves no room for is counted."""

    def __init__(self) -> None:
        self._pieces: queue.Queue[str | None] = queue.Queue(_MOST)
        self._missed = 0
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> int:
        """Take some text; never waits."""
        try:
            self._pieces.put_nowait(text)
        except queue.Full:
            self._missed += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="warnings", daemon=True)
            self._thread.start()
        return len(text)

    def finish(self) -> None:
        """Wait until all is written, a second at most: whoever reads nothing gets nothing."""
        if self._thread is None or not self._thread.is_alive():
            return
        try:
            self._pieces.put(None, timeout=_END_SECONDS)
        except queue.Full:
            return
        self._thread.join(_END_SECONDS)

    def _work(self) -> None:
        text: str | None = ""
        while text is not None:
            text = self._pieces.get()
            try:
                # Looked up each time: the live view takes its place while it draws.
                sys.stderr.write(text or "")
                if self._missed and (text is None or self._pieces.empty()):
                    missed, self._missed = self._missed, 0
                    sys.stderr.write(f"… {missed} warnings are left out here\n")
                sys.stderr.flush()
            except (OSError, ValueError):  # nobody reads any more, or it was closed
                return
