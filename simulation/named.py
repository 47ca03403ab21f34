"""Faults with names, of whatever world: each that happens is its kind and a number (`drop#3`), by
which it can be switched off when a seed is run again. That is how a failing seed is made small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulation.sources import source


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault with a time of the storms: whom it hits is decided when it happens."""

    at_s: float
    kind: str


class NamedFaults:
    """Decides, for one run, what goes wrong; nothing does while it is `quiet`. A world draws from
    `random` what it plans, and `rates`: by kind, the chance of a single step to go wrong."""

    rates: Mapping[str, float]

    def __init__(self, seed: int, off: frozenset[str]) -> None:
        self.random = source(f"{seed}/faults")
        self.off = off
        self.quiet = False
        self.struck: list[str] = []
        self._counts: dict[str, int] = {}

    def strikes(self, kind: str) -> bool:
        """Whether this goes wrong here and now."""
        rate = self.rates[kind]
        return rate > 0.0 and not self.quiet and self.random.random() < rate and self.happens(kind)

    def happens(self, kind: str, *, always: bool = False) -> bool:
        """Give a fault its name; False if it is switched off. `always`: also in quiet times."""
        count = self._counts.get(kind, 0) + 1
        self._counts[kind] = count
        name = f"{kind}#{count}"
        if (self.quiet and not always) or kind in self.off or name in self.off:
            return False
        self.struck.append(name)
        return True
