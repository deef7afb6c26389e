"""What `drive` found, as data and as a table that a person can act on."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

from stepfence.testing.findings import Finding
from stepfence.testing.history import History
from stepfence.testing.points import CrashPoint

__all__ = ["NotRestartSafe", "Report", "Row"]

_COLUMNS = 5
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Row:
    """One run and what is wrong with it."""

    history: History
    findings: tuple[Finding, ...] = ()

    @property
    def point(self) -> CrashPoint | None:
        """The crash point, None for the run without a crash."""
        return self.history.point


@dataclass(frozen=True, slots=True)
class Report:
    """All runs, the one without a crash first. `str()` of it is the table."""

    rows: tuple[Row, ...] = field(default=())

    @property
    def baseline(self) -> History:
        """The run without a crash."""
        return self.rows[0].history

    @property
    def effects(self) -> dict[str, int]:
        """Which effects the agent has, and how often."""
        return dict(self.baseline.counts)

    @property
    def failed(self) -> tuple[Row, ...]:
        """The runs that went wrong."""
        return tuple(row for row in self.rows if row.findings)

    def __str__(self) -> str:
        names = _shown(self)
        lines = [("crash point", "at", *names, "workers", "asked", "")]
        for row in self.rows:
            history, counts = row.history, row.history.counts
            asked = ", ".join(history.asked) or "-"
            point = str(row.point or "none")
            lines.append((point, history.hit or "-", *(str(counts[name]) for name in names), str(len(history.workers)), asked, _mark(row)))
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([*table, *_legend(self)])


class NotRestartSafe(AssertionError):
    """The agent under test repeats an effect, loses one, or does not come to its end. `report` has the runs."""

    def __init__(self, report: Report, hints: list[str]) -> None:
        self.report = report
        super().__init__("\n\n".join([f"{_headline(report)}", textwrap.indent(str(report), "  "), *hints]))


def verdict(report: Report) -> NotRestartSafe | None:
    """Return what to raise, None when every run is right."""
    if not report.failed:
        return None
    return NotRestartSafe(report, [*_explained(report), *_rerun(report)])


def _headline(report: Report) -> str:
    if report.rows[0].findings:
        return "the agent is not right even without a crash"
    crashed = len(report.rows) - 1
    return f"the agent is not restart-safe: {len(report.failed)} of {crashed} runs with a crash went wrong"


def _explained(report: Report) -> list[str]:
    """Each different finding once, at its worst, with the points at which it was seen."""
    seen: dict[tuple[str, str, str], tuple[Finding, list[str]]] = {}
    for row in report.failed:
        for finding in row.findings:
            key = (finding.kind, finding.effect or finding.text, finding.hint)
            worst, points = seen.get(key, (finding, []))
            worst = finding if finding.times > worst.times else worst
            seen[key] = (worst, [*points, str(row.point or "no crash")])
    return [
        textwrap.fill(f"{finding.text} ({', '.join(points)}).", _WIDTH, subsequent_indent="  ")
        + "\n"
        + textwrap.fill(finding.hint, _WIDTH, initial_indent="  -> ", subsequent_indent="     ")
        for finding, points in seen.values()
    ]


def _rerun(report: Report) -> list[str]:
    point = next((row.point for row in report.failed if row.point is not None), None)
    return [] if point is None else [f'Only the first of them: drive(agent, crashes=["{point}"])']


def _shown(report: Report) -> list[str]:
    """Return the effects that get a column; of very many only those that differ from the run without a crash."""
    names = list(dict.fromkeys(name for row in report.rows for name in row.history.counts))
    if len(names) <= _COLUMNS:
        return names
    return [name for name in names if any(row.history.counts[name] != report.baseline.counts[name] for row in report.rows)][:_COLUMNS]


def _legend(report: Report) -> list[str]:
    used = dict.fromkeys(row.point.when for row in report.rows if row.point is not None)
    return ["", *(f"{when.value} N: {when.meaning}" for when in used)] if used else []


def _mark(row: Row) -> str:
    return "WRONG" if row.findings else "ok"
