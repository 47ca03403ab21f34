"""A job as its user wants it: a value without any I/O. `jobfile` reads it from YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from holdfast.wire.limits import REPLICA_READY_S
from holdfast.wire.probes import Probe
from holdfast.wire.resources import Resources
from holdfast.wire.triggers import TriggeredRange

__all__ = [
    "CheckpointPolicy",
    "JobSpec",
    "Mode",
    "Network",
    "Resources",
    "RestartPolicy",
    "Trigger",
    "TriggerStart",
]

_ONE_CORE: Final = Resources(cpu=1.0)


class Mode(Enum):
    """How lanes are combined; or that there are none, and each worker serves by itself."""

    SYNC = "sync"
    LOCAL = "local"
    ASYNC = "async"
    SERVE = "serve"


class Network(Enum):
    """What lies between the machines of a job: its workers speak TLS there, or need not."""

    ENCRYPTED = "encrypted"
    TRUSTED = "trusted"


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When a checkpoint is due (whichever comes first; neither: only when asked), how many stay."""

    every_steps: int | None = None
    every_s: float | None = 300.0
    keep: int = 3


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """A worker's failure is retried after a pause that doubles; so many in a row end the job."""

    failures_max: int = 3
    backoff_s: float = 1.0
    backoff_s_max: float = 60.0
    forgiven_after_s: float = 600.0


class TriggerStart(Enum):
    """Where a trigger begins in a topic that has records already."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a job is started for the records of a topic: after so many, or so long after the last
    start if there are any; with both, whichever comes first. `at_once`: so many of its jobs may
    live at a time."""

    topic: str
    every_records: int | None = None
    every_s: float | None = None
    filter: str = ""
    start: TriggerStart = TriggerStart.EARLIEST
    at_once: int = 1


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What never changes of a job. Higher `priority` goes first."""

    name: str
    command: tuple[str, ...]
    bundle: str = ""
    queue: str = "default"
    priority: int = 0
    lanes: int = 1
    workers_min: int = 1
    workers_max: int = 1
    resources: Resources = _ONE_CORE
    mode: Mode = Mode.SYNC
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    restart: RestartPolicy = RestartPolicy()
    settings: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float | None = None
    silence_s: float | None = None  # a worker without progress for so long has hung; None: ours
    network: Network = Network.ENCRYPTED
    ports: Mapping[str, int] = field(default_factory=dict)  # 0: the agent chooses one
    ready: Probe | None = None
    live: Probe | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)  # variable -> name of a secret
    requirements: tuple[str, ...] = ()  # lines for pip; `-r FILE`: a file of the bundle
    log_topic: bool = False  # its workers' output goes to the topic `logs.NAME` as well
    on: Trigger | None = None  # it has no workers: it starts jobs (`decide.triggers`)
    triggered: TriggeredRange | None = None  # what a trigger has started it for

    @property
    def fixed_ports(self) -> frozenset[int]:
        """Ports of which a machine has one: so it holds one worker of this job."""
        return frozenset(number for number in self.ports.values() if number)

    @property
    def ready_within_s(self) -> float:
        """How long a new replica may take until it is ready, before others stop waiting for it."""
        asked = self.ready or self.live
        return REPLICA_READY_S if asked is None or asked.within_s is None else asked.within_s

    @property
    def serves(self) -> bool:
        """Whether its workers are replicas: see `holdfast.control.decide.serving`."""
        return self.mode is Mode.SERVE
