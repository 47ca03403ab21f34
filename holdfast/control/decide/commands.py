"""What may be decided, as values.

Two kinds. A *record* is a write to the coordination plane; the leader makes it in a transaction
that is fenced by its term. An *order* goes to an agent, with the term; the agent refuses an older
one. Both may be carried out twice, late, or after a restart of either side, with the same result:
a record says what it expects to replace, an order names a worker that never comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.control.decide.facts import (
    Attempt,
    CheckpointRecovery,
    Exit,
    Failure,
    Part,
    Placement,
    RecordedStatus,
    TriggerState,
    View,
)
from holdfast.control.decide.spec import JobSpec
from holdfast.wire.orders import (
    Forget,
    GiveSettings,
    GiveView,
    Order,
    StartWorker,
    StopWorker,
    TakeShare,
)

# Orders live below, in `wire`, since agents carry them out.
__all__ = [
    "AbandonCheckpoint",
    "BeginCheckpoint",
    "Command",
    "CommitCheckpoint",
    "Decision",
    "DrainWorker",
    "DropCheckpoint",
    "Finish",
    "Forget",
    "ForgetJob",
    "GiveSettings",
    "GiveView",
    "HaltUpdate",
    "MarkCheckpointUnreadable",
    "MoveTrigger",
    "Order",
    "PlaceWorker",
    "Record",
    "RecoverCheckpoints",
    "SetStatus",
    "StartJob",
    "StartWorker",
    "StopWorker",
    "TakeShare",
    "UnplaceWorker",
    "WriteView",
]

# --- records: writes to the coordination plane ----------------------------------------------


@dataclass(frozen=True, slots=True)
class SetStatus:
    job: str
    status: RecordedStatus


@dataclass(frozen=True, slots=True)
class PlaceWorker:
    """Take room for a new worker. `worker` must be the job's next number."""

    job: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """Mark a worker to leave at the next step boundary."""

    job: str
    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class UnplaceWorker:
    """A worker's end was seen (or its node is gone): its room is free. `failure` counts, if set.

    `unfinished`: it said that the job is done, but it was asked to leave before that was true.
    """

    job: str
    worker: int
    exit: Exit | None
    failure: Failure | None = None
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """The job's last step is committed: whatever happens from now on, it has succeeded."""

    job: str
    step: int


@dataclass(frozen=True, slots=True)
class WriteView:
    """Replace view `view.number - 1`."""

    job: str
    view: View


@dataclass(frozen=True, slots=True)
class BeginCheckpoint:
    job: str
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class CommitCheckpoint:
    """All shares are durable: write the manifest, then the commit record."""

    job: str
    attempt: Attempt
    parts: Mapping[int, tuple[Part, ...]] = field(default_factory=dict)  # worker -> its parts


@dataclass(frozen=True, slots=True)
class AbandonCheckpoint:
    """Give the attempt up. `missed`: its step was too near, the next one names a later one."""

    job: str
    attempt: Attempt
    missed: bool = False


@dataclass(frozen=True, slots=True)
class DropCheckpoint:
    """Remove a committed checkpoint that newer ones have made unnecessary."""

    job: str
    step: int


@dataclass(frozen=True, slots=True)
class MarkCheckpointUnreadable:
    """The newest committed checkpoint does not count any more: nobody can read it back. The one
    before it does; if there is none, the job waits for its user."""

    job: str
    step: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class RecoverCheckpoints:
    """What its user decided for a job none of whose checkpoints could be read back: they count
    again, to be tried once more, or are given up."""

    job: str
    recovery: CheckpointRecovery


@dataclass(frozen=True, slots=True)
class HaltUpdate:
    """Stop the update to this revision: replicas of the one before go on, and replace others."""

    job: str
    revision: int
    reason: str


@dataclass(frozen=True, slots=True)
class MoveTrigger:
    """Where a trigger goes on is another, though no job was started: a topic that is new to it,
    partitions that were added, records that retention has removed."""

    job: str
    before: TriggerState | None
    after: TriggerState


@dataclass(frozen=True, slots=True)
class StartJob:
    """Start the next job of a trigger. That the trigger has come further and that the job is there
    are one transaction: so each record lies in the range of exactly one job."""

    job: str
    spec: JobSpec
    workers_wanted: int | None
    at_s: float


@dataclass(frozen=True, slots=True)
class ForgetJob:
    """Remove a job of a trigger that has ended long ago. `count`: with it so many are removed."""

    job: str
    name: str
    count: int


Record = (
    SetStatus
    | PlaceWorker
    | DrainWorker
    | UnplaceWorker
    | Finish
    | WriteView
    | BeginCheckpoint
    | CommitCheckpoint
    | AbandonCheckpoint
    | DropCheckpoint
    | MarkCheckpointUnreadable
    | RecoverCheckpoints
    | HaltUpdate
    | MoveTrigger
    | StartJob
    | ForgetJob
)

Command = Record | Order


@dataclass(frozen=True, slots=True)
class Decision:
    """A command and the sentence that explains it to a person."""

    command: Command
    reason: str
