"""Every dependency is explained, and the lock names public sources alone."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLIC_SOURCES = {"https://pypi.org/simple"}
PUBLIC_FILES = "https://files.pythonhosted.org/"


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def lock() -> list[dict[str, Any]]:
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    assert isinstance(packages, list)
    return packages


def direct_dependencies() -> list[str]:
    project = pyproject()
    wanted: list[str] = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    for group in project["dependency-groups"].values():
        wanted += group
    names = {re.split(r"[\[<>=!~ ]", requirement)[0] for requirement in wanted}
    return sorted(names - {"stepfence"})


@pytest.mark.parametrize("dependency", direct_dependencies())
def test_each_direct_dependency_says_why_it_is_there(dependency: str) -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    assert re.search(rf"^\| \[?{re.escape(dependency)}\b", page, re.MULTILINE)


def test_the_lock_names_the_public_index_alone() -> None:
    sources = {package["source"]["registry"] for package in lock() if "registry" in package["source"]}
    assert sources == PUBLIC_SOURCES
    others = [package["name"] for package in lock() if "registry" not in package["source"]]
    assert others == ["stepfence"]


def test_the_lock_fetches_from_the_public_index_and_pins_every_file() -> None:
    files = [file for package in lock() for file in [*package.get("wheels", []), *_sdist(package)]]
    assert files
    assert [file["url"] for file in files if not file["url"].startswith(PUBLIC_FILES)] == []
    assert [file["url"] for file in files if not file["hash"].startswith("sha256:")] == []


def _sdist(package: dict[str, Any]) -> list[dict[str, str]]:
    return [package["sdist"]] if "sdist" in package else []


def test_workers_install_few_dependencies() -> None:
    assert len(pyproject()["project"]["dependencies"]) <= 5
