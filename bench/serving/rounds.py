"""Windows with something and windows without take turns: what it costs, and how much is noise.

    quiet | busy | quiet | busy | quiet

Each busy window is compared with the quiet ones beside it; those two with each other say what two
windows differ by when nothing was done in either: a ratio that is no larger than that says nothing.

A round in which the host gave more than STOLEN_MAX of our cores to others measures the host: it is
shown, and left out of the whole, unless there is no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.serving.steady import Result

STOLEN_MAX: Final = 0.02


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

    @property
    def stolen(self) -> float:
        """The share of the cores that the host took, in the worst of the three."""
        return max(self.before.stolen, self.busy.stolen, self.after.stolen)

    @property
    def counts(self) -> bool:
        return self.stolen <= STOLEN_MAX

    def document(self) -> dict[str, float]:
        return {
            "before_p99_ms": self.before.p_ms(99),
            "busy_p99_ms": self.busy.p_ms(99),
            "after_p99_ms": self.after.p_ms(99),
            "ratio": self.ratio,
            "noise": self.noise,
            "stolen": self.stolen,
        }

    def __str__(self) -> str:
        return (
            f"p99 {self.before.p_ms(99):.2f} ms quiet, {self.busy.p_ms(99):.2f} busy, "
            f"{self.after.p_ms(99):.2f} quiet: ratio {self.ratio:.2f}, noise {self.noise:.2f}, "
            f"{self.stolen:.1%} of the cores stolen" + ("" if self.counts else ": left out")
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
    def counted(self) -> Sequence[Round]:
        """Those of which the whole is made: all of them if none has had its cores."""
        return [one for one in self.rounds if one.counts] or self.rounds

    @property
    def counting(self) -> int:
        """How many rounds say something about us, and not about the host."""
        return sum(one.counts for one in self.rounds)

    @property
    def whole(self) -> tuple[Result, Result]:
        """All quiet windows of the rounds that count, and all busy ones."""
        counted = self.counted
        quiet = {id(window): window for one in counted for window in (one.before, one.after)}
        return pooled(quiet.values()), pooled(one.busy for one in counted)

    @property
    def ratio(self) -> float:
        """p99 of all busy windows to that of all quiet ones."""
        quiet, busy = self.whole
        return ratio(busy.p_ms(99), quiet.p_ms(99))

    @property
    def noise(self) -> float:
        """The largest of the rounds."""
        return max((one.noise for one in self.counted), default=float("nan"))

    def document(self) -> dict[str, Any]:
        quiet, busy = self.whole
        return {
            "quiet": figures(quiet),
            "busy": figures(busy),
            "ratio": self.ratio,
            "noise": self.noise,
            "counting": self.counting,
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
