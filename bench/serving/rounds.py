"""Windows with something and windows without take turns: what it costs, and how much is noise.

    quiet | busy | quiet | busy | quiet

All busy windows are compared with all quiet ones. The noise is what quiet windows differ by though
nothing was done: every second one of them beside the others. A ratio that is no larger says
nothing.

A window in which the host gave more than STOLEN_MAX of our cores to others measures the host: it is
shown, and left out, unless there is no other of its kind.
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


def counts(window: Result) -> bool:
    """Whether it says something about us, and not about the host."""
    return window.stolen <= STOLEN_MAX


def described(window: Result) -> str:
    left_out = "" if counts(window) else ": left out"
    return f"p99 {window.p_ms(99):.2f} ms, {window.stolen:.1%} of the cores stolen{left_out}"


@dataclass
class Turns:
    """The windows of each kind, in their order: one quiet more than busy ones."""

    quiet: list[Result] = field(default_factory=list)
    busy: list[Result] = field(default_factory=list)

    @property
    def counting(self) -> int:
        """How many of each kind count, at least."""
        return min(sum(map(counts, self.quiet)), sum(map(counts, self.busy)))

    @property
    def whole(self) -> tuple[Result, Result]:
        """All quiet windows that count, and all busy ones."""
        return pooled(_counted(self.quiet)), pooled(_counted(self.busy))

    @property
    def ratio(self) -> float:
        """p99 of all busy windows to that of all quiet ones."""
        quiet, busy = self.whole
        return ratio(busy.p_ms(99), quiet.p_ms(99))

    @property
    def noise(self) -> float:
        """p99 of every second quiet window to that of the others, the worse to the better."""
        quiet = _counted(self.quiet)
        halves = [pooled(half).p_ms(99) for half in (quiet[::2], quiet[1::2]) if half]
        return ratio(max(halves), min(halves)) if len(halves) > 1 else float("nan")

    def document(self) -> dict[str, Any]:
        quiet, busy = self.whole
        return {
            "quiet": figures(quiet),
            "busy": figures(busy),
            "ratio": self.ratio,
            "noise": self.noise,
            "counting": self.counting,
            "windows": {
                name: [{"p99_ms": one.p_ms(99), "stolen": one.stolen} for one in windows]
                for name, windows in (("quiet", self.quiet), ("busy", self.busy))
            },
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


def _counted(windows: Sequence[Result]) -> Sequence[Result]:
    return [one for one in windows if counts(one)] or windows
