"""How much is measured: a plan for the figures, one for a quick look, one for the tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a run. A round measures each server once, one after the other."""

    name: str
    warm_up_s: float
    rounds: int
    round_s: float
    crowd_processes: int  # clients of their own process, eight requests in flight each
    watchers: int
    watch_rounds: int
    nodes: int
    restarts: int
    stall_rounds: int
    stall_s: float
    snapshot_every: int


# About ten minutes.
FULL: Final = Plan(
    name="full",
    warm_up_s=12.0,
    rounds=5,
    round_s=2.0,
    crowd_processes=8,
    watchers=1_000,
    watch_rounds=31,
    nodes=100_000,
    restarts=3,
    stall_rounds=2,
    stall_s=12.0,
    snapshot_every=500,
)
# Less than a minute. The figures are rough: fewer rounds, and a tenth of the nodes.
QUICK: Final = Plan(
    name="quick",
    warm_up_s=2.0,
    rounds=3,
    round_s=0.25,
    crowd_processes=2,
    watchers=200,
    watch_rounds=7,
    nodes=10_000,
    restarts=1,
    stall_rounds=1,
    stall_s=2.0,
    snapshot_every=200,
)
# Seconds. Nothing but a sign that every part still works.
TINY: Final = Plan(
    name="tiny",
    warm_up_s=0.1,
    rounds=1,
    round_s=0.05,
    crowd_processes=1,
    watchers=10,
    watch_rounds=2,
    nodes=300,
    restarts=1,
    stall_rounds=1,
    stall_s=0.3,
    snapshot_every=50,
)
