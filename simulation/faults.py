"""What may go wrong, how often, and which of it is switched off.

Each seed draws its own rates, and leaves about half of the kinds out: a world with one kind of
trouble finds other bugs than a world with all of them.
"""

from __future__ import annotations

from typing import Final

from simulation.named import NamedFaults, Planned
from simulation.sources import source

# Faults of messages and of single steps: the most that a seed may draw, as a chance.
RATES_MAX: Final = {
    "drop": 0.15,  # a message to or from an agent, or between workers, is lost
    "double": 0.15,  # it comes twice
    "delay": 0.15,  # it comes much later, after others
    "request lost": 0.08,  # the connection breaks before the coordination plane has the request
    "reply lost": 0.08,  # ... after the plane has carried it out
    "torn write": 0.05,  # an agent dies while it writes its journal, and some of it is there
    "lost write": 0.03,  # its machine dies while it writes, and nothing of it is there
    "full disk": 0.05,  # there is no room for the journal for a while
    "step crash": 0.02,  # an agent dies between two actions
    "join crash": 0.4,  # an agent dies while its request to join is on its way, which is late
    "user error": 0.12,  # a worker's own code fails
    "stall": 0.2,  # a leader stops between deciding and carrying out, longer than its session
    "put crash": 0.4,  # a worker dies while it writes its share of a checkpoint
}
# Faults that come at a time of their own: the most that a seed may draw, each.
COUNTS_MAX: Final = {
    "kill worker": 4,
    "pause worker": 2,
    "crash agent": 3,
    "pause agent": 2,
    "cut agent": 2,  # no message reaches the agent, or comes from it, for a while
    "deafen agent": 1,  # no message reaches it for a while, but its own are heard
    "mute agent": 1,  # no message comes from it for a while, but it hears the others
    "part machines": 2,  # no message passes between two machines for a while
    "part one way": 1,  # ... from the one to the other
    "cut coordinator": 1,  # no message reaches it or comes from it, or only one of these
    "flip bit": 1,  # a bit of a journal is not what was written; the machine starts again
    "jump clock": 2,  # a coordinator's clock of the day jumps, forth or back
    "jump steady clock": 1,  # a machine's steady clock jumps forth: it was suspended
    "crash machine": 2,
    "crash coordinator": 3,
    "pause coordinator": 3,
    "expire session": 3,
    "restart plane": 1,
    "crash everything": 1,
}
# Faults of a worker's birth and of its end, as a chance. Drawn from a source of their own. They
# come in peace too, so often at most: during storms hardly anybody is born.
BIRTHS_MAX: Final = {
    "slow fork": 0.8,  # between an agent's decision to start a worker and its shim there is time
    "late claim": 1.0,  # between the fork of a shim and its claim there is time
    "launch crash": 0.8,  # the agent dies in that time
    "early pause": 1.0,  # the user pauses the job in that time; at peace not for long
    "slow disk": 0.6,  # the journal takes long to sync, and what happens meanwhile waits
    "end lost": 0.3,  # the journal loses its last batch, and that is the end of a worker
    "replica error": 0.1,  # a replica's own code fails
}
_BIRTHS: Final = 8
# Faults of the store, as a chance, a moment after a commit. Drawn from a source of their own. The
# workers of the job die with it: those that hold the state do not need the store. They come in
# peace too, so often at most: during storms hardly anything is committed.
LOSSES_MAX: Final = {
    "lose newest": 0.7,  # the newest checkpoint of a job cannot be read any more
    "lose all": 0.7,  # none of its checkpoints can; its user mends the store later, or gives it up
}
_LOSSES: Final = 3
# The chance that a seed has a kind at all.
_PRESENT: Final = 0.45


class Faults(NamedFaults):
    """`planned` faults come at a time of the storms: quiet periods between them do not count."""

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
        self._births = source(f"{seed}/births")
        chance = self._births.random
        # All of them or none, and rather often: each needs the others, and storms are short.
        present = chance() < _PRESENT
        for kind, rate in BIRTHS_MAX.items():
            self.rates[kind] = rate * (0.5 + chance() / 2) if present else 0.0

        self._births_left = _BIRTHS
        self.store = source(f"{seed}/store")
        for kind, rate in LOSSES_MAX.items():
            present = self.store.random() < _PRESENT / 2
            self.rates[kind] = rate * self.store.random() if present else 0.0
        self._losses = 0

    def loses(self, kind: str) -> bool:
        """Whether the store loses something after this commit."""
        rate = self.rates[kind]
        if rate == 0.0 or self._losses == _LOSSES or self.store.random() >= rate:
            return False
        self._losses += 1
        return self.happens(kind, always=True)

    def strikes_birth(self, kind: str) -> bool:
        """Whether this goes wrong here and now, where a worker is started."""
        rate = self.rates[kind]
        if rate == 0.0 or self._births.random() >= rate:
            return False
        if self.quiet:
            if self._births_left == 0:
                return False
            self._births_left -= 1
        return self.happens(kind, always=True)

    def birth_s(self, low_s: float, high_s: float) -> float:
        """How long it takes: some time between the two."""
        return self._births.uniform(low_s, high_s)
