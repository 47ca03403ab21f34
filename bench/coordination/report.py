"""Rows of figures, the goals they are held against, and what is shown of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.table import Table

OURS: Final = "ours"
THEIRS: Final = "zookeeper"

REACHED: Final = "reached"
MISSED: Final = "missed"
UNKNOWN: Final = "not measured"


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that `share` of the sorted values do not exceed."""
    assert ordered, "no values"
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    return percentile(sorted(values), 0.5)


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on our figure, or on the ratio of ours to ZooKeeper's."""

    bound: float
    at_least: bool
    is_ratio: bool

    def verdict(self, ours: float | None, ratio: float | None) -> str:
        value = ratio if self.is_ratio else ours
        if value is None:
            return UNKNOWN
        reached = value >= self.bound if self.at_least else value < self.bound
        return REACHED if reached else MISSED

    def text(self, unit: str) -> str:
        sign = ">=" if self.at_least else "<"
        return f"ratio {sign} {self.bound:g}" if self.is_ratio else f"{sign} {self.bound:g} {unit}"


PIPELINED: Final = Goal(0.7, at_least=True, is_ratio=True)
FASTER: Final = Goal(1.0, at_least=False, is_ratio=True)


@dataclass(slots=True)
class Row:
    """One figure of each server: one value a round, and what they come to."""

    section: str
    what: str
    unit: str
    goal: Goal | None = None
    worst: bool = False  # the largest of the rounds counts, not the one in the middle
    rounds: dict[str, list[float]] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)

    def add(self, server: str, value: float, wrong: int = 0) -> None:
        self.rounds.setdefault(server, []).append(value)
        self.wrong[server] = self.wrong.get(server, 0) + wrong

    def value(self, server: str) -> float | None:
        values = self.rounds.get(server)
        if not values:
            return None
        return max(values) if self.worst else median(values)

    @property
    def ratio(self) -> float | None:
        ours, theirs = self.value(OURS), self.value(THEIRS)
        return ours / theirs if ours is not None and theirs else None

    @property
    def verdict(self) -> str:
        return self.goal.verdict(self.value(OURS), self.ratio) if self.goal else ""

    @property
    def goal_text(self) -> str:
        return self.goal.text(self.unit) if self.goal else ""

    def as_json(self) -> dict[str, Any]:
        return {
            "section": self.section,
            "what": self.what,
            "unit": self.unit,
            "ours": self.value(OURS),
            "zookeeper": self.value(THEIRS),
            "ratio": self.ratio,
            "goal": self.goal_text,
            "verdict": self.verdict,
            "wrong": self.wrong,
            "rounds": self.rounds,
        }


@dataclass(slots=True)
class Report:
    """A whole run: the machine, the plan, the rows."""

    machine: dict[str, Any]
    plan: str
    rows: list[Row] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        """Answers that were errors or not what they had to be, of all servers."""
        return sum(sum(row.wrong.values()) for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "plan": self.plan,
            "errors": self.wrong,
            "rows": [row.as_json() for row in self.rows],
        }


def figure(value: float | None) -> str:
    """Three digits that count, and all of those before the point."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


_COLOURS: Final = {REACHED: "green", MISSED: "bold red", UNKNOWN: "dim"}


def table(report: Report) -> Table:
    """What a person reads at the end."""
    grid = Table(title="coordination: ours beside ZooKeeper", title_justify="left", box=None)
    grid.pad_edge = False
    for column in ("section", "what", "unit"):
        grid.add_column(column)
    for column in ("ours", "ZooKeeper", "ours / ZooKeeper"):
        grid.add_column(column, justify="right")
    for column in ("goal", "verdict", "errors"):
        grid.add_column(column)
    section = ""
    for row in report.rows:
        colour = _COLOURS.get(row.verdict, "default")
        errors = " / ".join(str(count) for count in row.wrong.values())
        grid.add_row(
            row.section if row.section != section else "",
            row.what,
            row.unit,
            figure(row.value(OURS)),
            figure(row.value(THEIRS)),
            figure(row.ratio),
            row.goal_text,
            f"[{colour}]{row.verdict}[/]" if row.verdict else "",
            f"[bold red]{errors}[/]" if any(row.wrong.values()) else errors,
        )
        section = row.section
    return grid
