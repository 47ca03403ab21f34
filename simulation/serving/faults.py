"""What may go wrong in the serving world, how often, and which of it is switched off.

As in `simulation.faults`: each seed draws its own rates and leaves about half of the kinds out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from simulation.named import NamedFaults, Planned
from simulation.sources import source

# Faults of single steps: the most that a seed may draw, as a chance.
RATES_MAX: Final = {
    "late": 0.15,  # what is written is read much later, after what was written later
    "double": 0.15,  # it is told of twice
    "request lost": 0.15,  # a controller's write does not reach the plane, and it does not know
    "reply lost": 0.15,  # ... it does, and the controller does not know
    "scale refused": 1.0,  # the job cannot be scaled now; it is tried again later
    "slow load": 0.2,  # a version takes long to load
    "failed load": 0.2,  # a replica does not reach the store; it tries again
    "slow envoy": 0.2,  # Envoy looks at a file much later
}
# Faults that come at a time of their own: the most that a storm may have, each.
COUNTS_MAX: Final = {
    "kill replica": 5,
    "pause replica": 2,
    "expire replica": 2,  # its session is lost, and it lives
    "crash controller": 3,
    "pause controller": 2,  # it may wake up deposed, with a decision in its hand
    "depose controller": 2,  # its session is over, and it does not know
    "clock jump": 2,  # of a controller
    "restart gateway": 2,  # Envoy goes on
    "pause gateway": 2,
    "expire gateway": 1,
    "kill envoy": 1,
    "deaf": 2,  # one process hears nothing from the plane, which hears it
    "mute": 2,  # ... or the other way round
    "plane away": 1,
    "silence": 2,  # replicas do not tell their counts for a while
    "everything": 1,  # all replicas, the leader and a gateway at once
}
# Drawn by themselves, so that what other kinds draw from a seed stays as it was.
LATER_MAX: Final = {
    "restless replica": 2,  # its node changes again and again, and each time its clusters with it
}
# The chance that a seed has a kind at all, and that it has any.
_PRESENT: Final = 0.4
_ANY: Final = 0.85


class Faults(NamedFaults):
    """`planned`: for each storm, what happens at a time of its own."""

    def __init__(self, seed: int, storms_s: Sequence[float], off: frozenset[str]) -> None:
        super().__init__(seed, off)
        chance = self.random.random
        present = _PRESENT if chance() < _ANY else 0.0
        self.rates = {
            kind: rate * chance() if chance() < present else 0.0 for kind, rate in RATES_MAX.items()
        }
        kinds = {kind: most for kind, most in COUNTS_MAX.items() if chance() < present}
        planned = [_planned(self.random, kinds, length_s) for length_s in storms_s]
        own = source(f"{seed}/faults/later")
        later = {kind: most for kind, most in LATER_MAX.items() if own.random() < present}
        self.planned = tuple(
            [*before, *_planned(own, later, length_s)]
            for before, length_s in zip(planned, storms_s, strict=True)
        )


def _planned(random: Random, kinds: Mapping[str, int], length_s: float) -> list[Planned]:
    return [
        Planned(length_s * random.random(), kind)
        for kind, most in kinds.items()
        for _ in range(random.randint(1, most))
    ]
