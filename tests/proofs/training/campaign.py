"""All of the proof: sizes, schedules, the table, and what is told when something is wrong."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.control.decide.facts import Phase
from tests.proofs.training import judging
from tests.proofs.training.cluster import TrainingCluster, training_cluster
from tests.proofs.training.judging import Violation
from tests.proofs.training.schedules import MODELS, SIZES, Schedule, schedule
from tests.proofs.training.trainings import Training

STEP_MS: Final = 30


@dataclass(frozen=True, slots=True)
class Plan:
    """What a proof does."""

    seed: int
    schedules: int = 30
    epochs: int = 20
    models: Sequence[str] = MODELS
    sizes: Sequence[int] = SIZES
    nodes: int = 2  # with room for eight workers together

    @property
    def capacities(self) -> dict[str, float]:
        return {f"n{number}": 8.0 / self.nodes for number in range(1, self.nodes + 1)}

    def command(self, seed: int | None = None) -> str:
        """What runs it again; with a seed only that schedule."""
        words = f"python -m tests.proofs.training --epochs {self.epochs} --nodes {self.nodes}"
        words += f" --models {' '.join(self.models)}"
        if seed is None:
            return f"{words} --schedules {self.schedules} --seed {self.seed}"
        return f"{words} --schedules 1 --seed {seed} --no-sizes"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    what: str
    model: str
    set_at: int | None
    bits: str
    again: int  # batches that were computed more than once
    took_s: float


class Campaign:
    """One run over a folder of its own."""

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.folder = folder
        self.say = say
        self.rows: list[Row] = []
        self.tally: Counter[str] = Counter()
        self._right: dict[tuple[str, int | None], str] = {}

    def run(self) -> None:
        """Everything; raises `Violation`."""
        with training_cluster(self.folder, self.plan.capacities) as played:
            for model in self.plan.models if self.plan.sizes else ():
                self._sizes(played, model)
            for number in range(self.plan.schedules):
                self._schedule(played, self.plan.seed + number)
            if played.cluster.unasked:
                raise Violation("; ".join(played.cluster.unasked[:5]))

    # --- its parts -------------------------------------------------------------------------------

    def _sizes(self, played: TrainingCluster, model: str) -> None:
        """Undisturbed, on each number of workers; and again with a rate that changes on the way."""
        for size in self.plan.sizes:
            self._one(played, self._training(f"{model}-{size}", model, (size, size)), f"{size}")
        least, most = min(self.plan.sizes), max(self.plan.sizes)
        steps = self._training("", model, (1, 1)).steps
        for size in (least, most):
            name = f"{model}-{size}-set"
            training = self._training(name, model, (size, size), set_at=steps // 2)
            self._one(played, training, f"{size}")

    def _schedule(self, played: TrainingCluster, seed: int) -> None:
        steps = self._training("", self.plan.models[0], (1, 1)).steps
        found = schedule(seed, steps, self.plan.models)
        self.say(f"seed {seed}: {found.words()}")
        name = f"{found.model}-seed-{seed}"
        training = self._training(name, found.model, (1, 8), found.set_at, STEP_MS)
        self._one(played, training, f"seed {seed}", found)
        self.tally = played.made

    def _training(
        self,
        name: str,
        model: str,
        workers: tuple[int, int],
        set_at: int | None = None,
        step_ms: int = 0,
    ) -> Training:
        return Training(name, model, self.plan.epochs, workers, set_at, step_ms)

    def _one(
        self, played: TrainingCluster, training: Training, what: str, found: Schedule | None = None
    ) -> None:
        right = self._reference(played, training.model, training.set_at)
        began_s = time.monotonic()
        try:
            if found is None:
                job = played.play(training, ())
            else:
                job = played.play(training, found.moves, found.workers)
            if job.status.phase is not Phase.SUCCEEDED:
                raise Violation(f"it has {job.status.phase.value}: {job.status.reason}")
            bits = training.bits_of(job, played.blobs)
            judging.same_bits(bits, right, training.name)
            again = training.judge_samples(self.folder)
        except Violation:
            self.say(played.told(training))
            self.say(f"again: {self.plan.command(found.seed if found else None)}")
            raise
        row = Row(what, training.model, training.set_at, bits, again, time.monotonic() - began_s)
        self.rows.append(row)
        self.say(line(row))

    def _reference(self, played: TrainingCluster, model: str, set_at: int | None) -> str:
        """The bits of an undisturbed run: of a plain process; if the rate is changed on the way, of
        one worker of the cluster, whose bits must not be those of a run without the change."""
        if (model, set_at) in self._right:
            return self._right[model, set_at]
        if set_at is None:
            name = f"{model}-alone"
            bits = self._training(name, model, (1, 1)).alone(self.folder)
            self.rows.append(Row("no cluster", model, None, bits, 0, 0.0))
        else:
            plain = self._reference(played, model, None)
            training = self._training(f"{model}-reference-{set_at}", model, (1, 1), set_at)
            job = played.play(training, ())
            bits = training.bits_of(job, played.blobs)
            if bits == plain:
                raise Violation(f"{training.name}: the changed rate had no effect")
            self.rows.append(Row("1", model, set_at, bits, 0, 0.0))
        self._right[model, set_at] = bits
        return bits

    # --- what people see -------------------------------------------------------------------------

    def told(self) -> str:
        """The table, and how often each kind of move met somebody."""
        moves = [f"  {what}: {count}" for what, count in sorted(self.tally.items())]
        return "\n".join([self.table(), *moves])

    def table(self) -> str:
        """The bits of each model, and how many runs ended with them."""
        lines = []
        for (model, set_at), right in sorted(self._right.items(), key=str):
            rows = [row for row in self.rows if (row.model, row.set_at) == (model, set_at)]
            same = sum(row.bits == right for row in rows)
            change = f"set lr at {set_at}" if set_at else "as it began"
            lines.append(f"{model:<12} {change:<16} {right}  {same} of {len(rows)} runs")
        return "\n".join(lines)


def line(row: Row) -> str:
    change = f", set lr at {row.set_at}" if row.set_at else ""
    who = f"{row.what} workers" if row.what.isdecimal() else row.what
    again = f", {row.again} batches again" if row.again else ""
    return f"  {row.model}, {who}{change}: {row.bits[:16]}… in {row.took_s:.0f} s{again}"
