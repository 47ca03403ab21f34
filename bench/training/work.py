"""What every worker of the benches computes, and what it notes of it. The same for all contestants.

Needs torch and nothing else: peers have virtual environments of their own.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.utils.data import TensorDataset

INPUTS: Final = 256
CLASSES: Final = 10
SAMPLES: Final = 8192
LEARNING_RATE: Final = 1e-3
SEED: Final = 1


def options(description: str) -> argparse.ArgumentParser:
    """The words that every script takes."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--notes", type=Path, required=True, help="folder for what workers note")
    found.add_argument("--parameters", type=int, default=1_000_000)
    found.add_argument("--batch", type=int, default=32, help="samples of one worker in a step")
    found.add_argument("--steps", type=int, default=10**9)
    found.add_argument("--block", type=int, default=0, help="steps between two gates; 0: no gates")
    return found


def network(parameters: int) -> nn.Module:
    """Three hidden layers of equal width, and about so many parameters."""
    width = round((-(INPUTS + CLASSES) + ((INPUTS + CLASSES) ** 2 + 8 * parameters) ** 0.5) / 4)
    return nn.Sequential(
        nn.Linear(INPUTS, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    )


def samples() -> TensorDataset:
    """Random points, labelled by a random plane for each class."""
    chance = torch.Generator().manual_seed(SEED)
    x = torch.randn(SAMPLES, INPUTS, generator=chance)
    planes = torch.randn(INPUTS, CLASSES, generator=chance)
    return TensorDataset(x, (x @ planes).argmax(1))


class Notes:
    """One worker's notes: a line a completed step, at the system's one monotonic clock.

    A line is written at once and in one piece: what a killed worker has done is still told.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        mode = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(folder / f"{os.getpid()}.notes", mode, 0o644)

    def step(self, step: int, count: int) -> None:
        """A step of so many samples, over all workers, is complete here."""
        self._line(f"{step} {count} {time.process_time():.6f}")

    def noticed(self) -> None:
        """This worker has noticed that a peer is gone."""
        self._line("! 0")

    def last(self, digest: str) -> None:
        """The worker is through: its weights, and the most memory that it ever held."""
        status = Path("/proc/self/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        self._line(f"= {digest} {int(found[1]) if found else 0}")

    def ends_at(self) -> int | None:
        """The step that is to be the last one, once that has been said."""
        try:
            return int((self.folder / "end").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def gate(self, number: int) -> None:
        """Wait until block `number` may be computed: contestants take turns."""
        path = self.folder / "gate"
        while not (path.exists() and int(path.read_text() or 0) > number):
            time.sleep(0.002)

    def _line(self, text: str) -> None:
        os.write(self._file, f"{time.monotonic():.6f} {text}\n".encode())
