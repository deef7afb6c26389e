"""What the commands print: in UTF-8 whatever the locale, and no reader who has gone turns what was done into an error."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

from stepfence.cli.text import plain

__all__ = ["BROKEN_PIPE", "complain", "leave_output", "log_warnings", "put", "speak_utf8"]

# As of a process that SIGPIPE ended.
BROKEN_PIPE = 141
_UTF8_MODE = ["-X", "utf8"]
_LONGEST = 4000


def speak_utf8() -> None:
    """Make all that this process reads and prints UTF-8: arguments, names of files, environment, input, output.

    Where the locale says otherwise, Python is started anew in its UTF-8 mode, in the same process, and with nothing that children inherit.
    """
    locale_is_other = sys.getfilesystemencoding() != "utf-8"
    if locale_is_other and sys.executable and sys.orig_argv[1:3] != _UTF8_MODE:
        os.execv(sys.executable, [sys.executable, *_UTF8_MODE, *sys.orig_argv[1:]])  # noqa: S606  (no shell is meant)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def put(text: str) -> None:
    """Write to standard output, all of it. Raises `OSError` when that takes nothing more."""
    if sys.stdout is not None:  # it is closed
        sys.stdout.write(text)
        sys.stdout.flush()


def complain(text: str) -> None:
    """Write one line to standard error; when nobody takes it, it is lost: that must not change what is recorded."""
    shown = plain(text)
    _complain((shown if len(shown) <= _LONGEST else shown[:_LONGEST] + "…") + "\n")


def _complain(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()


def leave_output() -> None:
    """Write nothing more to standard output, whose reader has gone: the interpreter would complain when it flushes what is left."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Complaints(io.TextIOBase):
    def write(self, text: str) -> int:
        _complain(text)
        return len(text)


def log_warnings(file: io.TextIOBase | None = None) -> None:
    """Log warnings for people; `file`: instead of standard error. Texts in them are shown, never obeyed."""
    import structlog

    structlog.reset_defaults()
    *before, renderer = structlog.get_config()["processors"]
    structlog.configure(
        processors=[*before, _plain_values, renderer],
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, file or _Complaints())),
    )


def _plain_values(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {name: plain(value) if isinstance(value, str) else value for name, value in event.items()}
