"""Desired and observed state, as values.

Desired state comes from the coordination plane alone, observed state from agents' snapshots alone.
Nothing here is an assumption: what an agent has not reported is not known.

Identities never come back. A worker's number is used once: a worker that has gone is gone for
ever, its replacement has another number. So a command about a worker means the same whenever and
however often it arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from holdfast.control.decide.spec import JobSpec, Resources
from holdfast.wire.orders import Attempt, View
from holdfast.wire.reports import Exit, ExitKind, NodeFacts, Part, WorkerFacts, WorkerPhase

# What agents and workers need too lives below, in `wire`; here it is under one roof.
__all__ = [
    "Attempt",
    "Checkpoint",
    "CheckpointRecovery",
    "DesiredState",
    "Exit",
    "ExitKind",
    "Failure",
    "Halt",
    "Intent",
    "JobRecord",
    "NodeFacts",
    "ObservedState",
    "Part",
    "Phase",
    "Placement",
    "QueueQuota",
    "RecordedStatus",
    "Setting",
    "TopicOffsets",
    "TriggerState",
    "Unreadable",
    "View",
    "WorkerFacts",
    "WorkerPhase",
]


class Intent(Enum):
    """What the user wants of a job now."""

    RUN = "run"
    PAUSE = "pause"
    STOP = "stop"
    STOP_NOW = "stop now"  # without a last checkpoint

    @property
    def stops(self) -> bool:
        return self in (Intent.STOP, Intent.STOP_NOW)


class CheckpointRecovery(Enum):
    """What the user wants of a job none of whose checkpoints can be read back."""

    NONE = ""
    AGAIN = "again"  # try to read them once more: what held them may be back
    SCRATCH = "from scratch"  # give them up, and begin at step 0


class Phase(Enum):
    """Where a job is in its life. The last three never change again."""

    QUEUED = "queued"
    ADMITTED = "admitted"
    RUNNING = "running"
    SHRINKING = "shrinking"
    GROWING = "growing"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def final(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED)


@dataclass(frozen=True, slots=True)
class RecordedStatus:
    """A job's phase, why, and since when."""

    phase: Phase
    reason: str
    since_s: float


@dataclass(frozen=True, slots=True)
class Placement:
    """A worker that the coordinator has decided to have. Written before it is started.

    Its room on the node is taken until the agent has reported its end. `draining`: it leaves at
    the next step boundary. `revision`: of the spec that it is started by.
    """

    worker: int
    node: str
    draining: bool = False
    since_s: float = 0.0  # when it was decided
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint: its record exists."""

    step: int
    manifest: str
    term: int
    committed_s: float


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A committed checkpoint that nobody could read back, and why. What is left of it is kept until
    the next commit, or until its user gives it up: what was lost may come back."""

    checkpoint: Checkpoint
    reason: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A hyper-parameter changed at run time. Every worker takes it at `at_step`, or at the first
    step for which all of them know it, if that is later (0: in any case then)."""

    name: str
    value: str
    at_step: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker's end that counts against the job."""

    worker: int
    reason: str
    at_s: float
    step: int = 0  # how far the job was: a later failure at a later step is another story
    final: bool = False  # trying again cannot help
    revision: int = 0  # of the spec that the worker was started by


@dataclass(frozen=True, slots=True)
class Halt:
    """An update that was stopped: to which revision, and why."""

    revision: int
    reason: str


@dataclass(frozen=True, slots=True)
class TriggerState:
    """How far a trigger has come: the first offset of each partition that no job was started for.
    `incarnation`: of the topic that the offsets are of; empty: it was not there yet. `since_s`: of
    the last start, or of the first look. `trimmed`: offsets that retention took before a job was
    started for them. `started`, `forgotten`: the last job's number, and how many are removed."""

    topic: str
    incarnation: str = ""
    positions: tuple[int, ...] = ()
    since_s: float = 0.0
    started: int = 0
    forgotten: int = 0
    trimmed: int = 0


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Where the partitions of a topic begin and end, as its leader was told last. `incarnation`: of
    a topic that was made anew another; empty: there is none of this name. `trouble`: it cannot be
    asked now, in a sentence."""

    incarnation: str = ""
    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """All that the coordination plane holds of a job. `spec` is of `revision`; `before` is the one
    that it replaces, replica by replica (`holdfast.control.decide.updating`)."""

    spec: JobSpec
    submitted_s: float
    status: RecordedStatus
    intent: Intent = Intent.RUN
    workers_wanted: int | None = None  # `holdfast scale`; None: as many as the spec allows
    next_worker: int = 1
    placements: tuple[Placement, ...] = ()
    view: View | None = None
    attempt: Attempt | None = None
    checkpoints: tuple[Checkpoint, ...] = ()  # oldest first
    unreadable: tuple[Unreadable, ...] = ()  # since the last commit; oldest first
    checkpoint_asked: bool = False
    recovery: CheckpointRecovery = CheckpointRecovery.NONE
    settings: tuple[Setting, ...] = ()
    failures: tuple[Failure, ...] = ()  # the last ones, bounded
    finished_by: int | None = None  # the worker that reported that the job is done
    finished_step: int | None = None  # the job's last step, once it is committed
    attempts: int = 0  # checkpoints ever begun; the last one's number
    attempts_missed: int = 0  # in a row: begun too late for the step that they named
    abandoned_s: float | None = None  # when the last attempt was given up, if after the last commit
    admitted_s: float | None = None  # when it last left the queue
    waited_s: float = 0.0  # how long it had then been queued: the scheduler lets it count
    revision: int = 0
    before: JobSpec | None = None
    before_revision: int = 0
    updated_s: float = 0.0  # when the last update was asked for
    halted: Halt | None = None
    trigger: TriggerState | None = None  # of one with `on`, since its first look

    @property
    def is_halted(self) -> bool:
        """Whether the update to the present revision was stopped: the one before goes on."""
        return self.halted is not None and self.halted.revision == self.revision

    @property
    def wanted_revision(self) -> int:
        """What new workers are started by."""
        return self.before_revision if self.is_halted and self.before else self.revision

    @property
    def wanted_spec(self) -> JobSpec:
        """What new workers are started by."""
        return self.before if self.is_halted and self.before else self.spec

    @property
    def is_updating(self) -> bool:
        """Whether some of its replicas are still of another revision, and are to be replaced."""
        if self.is_halted or self.before is None or self.intent is not Intent.RUN:
            return False
        return any(not p.draining and p.revision != self.revision for p in self.placements)

    def spec_of(self, placement: Placement) -> JobSpec:
        """What this worker is started by."""
        if self.before is not None and placement.revision != self.revision:
            return self.before
        return self.spec

    @property
    def is_stranded(self) -> bool:
        """Whether steps were committed and none of them can be read back. It does not begin anew
        unless its user says so: that may be weeks of work."""
        return bool(self.unreadable) and not self.checkpoints

    @property
    def wants_workers(self) -> bool:
        """Whether it is to have workers, as far as its user and its checkpoints are concerned."""
        return self.intent is Intent.RUN and not self.is_stranded

    @property
    def waits_for_recovery(self) -> bool:
        """Whether it is stranded, and its user has not said yet what to do."""
        return self.is_stranded and self.recovery is CheckpointRecovery.NONE

    def with_status(self, status: RecordedStatus) -> JobRecord:
        """The job with another status. On leaving the queue it is noted how long it waited, so
        that what its patience earned is not lost the moment that it starts."""
        if self.status.phase is Phase.QUEUED and status.phase is not Phase.QUEUED:
            waited_s = max(0.0, status.since_s - self.status.since_s)
            return replace(self, status=status, admitted_s=status.since_s, waited_s=waited_s)
        return replace(self, status=status)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def committed_step(self) -> int:
        """The step of the newest committed checkpoint; 0 if there is none."""
        return self.checkpoints[-1].step if self.checkpoints else 0


@dataclass(frozen=True, slots=True)
class DesiredSpec:
    """What users decide of a job. `submission` is another for each job that ever had the name.
    `before`: the spec that an update replaces, and its number."""

    spec: JobSpec
    submitted_s: float
    submission: str
    intent: Intent = Intent.RUN
    workers_wanted: int | None = None
    checkpoint_asked: bool = False
    revision: int = 0
    before: JobSpec | None = None
    before_revision: int = 0
    updated_s: float = 0.0
    recovery: CheckpointRecovery = CheckpointRecovery.NONE


@dataclass(frozen=True, slots=True)
class QueueQuota:
    """A queue's share of the machines: what it is guaranteed, and the most that it may borrow."""

    name: str
    guaranteed: Resources
    limit: Resources | None = None  # None: whatever is free
    user: str = ""  # whom its workers run as, on machines whose agent is root's; empty: as that


@dataclass(frozen=True, slots=True)
class DesiredState:
    """One immutable snapshot of the coordination plane."""

    jobs: Mapping[str, JobRecord] = field(default_factory=dict)
    queues: Mapping[str, QueueQuota] = field(default_factory=dict)
    draining_nodes: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()  # their names: nothing is decided by a value


@dataclass(frozen=True, slots=True)
class ObservedState:
    """The snapshots of all agents whose session is alive. A node that is not here is not there.

    `unreported`: nodes whose session is alive, but whose agent has told this leader nothing yet.
    Nothing is known of their workers, and nothing is decided about them. `store`: what is wrong
    with the blob store, for people; empty: nothing. `topics`: those that triggers wait for.
    """

    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
    unreported: frozenset[str] = frozenset()
    store: str = ""
    topics: Mapping[str, TopicOffsets] = field(default_factory=dict)
