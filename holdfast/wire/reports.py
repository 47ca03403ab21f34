"""What an agent reports, as values: its workers, their ends, the parts that are durable.

Observed state is made of these alone. What an agent has not reported is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from holdfast.wire.resources import Resources

# Metrics that the people's view knows by name; every other one is shown as it is called.
TOTAL_METRIC: Final = "steps_total"  # how many steps the job will have, as far as its code knows
SAMPLES_METRIC: Final = "samples_per_step"  # of all lanes together
# How long this worker needs for one lane by itself, lately and in its present view. Lanes move away
# from one that is slower than the others: see `control.pace`.
LANE_METRIC: Final = "lane_ms"
# Before the name of a setting that was changed since the worker's start: 1 if an optimizer or the
# script has taken it since, 0 if nothing has.
SETTING_METRIC: Final = "setting "


@dataclass(frozen=True, slots=True)
class Part:
    """A blob that a checkpoint consists of, named by its content."""

    key: str
    size_bytes: int
    digest: str


class WorkerPhase(Enum):
    """What an agent knows of a worker's process."""

    STARTING = "starting"  # the command is in the journal; the process may exist
    READY = "ready"  # it has introduced itself and waits for a view
    RUNNING = "running"  # it is in a view
    GONE = "gone"  # the process has ended and was reaped


class ExitKind(Enum):
    """Why a worker's process ended."""

    DONE = "done"  # it finished the job: the last step is committed
    LEFT = "left"  # it was asked to leave, and did so at a step boundary
    STOPPED = "stopped"  # it was asked to stop, or killed by its agent after the notice
    ERROR = "error"  # the user's code failed
    MEMORY = "memory"  # it needed more memory than it was given
    SIGNAL = "signal"  # somebody else killed it
    HUNG = "hung"  # it made no progress for too long
    LOST = "lost"  # the agent came back and the process was not there any more
    REFUSED = "refused"  # it said itself that trying again cannot help
    DISK = "disk"  # it wrote more to the disk than it was given

    @classmethod
    def _missing_(cls, value: object) -> ExitKind | None:
        """What a newer version calls otherwise counts as an error: one that comes again ends a
        job, and is not tried for ever."""
        return cls.ERROR if isinstance(value, str) and value else None

    @property
    def is_failure(self) -> bool:
        """Whether it counts against the job: what its own code did."""
        return self in _FAILURES


_FAILURES: Final = frozenset(
    {ExitKind.ERROR, ExitKind.MEMORY, ExitKind.HUNG, ExitKind.REFUSED, ExitKind.DISK}
)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker ended; `detail` is for people: the user's own traceback first."""

    kind: ExitKind
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What an agent reports of one worker. `step` None: it holds no state yet.

    `ending`: the step that it holds is the job's last one, and it waits until that is committed.
    `suspects`: members of its view that it cannot reach, or that have been silent for too long.
    `endpoints`: where the ports that its job file names are, `host:port`. `trouble`: what its
    probes say of it, if they do not pass. `preparing`: what is done before it can be started, and
    since when; empty: nothing any more, since then.
    """

    job: str
    worker: int
    phase: WorkerPhase
    view: int = 0  # the newest that it has adopted
    step: int | None = None  # the last completed step of the state that it holds
    parts: Mapping[int, tuple[Part, ...]] = field(default_factory=dict)  # attempt -> durable parts
    missed: frozenset[int] = frozenset()  # attempts whose step it had already passed
    unreadable: frozenset[int] = frozenset()  # committed steps that it could not read back
    settings: int = 0  # how many settings the newest `GiveSettings` that it was told of had
    exit: Exit | None = None
    address: str = ""  # where its peers meet it, `host:port`
    ending: bool = False
    suspects: frozenset[int] = frozenset()
    metrics: Mapping[str, float] = field(default_factory=dict)  # for people: loss, throughput
    endpoints: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""
    unreadable_why: str = ""  # of the last that it tried
    preparing: str = ""
    preparing_since_s: float = 0.0  # by its machine's clock


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """An agent's snapshot of its machine. `workers` holds also those that have gone, until the
    coordinator has taken note (`Forget`)."""

    node: str
    capacity: Resources
    workers: tuple[WorkerFacts, ...] = ()
