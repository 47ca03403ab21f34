"""What a step costs the host, beside a plain loop: microseconds of the training thread, no GPU.

    python -m bench.gpu.host --rounds 5

A model so small that computing it is next to nothing, 8 lanes of 2 samples, AdamW; what is left is
what Python and torch do around it. A model that a GPU computes faster than the host launches it
pays this in every step. Each run is a process of its own, in turns; gradients are folded as on a
GPU. Time is the thread's own (`time.thread_time`): others on the machine disturb it less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.utils.data import TensorDataset

from bench.gpu.models import LANES, optimizer_of
from holdfast import train
from holdfast.train.sums.gradients import GradientSums

LANE_BATCH: Final = 2
WARM: Final = 50  # steps; in the first 32 batches and then in one of 64 ours looks more closely


class Tiny(nn.Module):
    """As many layers as the MLP of `bench.gpu.models`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.body(x)), y)


class Clock:
    """Of the thread that trains."""

    def __init__(self) -> None:
        self.found: list[float] = []
        self._begun_s = time.thread_time()

    def step(self) -> None:
        now_s = time.thread_time()
        self.found.append((now_s - self._begun_s) * 1e6)
        self._begun_s = now_s

    def median(self) -> float:
        return statistics.median(self.found[WARM:])


def data(steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    count, chance = steps * LANES * LANE_BATCH, torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, generator=chance)
    return x, torch.randint(0, 4, (count,), generator=chance)


def plain(steps: int) -> float:
    torch.use_deterministic_algorithms(True)
    model, (x, y) = Tiny(), data(steps)
    optimizer, clock = optimizer_of(model), Clock()
    for step in range(steps):
        for lane in range(LANES):
            begin = (step * LANES + lane) * LANE_BATCH
            place = slice(begin, begin + LANE_BATCH)
            (model(x[place], y[place]) / LANES).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clock.step()
    return clock.median()


def ours(steps: int) -> float:
    begin, found = GradientSums.__init__, list[float]()

    def as_on_a_gpu(self: GradientSums, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        self.gathers = True

    GradientSums.__init__ = as_on_a_gpu  # type: ignore[method-assign]

    def main(run: train.Run) -> None:
        model = Tiny()
        run.track(model=model, optimizer=optimizer_of(model))
        clock = Clock()
        run.every(1, lambda _: clock.step())
        for batch in run.batches(TensorDataset(*data(steps)), lane_batch=LANE_BATCH, shuffle=False):
            run.step(model(batch.x, batch.y))
        found.append(clock.median())

    train.launch(main, lanes=LANES)
    return found[0]


CONTESTANTS: Final[dict[str, Callable[[int], float]]] = {"plain": plain, "ours": ours}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", choices=sorted(CONTESTANTS), help="one run, in this process")
    given = options.parse_args()
    if given.only:
        torch.set_num_threads(1)
        print(f"ROW {CONTESTANTS[given.only](given.steps)}", flush=True)
        return
    found: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for _ in range(given.rounds):
        for name, rows in found.items():
            command = [sys.executable, "-m", "bench.gpu.host", "--only", name]
            done = subprocess.run(
                [*command, "--steps", str(given.steps)],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=True,
            )
            rows.append(float(done.stdout.partition("ROW ")[2].split()[0]))
    for name, rows in found.items():
        print(
            f"{name}: {statistics.median(rows):.0f} us a step ({min(rows):.0f} to {max(rows):.0f})"
        )
    more = statistics.median(found["ours"]) - statistics.median(found["plain"])
    print(f"ours costs {more:.0f} us more, {more / LANES:.0f} a lane", flush=True)


if __name__ == "__main__":
    main()
