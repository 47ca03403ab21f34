"""What is done to a training, and at which step of it. Pure, and the same for a seed.

A move names a kind of process, not a process: which one it strikes is chosen by `pick` among those
that are there at that moment. So a seed gives the same plan, not the same run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MODELS: Final = ("mlp", "convnet", "transformer")
SIZES: Final = (1, 2, 3, 4, 8)
# How often each kind of move comes, of 100.
KINDS: Final = {
    "kill worker": 24,
    "kill workers": 4,  # all of them
    "kill agent": 9,
    "kill node": 6,  # an agent with all its workers: a machine
    "kill leader": 9,
    "kill server": 8,
    "kill zygote": 3,
    "kill everything": 7,  # the whole set at once
    "pause worker": 9,
    "pause agent": 4,
    "pause leader": 4,
    "scale": 13,
}
MOVES: Final = (2, 5)
PAUSE_S: Final = ((0.2, 1.0), (4.0, 6.0))
AWAY_S: Final = ((0.0, 0.2), (0.5, 2.0))
# Now and then a move comes right after the one before: while that is being dealt with.
AT_ONCE_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Move:
    """One thing that is done when the training has come to `at_step`."""

    kind: str
    at_step: int
    pick: float = 0.0  # from 0 to 1: which of those that are there
    away_s: float = 0.0  # a pause's length; how long what was killed stays away
    workers: int = 0  # of a resize


@dataclass(frozen=True, slots=True)
class Schedule:
    """A training and what happens to it. `set_at`: at which step its learning rate changes."""

    seed: int
    model: str
    workers: int
    set_at: int | None
    moves: tuple[Move, ...]

    def words(self) -> str:
        told = [
            f"{move.kind}{f' to {move.workers}' if move.workers else ''} at {move.at_step}"
            for move in self.moves
        ]
        change = f", set lr at {self.set_at}" if self.set_at else ""
        return f"{self.model} on {self.workers}{change}: {'; '.join(told)}"


def schedule(seed: int, steps: int, models: Sequence[str] = MODELS) -> Schedule:
    """The schedule of a seed for a training of so many steps."""
    chance = random.Random(seed)
    moves: list[Move] = []
    at_step = 0
    count = chance.randint(*MOVES)
    for number in range(count):
        (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
        # Spread over the run, up to its last tenth.
        latest = max(at_step + 1, steps * 9 * (number + 1) // (10 * count))
        if not moves or chance.random() >= AT_ONCE_SHARE:
            at_step = chance.randint(at_step + 1, latest)
        lengths = PAUSE_S if kind.startswith("pause") else AWAY_S
        away_s = round(chance.uniform(*chance.choice(lengths)), 2)
        workers = chance.choice(SIZES) if kind == "scale" else 0
        moves.append(Move(kind, at_step, round(chance.random(), 3), away_s, workers))
    changed = chance.random() < 0.4
    return Schedule(
        seed,
        models[seed % len(models)],
        chance.choice(SIZES),
        steps // 2 if changed else None,
        tuple(moves),
    )
