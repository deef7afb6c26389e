"""Each extra brings all that its modules import: nothing that is only there because another extra, or a tool of ours, needs it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = {
    "": ["stepfence", "stepfence.cli.__main__", "stepfence.cli.worker"],
    "local": ["stepfence.cli.worker", "stepfence.local.__main__", "stepfence.local.screen"],
    "operator": ["stepfence.controller.__main__", "stepfence.gateway.__main__"],
    "testing": ["stepfence.testing.driving", "stepfence.testing.cluster"],
}
# Run with the names of modules that are not there, then those to import.
ALONE = """
import importlib, sys

absent, wanted = (set(words.split(",")) for words in sys.argv[1:])

class NotThere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotThere())
for name in sorted(wanted):
    importlib.import_module(name)
"""


def lock() -> dict[str, dict[str, Any]]:
    return {package["name"]: package for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}


def installed_with(extra: str) -> set[str]:
    """Every distribution that `stepfence[extra]` brings, as the lock has it."""
    packages, found = lock(), set[tuple[str, str]]()
    left = [("stepfence", ""), ("stepfence", extra)]
    while left:
        name, more = left.pop()
        if (name, more) in found:
            continue
        found.add((name, more))
        package = packages[name]
        needs = package.get("optional-dependencies", {}).get(more, []) if more else package.get("dependencies", [])
        left += [(need["name"], each) for need in needs for each in ("", *need.get("extra", []))]
    return {name for name, _ in found}


def absent_with(extra: str) -> set[str]:
    """The modules of this environment that would not be there."""
    brought = installed_with(extra)
    return {
        module
        for module, distributions in packages_distributions().items()
        if not any(re.sub(r"[-_.]+", "-", name).lower() in brought for name in distributions) and module.isidentifier()
    }


def imported(extra: str, modules: list[str]) -> str:
    """Import modules where nothing is installed but the extra; return the last line of what that says."""
    words = [sys.executable, "-c", ALONE, ",".join(absent_with(extra)), ",".join(modules)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    return (done.stderr.splitlines() or [""])[-1]


def test_every_extra_is_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert OURS.keys() - {""} == project["optional-dependencies"].keys()


@pytest.mark.parametrize("extra", OURS)
def test_an_extra_brings_all_that_its_modules_import(extra: str) -> None:
    assert imported(extra, OURS[extra]) == ""


@pytest.mark.parametrize(("extra", "modules", "missing"), [("", OURS["local"], "jsonpatch"), ("local", OURS["operator"], "kopf")])
def test_what_it_does_not_bring_is_noticed(extra: str, modules: list[str], missing: str) -> None:
    assert imported(extra, modules) == f"ModuleNotFoundError: No module named {missing!r}"
