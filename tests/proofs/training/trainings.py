"""A training of the proof: its job, the plain process that it is compared with, and its bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.control.decide.facts import JobRecord
from holdfast.control.decide.spec import CheckpointPolicy, JobSpec, Resources
from holdfast.storage import Blobs, open_store
from holdfast.train.data.order import Order, Size
from holdfast.train.states.checkpoints import restore
from holdfast.train.states.state import TrainingState
from tests.proofs.training import judging
from tests.proofs.training.script import witness

LANES: Final = 8
EVERY_STEPS: Final = 12
CHANGED_RATE: Final = "0.003"
ROOT: Final = Path(__file__).parents[3]
ALONE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Training:
    """One training. `set_at`: at which step its learning rate becomes another one."""

    name: str
    model: str
    epochs: int
    workers: tuple[int, int]  # the fewest, the most
    set_at: int | None = None
    step_ms: int = 0

    @property
    def steps(self) -> int:
        return self.epochs * Order(witness.SAMPLES, LANES).left(0, Size(witness.LANE_BATCH, 1))

    def samples(self, folder: Path) -> Path:
        """Where its workers write down what they compute."""
        return folder / "samples" / self.name

    def command(self, folder: Path) -> tuple[str, ...]:
        words = ["--model", self.model, "--epochs", self.epochs, "--step-ms", self.step_ms]
        where = ["--samples", self.samples(folder)]
        return (sys.executable, witness.__file__, *map(str, [*words, *where]))

    def spec(self, folder: Path) -> JobSpec:
        least, most = self.workers
        return JobSpec(
            self.name,
            self.command(folder),
            lanes=LANES,
            workers_min=least,
            workers_max=most,
            resources=Resources(cpu=1.0),
            checkpoint=CheckpointPolicy(every_steps=EVERY_STEPS, every_s=None, keep=3),
        )

    def alone(self, folder: Path) -> str:
        """Train it in one plain process without a cluster; its bits."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("HOLDFAST")}
        checkpoints = folder / "alone" / self.name
        own = {"HOLDFAST_CHECKPOINTS": str(checkpoints), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            self.command(folder),
            env={**kept, **own},
            capture_output=True,
            text=True,
            check=False,
            timeout=ALONE_S,
        )
        assert done.returncode == 0, done.stderr
        last = json.loads((checkpoints / "last.json").read_text())
        assert last["step"] == self.steps, last
        self.judge_samples(folder)
        return bits(restore(open_store(checkpoints), last["manifest"], "solo", last["step"]))

    def bits_of(self, job: JobRecord, blobs: Blobs) -> str:
        """The bits of its last checkpoint, which must be that of its last step."""
        last = job.checkpoints[-1] if job.checkpoints else None
        if last is None or last.step != self.steps:
            raise judging.Violation(f"{self.name}: step {self.steps} is not committed: {last}")
        return bits(restore(blobs, last.manifest, self.name, last.step))

    def judge_samples(self, folder: Path) -> int:
        consumed = judging.read(self.samples(folder))
        return judging.every_sample_counts_once(consumed, witness.SAMPLES, self.epochs)


def bits(state: TrainingState) -> str:
    """SHA-256 of all weights, buffers and optimizer state, with their names, types and shapes."""
    return TrainingState(state.step, state.entries).digest().removeprefix("sha256:")
