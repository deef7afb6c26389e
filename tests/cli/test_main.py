"""The entry point: usage, the servers' lazy start, the version."""

import platform
import subprocess
import sys
from importlib.metadata import version
from types import ModuleType

import pytest

from stepfence.cli.__main__ import _parse, main


@pytest.mark.parametrize("word", ["version", "--version"])
def test_the_version_is_printed(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 0
    assert capsys.readouterr().out.strip() == version("stepfence")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["exec"],
        ["exec", "--step", "a", "--action", "Payment"],
        ["exec", "--step", "a", "--action", "Pay", "--", "true"],
        # Without "--" an option that is meant for the command would be taken for one of ours.
        ["exec", "--step", "a", "--action", "Read", "./refund", "--timeout", "5"],
        ["exec", "--step", "a", "--action", "Read", "--"],
        ["exec", "--step", "a", "--action", "Read", "--not-applied-exit", "0", "--", "true"],
        ["exec", "--step", "a", "--action", "Read", "--not-applied-exit", "x", "--", "true"],
        ["fail"],
        ["no-such-command"],
    ],
)
def test_wrong_use_says_how(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert left.value.code == 2
    assert "usage: stepfence" in capsys.readouterr().err


def test_all_after_the_first_dashes_is_the_command() -> None:
    words = ["./refund", "--timeout", "5", "--", "-x", "--step"]
    given = _parse(["exec", "--timeout", "9", "--step", "a", "--action", "Read", "--", *words])
    assert (given.argv, given.timeout, given.step) == (words, 9.0, "a")


@pytest.mark.parametrize("name", ["controller", "gateway"])
def test_servers_get_their_own_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    fake = ModuleType(f"stepfence.{name}.__main__")
    fake.main = lambda: seen.append(list(sys.argv))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.setattr(sys, "argv", ["stepfence"])
    assert main([name, "--port", "1"]) == 0
    assert seen == [[f"stepfence {name}", "--port", "1"]]


@pytest.mark.parametrize(("name", "extra"), [("controller", "operator"), ("gateway", "operator"), ("local", "local")])
def test_a_missing_extra_is_named(name: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, f"stepfence.{name}.__main__", None)
    assert main([name]) == 2
    assert f"stepfence[{extra}]" in capsys.readouterr().err


def test_local_says_that_it_needs_linux(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert main(["local", "list"]) == 2
    assert "needs Linux" in capsys.readouterr().err


def test_outside_a_run_the_command_fails_and_names_the_variable() -> None:
    argv = [sys.executable, "-m", "stepfence.cli", "exec", "--step", "a", "--action", "Read", "--", "echo", "done"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 2
    assert done.stdout == ""
    assert "STEPFENCE_GATEWAY is not set" in done.stderr
