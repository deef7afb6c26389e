"""The commands print UTF-8 whatever the locale, and who does not listen changes nothing."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from stepfence.cli.output import complain, log_warnings, put

# Each once made Python print, or take its arguments, in something else than UTF-8.
LOCALES = [
    {"LC_ALL": "C"},
    {"LC_ALL": "C", "PYTHONUTF8": "0"},
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1:strict", "PYTHONUTF8": "0", "LC_ALL": "C"},
]
SAYS = "import sys; from stepfence.cli.output import complain, put, speak_utf8; speak_utf8(); put(sys.argv[1]); complain(sys.argv[1])"
SHOWS_CHILDS = (
    "import os, subprocess, sys; from stepfence.cli.output import speak_utf8; speak_utf8(); "
    "subprocess.run([sys.executable, '-c', 'import sys; print(sys.flags.utf8_mode)'])"
)


def run(code: str, *words: bytes, **environ: str) -> subprocess.CompletedProcess[bytes]:
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2] / "operator")}
    argv: list[str | bytes] = [sys.executable, "-c", code, *words]
    return subprocess.run(argv, capture_output=True, timeout=60, check=False, env={**known, **environ})


@pytest.mark.parametrize("environ", LOCALES, ids=lambda environ: " ".join(f"{name}={value}" for name, value in environ.items()))
def test_arguments_and_output_are_utf_8_whatever_the_locale(environ: dict[str, str]) -> None:
    done = run(SAYS, "Jörg €😀".encode(), **environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Jörg €😀".encode(), "Jörg €😀\n".encode())


@pytest.mark.parametrize("environ", LOCALES[:2], ids=" ".join)
def test_bytes_that_are_no_utf_8_are_shown(environ: dict[str, str]) -> None:
    done = run(SAYS, b"caf\xe9", **environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"caf\\udce9", b"caf\\udce9\n")


def test_python_in_a_command_is_left_as_it_is() -> None:
    assert run(SHOWS_CHILDS, LC_ALL="C", PYTHONUTF8="0").stdout == b"0\n"


def test_a_message_is_one_line_of_which_a_terminal_obeys_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    complain("step 'a':\n\x1b[2J\u202e\x9b" + "x" * 5000)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("step 'a':\\n\\x1b[2J\\u202e\\x9bxxx")
    assert len(line) < 4100


def test_a_warning_shows_what_others_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    log_warnings()
    structlog.get_logger().warning("refused", answer="\x1b]0;title\x07\u2066")
    err = capsys.readouterr().err
    assert "\\x1b]0;title\\x07\\u2066" in err
    assert "\x07" not in err


class Gone(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [None, Gone()], ids=["closed", "broken"])
def test_a_message_that_nobody_takes_is_lost(stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    complain("it did not happen")
    log_warnings()
    structlog.get_logger().warning("told to nobody")


def test_a_result_for_an_output_that_is_closed_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    put("text")
