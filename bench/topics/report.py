"""Rows of figures of several servers, the goals, and what is shown of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from rich.table import Table

from bench.coordination.report import MISSED, REACHED, UNKNOWN, figure, median
from bench.topics.contestants import KAFKA_FLUSH, OURS


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on our figure, or (`beside`) on its ratio to that of another server."""

    bound: float
    at_least: bool
    beside: str = ""

    def text(self, unit: str) -> str:
        sign = "at least" if self.at_least else "at most"
        return f"{sign} {self.bound:g} {f'of {self.beside}' if self.beside else unit}"


AT_LEAST_AS_MUCH: Final = Goal(1.0, at_least=True, beside=KAFKA_FLUSH)
HALF: Final = Goal(0.5, at_least=False, beside=KAFKA_FLUSH)
THIRD: Final = Goal(0.333, at_least=False, beside=KAFKA_FLUSH)
TENTH: Final = Goal(0.1, at_least=False, beside=KAFKA_FLUSH)


@dataclass(slots=True)
class Row:
    """One figure of each server: a value a round; the median counts."""

    section: str
    what: str
    unit: str
    goal: Goal | None = None
    rounds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, server: str, value: float) -> None:
        self.rounds.setdefault(server, []).append(value)

    def value(self, server: str) -> float | None:
        values = self.rounds.get(server)
        return median(values) if values else None

    def ratio(self, other: str) -> float | None:
        ours, theirs = self.value(OURS), self.value(other)
        return ours / theirs if ours is not None and theirs else None

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        value = self.ratio(self.goal.beside) if self.goal.beside else self.value(OURS)
        if value is None:
            return UNKNOWN
        bound = self.goal.bound
        return REACHED if (value >= bound if self.goal.at_least else value <= bound) else MISSED

    def shown(self, server: str) -> str:
        """The median, and between which values it lies."""
        values = self.rounds.get(server, [])
        if len(values) < 2:
            return figure(self.value(server))
        return f"{figure(median(values))} ({figure(min(values))}-{figure(max(values))})"

    def as_json(self) -> dict[str, Any]:
        servers = {name: self.value(name) for name in self.rounds}
        return {
            "section": self.section,
            "what": self.what,
            "unit": self.unit,
            "medians": servers,
            "ratios": {name: self.ratio(name) for name in self.rounds if name != OURS},
            "goal": self.goal.text(self.unit) if self.goal else "",
            "verdict": self.verdict,
            "rounds": self.rounds,
        }


_COLOURS: Final = {REACHED: "green", MISSED: "bold red", UNKNOWN: "dim"}


def table(rows: list[Row], names: list[str]) -> Table:
    """What a person reads at the end: medians, with the least and the most of the rounds."""
    grid = Table(title="topics", title_justify="left", box=None, pad_edge=False)
    for column in ("section", "what", "unit"):
        grid.add_column(column)
    for column in names:
        grid.add_column(column, justify="right")
    for column in (f"ours / {KAFKA_FLUSH}", "goal", "verdict"):
        grid.add_column(column)
    section = ""
    for row in rows:
        colour = _COLOURS.get(row.verdict, "default")
        grid.add_row(
            row.section if row.section != section else "",
            row.what,
            row.unit,
            *(row.shown(name) for name in names),
            figure(row.ratio(KAFKA_FLUSH)),
            row.goal.text(row.unit) if row.goal else "",
            f"[{colour}]{row.verdict}[/]" if row.verdict else "",
        )
        section = row.section
    return grid
