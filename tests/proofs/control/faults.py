"""The schedule of faults: what is done to the cluster, and when. Pure, and the same for a seed.

A fault names a kind of process, not a process: which one it strikes is chosen by `pick` among
those that are there at that moment. So a seed gives the same plan, not the same run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# How often each kind of fault comes, of 100.
KILLS: Final = {
    "worker": 30,
    "workers": 5,  # all workers of a job
    "shim": 7,
    "zygote": 4,
    "agent": 14,
    "node": 5,  # an agent with all its workers: a machine
    "leader": 12,
    "standby": 6,
    "server": 13,  # a server of the coordination plane
    "everything": 4,  # the whole set at once
}
PAUSES: Final = {"worker": 40, "agent": 30, "leader": 30}
PAUSE_SHARE: Final = 0.12
# Long enough to outlast a session, or short enough to be hardly noticed.
PAUSE_S: Final = ((0.2, 1.0), (4.0, 7.0))
# Now and then several at once: the second while the first is being dealt with. Now and then some
# quiet, so that the jobs get somewhere and the next fault meets a cluster at work.
GAPS_S: Final = (((0.0, 0.0), 15), ((0.05, 1.5), 50), ((2.0, 6.0), 35))
AWAY_S: Final = ((0.0, 0.2), (0.5, 4.0))


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault: `after_s` the one before it. A kill: the process is away for `away_s` where the
    harness starts it again. A pause: it is stopped for `away_s`."""

    kill: bool
    kind: str
    after_s: float
    away_s: float
    pick: float  # from 0 to 1: which of those that are there


def strikes(seed: int) -> Iterator[Strike]:
    """Without an end."""
    chance = random.Random(seed)
    while True:
        kill = chance.random() >= PAUSE_SHARE
        weights = KILLS if kill else PAUSES
        (kind,) = chance.choices(list(weights), list(weights.values()))
        (gap_s,) = chance.choices([gap for gap, _ in GAPS_S], [share for _, share in GAPS_S])
        after_s = chance.uniform(*gap_s)
        away_s = chance.uniform(*chance.choice(AWAY_S if kill else PAUSE_S))
        yield Strike(kill, kind, after_s, away_s, chance.random())
