"""Runs and their steps as lines of a terminal: aligned, never wider or higher than told. Pure, and without rich."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepfence.cli.text import plain
from stepfence.local.waiting import Rank, RunView, StepView

__all__ = ["Line", "Part", "lines_of"]

_GAP = "  "
_NARROW = 60
_LEAST_WAITS = 12
_TITLED_HEIGHT = 8
_NOTE_LINES = 2
_WAITS_LINES = 3
_TITLES = ("STEP", "ACTION", "STATE", "ATTEMPT")


class Part(NamedTuple):
    """Some text, and what it is: the words that styles are chosen by."""

    text: str
    kind: str = ""


Line = tuple[Part, ...]


def lines_of(views: Sequence[RunView], width: int, height: int) -> list[Line]:
    """Return at most `height` lines: open runs and steps before what is done, counts for what is left out. No line is cut to `width` here.

    A line's words are laid out for that width; wide characters and long names may still reach beyond it.
    """
    table = _Table.of(views, width)
    order = sorted(range(len(views)), key=lambda index: (_tier(views[index]), index))
    titled = height >= _TITLED_HEIGHT and any(view.steps for view in views)
    room = max(2, height) - (2 if titled else 0)
    fits = len(views) if len(views) <= room else room - 1
    shown, hidden = sorted(order[:fits]), [views[index] for index in order[fits:]]
    more = [_more_runs(hidden)] if hidden else []
    blocks = {index: _Block.of(views[index], table) for index in shown}
    shares = _shares([(index, blocks[index]) for index in order[:fits]], room - fits - len(more), views)
    body = [line for index in shown for line in blocks[index].lines(shares[index])]
    return [*([(), table.titles()] if titled else []), *body, *more]


def _more_runs(hidden: Sequence[RunView]) -> Line:
    counts = Counter(view.phase.value for view in hidden)
    return (Part(f"… and {len(hidden)} more runs: {_counted(counts)}", "dim"),)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _shares(blocks: Sequence[tuple[int, _Block]], room: int, views: Sequence[RunView]) -> dict[int, int]:
    """Share lines out, fairly: what a small run does not need goes to others; runs that ask come first, those that are over last."""
    shares = dict.fromkeys((index for index, _ in blocks), 0)
    for tier in range(3):
        wanting = sorted((block.wanted, index) for index, block in blocks if _tier(views[index]) == tier)
        for place, (wanted, index) in enumerate(wanting):
            shares[index] = min(wanted, max(0, room) // (len(wanting) - place))
            room -= shares[index]
    return shares


def _tier(view: RunView) -> int:
    return 0 if view.asks else 2 if view.over else 1


@dataclass(frozen=True, slots=True)
class _Table:
    """Columns, as wide as the widest cell of all runs, within the terminal. `width`: of the whole line."""

    width: int
    columns: tuple[int, ...]
    named: tuple[int, ...]

    @classmethod
    def of(cls, views: Sequence[RunView], width: int) -> _Table:
        named = (0, 2) if width < _NARROW else (0, 1, 2, 3)
        cells = [_cells(step) for view in views for step in view.steps]
        widest = [max([len(_TITLES[column]), *(len(row[column]) for row in cells)]) for column in named]
        widest[0] = min(widest[0], max(8, width // 3))
        return cls(width, tuple(widest), named)

    @property
    def start(self) -> int:
        """Where what is waited for begins."""
        return sum(self.columns) + len(_GAP) * (len(self.columns) + 1)

    def titles(self) -> Line:
        return (Part(_GAP + self._row(_TITLES) + "WAITS FOR", "dim"),)

    def step(self, step: StepView) -> list[Line]:
        """The step's line, and more of them for what it waits for."""
        room = self.width - self.start
        indent, room = (self.start, room) if room >= _LEAST_WAITS else (2 * len(_GAP), max(1, self.width - 2 * len(_GAP)))
        waits = _wrapped(step.waits, room, _WAITS_LINES)
        cells = _cells(step)
        first = [Part(_GAP)]
        for column, width in zip(self.named, self.columns, strict=True):
            kind = step.state if column == 2 else ""
            first += [Part(_cut(cells[column], width).ljust(width), kind), Part(_GAP)]
        if waits and indent == self.start:
            first.append(Part(waits.pop(0), _kind(step)))
        return [tuple(first), *((Part(" " * indent), Part(text, _kind(step))) for text in waits)]

    def _row(self, cells: Sequence[str]) -> str:
        return "".join(_cut(cells[column], width).ljust(width) + _GAP for column, width in zip(self.named, self.columns, strict=True))


def _cells(step: StepView) -> tuple[str, str, str, str]:
    return plain(step.id), plain(step.action), step.state, step.attempts


def _kind(step: StepView) -> str:
    return "person" if step.waits.startswith("a person") and step.rank is Rank.OPEN else ""


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _wrapped(text: str, width: int, most: int) -> list[str]:
    shown = plain(text)
    if len(shown) <= width:  # as most are, of thousands
        return [shown] if shown.strip() else []
    lines = textwrap.wrap(shown, width)
    if len(lines) > most:
        lines = [*lines[: most - 1], _cut(" ".join(lines[most - 1 :]), width)]
    return lines


@dataclass(frozen=True, slots=True)
class _Block:
    """One run: its head, what it waits for, its steps."""

    head: Line
    notes: tuple[Line, ...]
    steps: tuple[tuple[StepView, tuple[Line, ...]], ...]

    @classmethod
    def of(cls, view: RunView, table: _Table) -> _Block:
        head = (Part(plain(view.name), "run"), Part(_GAP), Part(view.phase.value, view.phase.value))
        rest = Part(f"{_GAP}{view.progress}{_GAP}token {view.token}{_GAP}{plain(view.worker)}")
        fits = sum(len(part.text) for part in (*head, rest)) <= table.width
        kind = "person" if view.asks else "dim"
        notes = [(Part(_GAP), Part(note, kind)) for note in _wrapped(view.waits, max(1, table.width - len(_GAP)), _NOTE_LINES)]
        steps = tuple((step, tuple(table.step(step))) for step in view.steps)
        return cls((*head, rest) if fits else head, tuple(notes if fits else [(rest,), *notes]), steps)

    @property
    def wanted(self) -> int:
        """Lines beside the head, if there is room for all."""
        return len(self.notes) + sum(len(lines) for _, lines in self.steps)

    def lines(self, room: int) -> list[Line]:
        """The head and at most `room` more lines."""
        notes = self.notes[:room]
        room -= len(notes)
        if sum(len(lines) for _, lines in self.steps) <= room:
            return [self.head, *notes, *(line for _, lines in self.steps for line in lines)]
        kept = self._kept(room - 1)
        shown = [line for index, (_, lines) in enumerate(self.steps) if index in kept for line in lines]
        counts = Counter(step.state for index, (step, _) in enumerate(self.steps) if index not in kept)
        more = [(Part(f"{_GAP}… {_counted(counts)}", "dim"),)] if room > 0 else []
        return [self.head, *notes, *shown, *more]

    def _kept(self, room: int) -> frozenset[int]:
        """What is open comes first, then what comes next, then what was done last."""
        ranks = [step.rank for step, _ in self.steps]
        kept = set()
        for index in sorted(range(len(ranks)), key=lambda at: (ranks[at], -at if ranks[at] is Rank.DONE else at)):
            room -= len(self.steps[index][1])
            if room < 0:
                break
            kept.add(index)
        return frozenset(kept)
