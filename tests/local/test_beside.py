"""Warnings are written beside the loop, and who does not read them holds nothing up."""

from __future__ import annotations

import sys
import time
from typing import TextIO, cast

import pytest
import structlog

from stepfence.local.beside import Beside
from tests.local.test_lines import SECONDS, Reader


class Terminal(Reader):
    """Takes what is written once it is open. `gone`: it never will."""

    def write(self, text: str) -> None:
        self.take(text)

    def flush(self) -> None:
        pass


def on(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Beside:
    monkeypatch.setattr(sys, "stderr", terminal)
    return Beside()


def test_what_was_warned_of_is_written_in_order_and_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    beside = on(terminal, monkeypatch)
    structlog.configure(
        processors=[lambda _logger, _method, event: event["event"]], logger_factory=structlog.WriteLoggerFactory(cast(TextIO, beside))
    )
    for number in range(500):
        structlog.get_logger().warning(f"warning {number}")
    beside.finish()
    beside.finish()
    assert terminal.text.splitlines() == [f"warning {number}" for number in range(500)]


def test_a_terminal_that_takes_nothing_holds_nothing_up_and_what_is_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(open=False)
    beside = on(terminal, monkeypatch)
    before = time.monotonic()
    for number in range(3000):
        beside.write(f"warning {number}\n")
    beside.finish()
    assert time.monotonic() - before < SECONDS / 2
    terminal.gate.set()
    assert beside._thread is not None
    beside.finish()
    beside._thread.join(SECONDS)
    told = terminal.text.splitlines()
    assert told[:2] == ["warning 0", "warning 1"]
    kept = sum(line.startswith("warning ") for line in told)
    assert told[-1] == f"… {3000 - kept} warnings are left out here"


def test_a_terminal_that_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = on(Terminal(gone=True), monkeypatch)
    beside.write("one\n")
    assert beside._thread is not None
    beside._thread.join(SECONDS)
    beside.write("two\n")
    beside.finish()


def test_without_a_warning_there_is_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = on(Terminal(), monkeypatch)
    beside.finish()
    assert beside._thread is None
