"""How far a run is, as one value. Pure: `panel` shows it, `runner` gathers it."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdfast.control.decide.facts import JobRecord, Phase, WorkerFacts, WorkerPhase
from holdfast.control.decide.pace import Slowest, paces, slowest
from holdfast.control.rpc.observing import Observation
from holdfast.wire.reports import LANE_METRIC, SAMPLES_METRIC, SETTING_METRIC, TOTAL_METRIC

# Steps a second, over the last so many seconds: steady to the eye, and soon true after a change.
RUN_RATE_S: Final = 5.0
# What a run keeps of its own: samples of progress for the summary, lines that wait to be shown.
RUN_SAMPLES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class WorkerCell:
    """One worker. `step` None: it holds no state yet."""

    worker: int
    node: str
    phase: WorkerPhase
    step: int | None
    lanes: int
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A moment of a run. Its times are on the wall clock."""

    name: str
    phase: Phase
    reason: str
    since_s: float
    at_s: float
    lanes: int
    step: int = 0
    total: int | None = None
    rate: float | None = None
    samples_rate: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    metrics_step: int = 0  # of which step they are
    cells: tuple[WorkerCell, ...] = ()
    committed_step: int | None = None
    committed_s: float = 0.0
    saving: bool = False
    trouble: str = ""
    slowest: Slowest | None = None  # of several, if it is clearly slower than the others

    @property
    def left_s(self) -> float | None:
        """How long it still takes at this pace."""
        if self.total is None or not self.rate:
            return None
        return max(0.0, (self.total - self.step) / self.rate)


class StepSample(NamedTuple):
    at_s: float
    step: int


class StepRate:
    """Steps over time: the present rate, and what of the time was spent at the usual one."""

    def __init__(self) -> None:
        self._samples: deque[StepSample] = deque(maxlen=RUN_SAMPLES_MAX)

    def saw(self, at_s: float, step: int) -> None:
        """A step was seen, on the monotonic clock. Going back (a restore) begins a new stretch."""
        if not self._samples or self._samples[-1].step != step:
            self._samples.append(StepSample(at_s, step))

    def rate(self, now_s: float) -> float | None:
        """Steps a second, lately; None: too little was seen."""
        recent = [each for each in self._samples if each.at_s >= now_s - RUN_RATE_S]
        if len(recent) < 2 or recent[-1].step <= recent[0].step:
            return 0.0 if self._samples and not recent else None
        # Up to now, so that it falls when nothing comes any more; but steps come in reports.
        took_s = max(recent[-1].at_s, now_s - 1.0) - recent[0].at_s
        return (recent[-1].step - recent[0].step) / max(took_s, 1e-3)

    @property
    def steps(self) -> int:
        """Steps that this run saw and that count: from the first seen to the last."""
        return self._samples[-1].step - self._samples[0].step if self._samples else 0

    @property
    def seconds(self) -> float:
        return self._samples[-1].at_s - self._samples[0].at_s if self._samples else 0.0

    def usual(self) -> float | None:
        """The median rate over stretches of a second; None: too short to say."""
        rates, start = [], None
        for sample in self._samples:
            if start is None or sample.step < start.step:
                start = sample
            elif sample.at_s >= start.at_s + 1.0:
                rates.append((sample.step - start.step) / (sample.at_s - start.at_s))
                start = sample
        return statistics.median(rates) if len(rates) >= 5 else None

    def goodput(self) -> float | None:
        """Which part of the time its steps would have taken at the usual pace."""
        usual = self.usual()
        if not usual or self.seconds <= 0:
            return None
        return min(1.0, self.steps / usual / self.seconds)


def seen_of(observation: Observation | None) -> dict[int, tuple[str, WorkerFacts]]:
    """The workers that an observation holds, with their nodes."""
    if observation is None:
        return {}
    return {
        facts.worker: (node.node, facts)
        for node in observation.nodes
        for facts in node.workers
        if facts.phase is not WorkerPhase.GONE
    }


def step_of(job: JobRecord, observation: Observation | None) -> int:
    """How far it is: the most advanced member's step, or the last commit."""
    steps = [facts.step for _, facts in seen_of(observation).values() if facts.step is not None]
    return max([job.committed_step, *steps])


def progress_of(
    job: JobRecord,
    observation: Observation | None,
    pace: StepRate,
    *,
    wall_s: float,
    now_s: float,
    trouble: str = "",
) -> RunProgress:
    """The progress that the coordination plane and the agents tell of."""
    seen = seen_of(observation)
    metrics_step, metrics = _metrics(observation)
    total, samples = metrics.pop(TOTAL_METRIC, None), metrics.pop(SAMPLES_METRIC, None)
    metrics.pop(LANE_METRIC, None)
    metrics = {name: each for name, each in metrics.items() if not name.startswith(SETTING_METRIC)}
    slow = slowest(paces(job.view, {worker: facts for worker, (_, facts) in seen.items()}))
    rate = pace.rate(now_s) if any(facts.step is not None for _, facts in seen.values()) else None
    last = job.checkpoints[-1] if job.checkpoints else None
    return RunProgress(
        job.name,
        job.status.phase,
        job.status.reason.partition("\n")[0],
        job.status.since_s,
        wall_s,
        job.spec.lanes,
        step=step_of(job, observation),
        total=None if total is None else int(total),
        rate=rate,
        samples_rate=None if samples is None or rate is None else samples * rate,
        metrics=metrics,
        metrics_step=metrics_step,
        cells=_cells(job, seen),
        committed_step=last.step if last else None,
        committed_s=last.committed_s if last else 0.0,
        saving=job.attempt is not None,
        trouble=trouble,
        slowest=slow if slow is not None and slow.notable else None,
    )


def _metrics(observation: Observation | None) -> tuple[int, dict[str, float]]:
    """Those of the most advanced worker, and its step; the lowest number among equals. Also of one
    that has gone: of a job that has ended they are the last."""
    nodes = observation.nodes if observation is not None else ()
    held = [
        facts
        for node in nodes
        for facts in node.workers
        if facts.metrics and facts.step is not None
    ]
    if not held:
        return 0, {}
    best = max(held, key=lambda facts: (facts.step or 0, -facts.worker))
    return best.step or 0, dict(best.metrics)


def _cells(job: JobRecord, seen: Mapping[int, tuple[str, WorkerFacts]]) -> tuple[WorkerCell, ...]:
    """A cell for each worker that is placed, or that an agent still knows."""
    lanes = job.view.lanes if job.view else {}
    cells = []
    placed = {placement.worker: placement for placement in job.placements}
    for worker in sorted({*placed, *seen}):
        placement = placed.get(worker)
        node, facts = seen.get(worker, (placement.node if placement else "", None))
        cells.append(
            WorkerCell(
                worker,
                node,
                facts.phase if facts else WorkerPhase.STARTING,
                facts.step if facts else None,
                len(lanes.get(worker, ())),
                leaving=placement is None or placement.draining,
            )
        )
    return tuple(cells)
