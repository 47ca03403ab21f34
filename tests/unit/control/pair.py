"""A job in the middle of its life: the one that tests of its checkpoints and its end begin with."""

from __future__ import annotations

from dataclasses import replace

from holdfast.control.decide.facts import (
    Checkpoint,
    JobRecord,
    Phase,
    Placement,
    RecordedStatus,
    View,
)
from holdfast.control.decide.spec import CheckpointPolicy, JobSpec


def pair(workers_max: int = 2, **changes: object) -> JobRecord:
    """Two workers in view 7; step 10 is committed; no checkpoint is due by itself."""
    policy = CheckpointPolicy(every_steps=None, every_s=None, keep=2)
    spec = JobSpec("train", ("python",), lanes=2, workers_max=workers_max, checkpoint=policy)
    made = JobRecord(
        spec,
        0.0,
        RecordedStatus(Phase.RUNNING, "on 2 workers", 1.0),
        next_worker=3,
        placements=(Placement(1, "n1"), Placement(2, "n1")),
        view=View(7, {1: (0,), 2: (1,)}),
        attempts=4,
        checkpoints=(Checkpoint(10, "m", 1, 90.0),),
    )
    return replace(made, **changes)  # type: ignore[arg-type]
