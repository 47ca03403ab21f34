"""What goes wrong in the world of topics, how often, and which of it is switched off."""

from __future__ import annotations

from typing import Final

from simulation.named import NamedFaults, Planned

# Faults of single steps: the most that a seed may draw, as a chance.
RATES_MAX: Final = {
    "request lost": 0.1,
    "reply lost": 0.1,  # the request was carried out
    "doubled": 0.1,  # a request comes twice
    "delay": 0.1,  # a request takes seconds
    "lost group": 0.02,  # the broker dies before the journal has what it was told
    "unanswered group": 0.05,  # ... after the journal has it, before anybody is answered
}
# Faults that come at a time of their own: the most that a seed may draw, each.
COUNTS_MAX: Final = {
    "crash broker": 3,
    "pause broker": 2,
    "jump clock": 2,  # the broker's clock of the day, forth or back
    "crash client": 4,
    "zombie": 3,  # a client stops for long; another takes its place, and then it goes on
}
_PRESENT: Final = 0.6


class TopicFaults(NamedFaults):
    """`planned` faults come at a time of the storm."""

    def __init__(self, seed: int, storm_s: float, off: frozenset[str] = frozenset()) -> None:
        super().__init__(seed, off)
        chance = self.random.random
        self.rates = {
            kind: rate * chance() if chance() < _PRESENT else 0.0
            for kind, rate in RATES_MAX.items()
        }
        planned = [
            Planned(storm_s * chance(), kind)
            for kind, most in COUNTS_MAX.items()
            if chance() < _PRESENT
            for _ in range(self.random.randint(1, most))
        ]
        self.planned = sorted(planned, key=lambda fault: (fault.at_s, fault.kind))
