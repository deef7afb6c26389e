"""The layout, the size budgets and the layers hold for every file of the tree."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOT = ROOT / "operator"
PACKAGE = SOURCE_ROOT / "stepfence"
CORE = PACKAGE / "core"
CHECKED_ROOTS = ("operator", "e2e", "bench", "tests", "tools")

FILE_LINES = 400
CORE_FILE_LINES = 250
FUNCTION_LINES = 40

# What would let a clock, a random number, the environment or the network into the core.
IMPURE_MODULES = frozenset(
    {
        "asyncio",
        "logging",
        "os",
        "random",
        "secrets",
        "select",
        "signal",
        "socket",
        "subprocess",
        "tempfile",
        "threading",
    }
    | {"time", "uuid", "pathlib", "io", "shutil", "urllib", "http", "ssl", "contextvars", "sys"}
)
IMPURE_CALLS = frozenset({"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "open", "print", "input"})

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def sources(*roots: Path) -> list[Path]:
    return sorted(path for root in roots if root.exists() for path in root.rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.AST) -> Iterator[FunctionNode]:
    return (node for node in ast.walk(tree) if isinstance(node, FunctionNode))


def length(node: FunctionNode) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def imported(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


def impure_calls(tree: ast.AST) -> set[str]:
    """Calls such as `datetime.now()` or `datetime.datetime.now()`, told by their last two names."""
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {call for call in calls if ".".join(call.split(".")[-2:]) in IMPURE_CALLS}


def public_packages() -> list[str]:
    inits = [path for path in PACKAGE.rglob("__init__.py") if not any(p.startswith("_") for p in path.parent.parts)]
    return sorted(".".join(path.parent.relative_to(SOURCE_ROOT).parts) for path in inits)


ALL_FILES = sources(*(ROOT / root for root in CHECKED_ROOTS))
CORE_FILES = sources(CORE)


def test_there_are_files_to_check() -> None:
    assert len(ALL_FILES) > 10
    assert CORE_FILES


def test_the_source_root_is_no_package_because_the_standard_library_owns_its_name() -> None:
    assert not (SOURCE_ROOT / "__init__.py").exists()
    done = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.itemgetter)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize("path", ALL_FILES, ids=name)
def test_files_are_within_their_budget(path: Path) -> None:
    budget = CORE_FILE_LINES if CORE in path.parents else FILE_LINES
    lines = len(path.read_text().splitlines())
    assert lines <= budget


@pytest.mark.parametrize("path", ALL_FILES, ids=name)
def test_functions_are_within_their_budget(path: Path) -> None:
    long = {node.name: length(node) for node in functions(ast.parse(path.read_text())) if length(node) > FUNCTION_LINES}
    assert long == {}


@pytest.mark.parametrize("path", CORE_FILES, ids=name)
def test_the_core_imports_the_standard_library_and_rfc8785_alone(path: Path) -> None:
    names = {module.split(".")[0] for module in imported(ast.parse(path.read_text()))}
    assert names - set(sys.stdlib_module_names) - {"rfc8785", "stepfence"} == set()


@pytest.mark.parametrize("path", CORE_FILES, ids=name)
def test_the_core_has_no_clock_no_chance_and_no_io(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert {module.split(".")[0] for module in imported(tree)} & IMPURE_MODULES == set()
    assert impure_calls(tree) == set()


@pytest.mark.parametrize("package", public_packages())
def test_every_public_package_says_exactly_what_it_offers(package: str) -> None:
    module = importlib.import_module(package)
    offered = getattr(module, "__all__", None)
    assert isinstance(offered, list | tuple), f"{package} has no __all__"
    assert [entry for entry in offered if not hasattr(module, entry)] == []
    assert len(set(offered)) == len(offered)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    assert public_names(tree) - set(offered) == set()


def public_names(tree: ast.Module) -> set[str]:
    """Names that a package's `__init__` binds for others: what it defines, and what it takes from its own modules."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, FunctionNode | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("stepfence")):
            found |= {alias.asname or alias.name for alias in node.names}
    return {entry for entry in found if not entry.startswith("_")}


def test_the_import_contracts_hold() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
