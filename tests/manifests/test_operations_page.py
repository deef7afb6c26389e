"""What docs/operations.md names must exist, and what exists must be named there."""

import dataclasses
import re
from datetime import UTC, datetime

from stepfence.controller.cache import Cache
from stepfence.controller.metrics import Metrics as ControllerMetrics
from stepfence.controller.settings import _CORE_SECONDS, ControllerSettings
from stepfence.core.fencing import Release
from stepfence.core.summary import QuestionKind
from stepfence.core.words import Settings
from stepfence.gateway.metrics import Metrics as GatewayMetrics
from stepfence.gateway.settings import GatewaySettings
from tests.manifests.objects import ROOT, load

PAGE = (ROOT / "docs/operations.md").read_text()
SETTINGS = PAGE[PAGE.index("## Settings") :]
# Told through `Metrics.count` and `Metrics.conflicts` where the servers are put together.
REVIEWS = {"stepfence_token_reviews_total", "stepfence_token_reviews_remembered_total", "stepfence_token_reviews_limited_total"}
COUNTED_ELSEWHERE = {"stepfence_conflicts_total", "stepfence_write_conflicts"} | REVIEWS
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def rows(text: str) -> dict[str, str]:
    """Map each variable of the tables to its default as written."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("| `STEPFENCE_"):
            continue
        names, default = [cell.strip() for cell in line.split("|")[1:3]]
        variables = re.findall(r"`(STEPFENCE_\w+)`", names)
        defaults = default.split(", ") if len(variables) > 1 else [default]
        found |= dict(zip(variables, defaults, strict=True))
    return found


def variables() -> dict[str, object]:
    plain = ControllerSettings()
    found: dict[str, object] = {
        f"STEPFENCE_{field.name.upper()}": getattr(plain, field.name) for field in dataclasses.fields(plain) if field.name != "core"
    }
    found |= {f"STEPFENCE_{name.upper()}_SECONDS": getattr(Settings(), name) for name in _CORE_SECONDS}
    found |= {f"STEPFENCE_{field.name.upper()}": field.default for field in dataclasses.fields(GatewaySettings)}
    return found


def test_the_settings_are_the_ones_that_the_servers_read() -> None:
    assert set(rows(SETTINGS)) == set(variables())


def test_the_numbers_of_the_settings_are_the_defaults() -> None:
    written = {name: int(text) for name, text in rows(SETTINGS).items() if text.isdigit()}
    defaults = {name: value for name, value in variables().items() if isinstance(value, int | float)}
    assert written == defaults


def test_the_metrics_are_the_ones_that_the_servers_tell() -> None:
    cache = Cache(lambda _key: None)
    controller = ControllerMetrics(cache, now=lambda: NOW, leading=lambda: False, depth=lambda: 0)
    served = {
        family.name + ("_total" if family.type == "counter" else "_info" if family.type == "info" else "")
        for registry in (controller.registry, GatewayMetrics().registry)
        for family in registry.collect()
    }
    table = PAGE[PAGE.index("| metric | of |") : PAGE.index("## The byte budget")]
    named = set(re.findall(r"`(stepfence_\w+)", table))
    assert named == served | COUNTED_ELSEWHERE


def reasons_in_the_core() -> set[str]:
    """Return every reason that the core writes as a word of its own."""
    text = "".join(
        (ROOT / "operator/stepfence/core" / f"{name}.py").read_text() for name in ("decide", "dismissal", "summary", "worker_end")
    )
    text += "".join((ROOT / "operator/stepfence" / name).read_text() for name in ("core/answers.py", "core/lifecycle.py", "app/apply.py"))
    found = set(re.findall(r'Condition\("\w+", [^,]+, "(\w+)"', text))
    found |= set(re.findall(r'set_ending\(run, Outcome\.\w+, "(\w+)"', text))
    for groups in re.findall(r'halt_run\([\w.]+, "(\w+)"|return "([A-Z]\w+)", |SUCCEEDED, "(\w+)"', text):
        found |= set(filter(None, groups))
    for line in re.findall(r"^[A-Z][A-Z_, ]+ = (\"[A-Z][\w\", ]+)$", text, re.MULTILINE):
        found |= set(re.findall(r"\w+", line))
    return found


def test_every_reason_is_explained() -> None:
    page = PAGE[PAGE.index("## Conditions and their reasons") : PAGE.index("## Upgrade")]
    named = set(re.findall(r"`([A-Z]\w+)`", page))
    asked = {f"{kind.value}Needed" for kind in QuestionKind}
    released = {reason.value for reason in Release} - {Release.ERROR.value}  # told as Crashed
    written = reasons_in_the_core()
    assert {"Crashed", "StepOverdue", "JobInvalid", "LedgerMissing", "InvalidSpec", "Finished", "NearlyFull"} <= written
    assert written | asked | released <= named


def test_the_folders_of_the_install_table_exist() -> None:
    named = re.findall(r"^\| `((?:manifests|crds)[\w/-]*)` \|", PAGE, re.MULTILINE)
    assert len(named) == 5
    for folder in named:
        assert load(ROOT / folder)
