"""Windows with something and windows without take turns: what it costs, and how much is noise.

    quiet | busy | quiet | busy | quiet

Each busy window is compared with the quiet ones beside it; those two with each other say what two
windows differ by when nothing was done in either: a ratio that is no larger than that says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.serving.steady import Result


def ratio(above: float, below: float) -> float:
    return above / below if below else float("nan")


def pooled(results: Iterable[Result]) -> Result:
    whole = Result()
    for one in results:
        whole.merge(one)
    return whole


@dataclass(frozen=True)
class Round:
    """A busy window between two quiet ones."""

    before: Result
    busy: Result
    after: Result

    @property
    def ratio(self) -> float:
        """p99 of the busy window to that of the quiet ones together."""
        return ratio(self.busy.p_ms(99), pooled([self.before, self.after]).p_ms(99))

    @property
    def noise(self) -> float:
        """p99 of the worse quiet window to that of the better one."""
        low, high = sorted([self.before.p_ms(99), self.after.p_ms(99)])
        return ratio(high, low)

    def document(self) -> dict[str, float]:
        return {
            "before_p99_ms": self.before.p_ms(99),
            "busy_p99_ms": self.busy.p_ms(99),
            "after_p99_ms": self.after.p_ms(99),
            "ratio": self.ratio,
            "noise": self.noise,
        }

    def __str__(self) -> str:
        return (
            f"p99 {self.before.p_ms(99):.2f} ms quiet, {self.busy.p_ms(99):.2f} busy, "
            f"{self.after.p_ms(99):.2f} quiet: ratio {self.ratio:.2f}, noise {self.noise:.2f}"
        )


@dataclass
class Turns:
    """The windows in their order: one quiet more than busy ones."""

    quiet: list[Result] = field(default_factory=list)
    busy: list[Result] = field(default_factory=list)

    @property
    def rounds(self) -> Sequence[Round]:
        beside = zip(self.quiet, self.busy, self.quiet[1:], strict=False)
        return [Round(*windows) for windows in beside]

    @property
    def ratio(self) -> float:
        """p99 of all busy windows to that of all quiet ones."""
        return ratio(pooled(self.busy).p_ms(99), pooled(self.quiet).p_ms(99))

    @property
    def noise(self) -> float:
        """The largest of the rounds."""
        return max((one.noise for one in self.rounds), default=float("nan"))

    def document(self) -> dict[str, Any]:
        return {
            "quiet": figures(pooled(self.quiet)),
            "busy": figures(pooled(self.busy)),
            "ratio": self.ratio,
            "noise": self.noise,
            "rounds": [one.document() for one in self.rounds],
        }


def figures(result: Result) -> dict[str, float]:
    return {
        "requests": result.sent,
        "failed": result.failed,
        "p50_ms": result.p_ms(50),
        "p99_ms": result.p_ms(99),
        "p999_ms": result.p_ms(99.9),
        "longest_ms": result.latencies.longest_s * 1000,
        "generator_late_p99_ms": result.late.percentile_ms(0.99),
    }
