"""The agent's vocabulary, as values: events in, actions out, entries of the journal.

`AgentMachine.handle(event, now_s)` gives a list of actions. `WriteEntry` actions of a list must be
durable before any of its other actions is carried out; the rim may make several lists durable
with one fsync. Times are of a clock that goes on over restarts of the agent (not of the machine).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from holdfast.wire import worker_messages
from holdfast.wire.limits import WORKER_PORTS
from holdfast.wire.orders import (
    GiveSettings,
    GiveView,
    Order,
    StartWorker,
    StopWorker,
    TakeShare,
)
from holdfast.wire.reports import Exit, Part


class Key(NamedTuple):
    """A worker: its job and its number, which is used once."""

    job: str
    worker: int

    def __str__(self) -> str:
        return f"{self.job}.{self.worker}"


def key_of(order: Order) -> Key:
    return Key(order.job, order.worker)


def serves(order: StartWorker) -> bool:
    """Whether it is a replica of a service."""
    return order.environment.get(worker_messages.MODE_VARIABLE) == worker_messages.SERVES


def settles(order: StartWorker) -> bool:
    """Whether it is taken for ready by having run for a moment: a program that serves, and that
    nobody asks. Our own replicas say themselves when they are."""
    asked = order.ready is not None or order.live is not None
    return serves(order) and not asked and worker_messages.REPLICA_MODULE not in order.command


def named_ports(order: StartWorker | None, slots: Slots) -> dict[str, int]:
    """The ports that the job file names, with their numbers on this machine: those behind the
    first `WORKER_PORTS`, which are the worker's own."""
    if order is None:
        return {}
    return dict(zip(sorted(order.ports), slots.ports[WORKER_PORTS:], strict=False))


class Identity(NamedTuple):
    """A process that cannot be taken for another: its number may be used again, this may not."""

    pid: int
    start_ticks: int  # since the machine was started, as the kernel counts
    boot: str


# Whom a claim names that was made so that no shim can make one.
NOBODY: Final = Identity(0, 0, "")


class Slots(NamedTuple):
    """What of the machine a worker has for itself. No `cpus`: it may run on any."""

    cpus: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known of a process that is gone, with all that it had started.

    Exactly one of `code` and `signal` is set when its end was seen. `word` is what it said last of
    itself. `fault` says why there was no process to end: it could not be started.
    """

    code: int | None = None
    signal: int | None = None
    word: str = ""  # "done" or "left"
    over_memory: bool = False  # it was killed at its limit
    memory_bytes: int = 0  # what it held then, with all that it had started
    memory_bytes_max: int = 0  # what it might hold
    machine_short: bool = False  # the system killed something for want of memory meanwhile
    abandoned: bool = False  # its agent did not come back
    fault: str = ""
    final: bool = False  # trying again would have the same fault
    stderr_tail: str = ""

    @property
    def seen(self) -> bool:
        return self.code is not None or self.signal is not None


# --- entries of the journal -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TermSeen:
    """The highest term of a leader. Written before anything of that term is obeyed."""

    term: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """This worker is ours to start. Written before its process can exist."""

    order: StartWorker
    slots: Slots


@dataclass(frozen=True, slots=True)
class Started:
    key: Key
    identity: Identity


@dataclass(frozen=True, slots=True)
class Held:
    """The worker is ready, has adopted this view (0: none) and holds the state of this step or a
    later one (None: no state). `ready` False: it was ready, and its probe says that it is not any
    more. `linked`: it has said something itself; otherwise it was found out from outside."""

    key: Key
    view: int
    step: int | None
    ready: bool = True
    linked: bool = True


@dataclass(frozen=True, slots=True)
class Moved:
    """The worker gets these slots in place of the former ones. Written before it is started."""

    key: Key
    slots: Slots


@dataclass(frozen=True, slots=True)
class Stopping:
    """The worker is to end: asked at once, killed at `kill_at_s`. `hung`: it made no progress.
    `frozen`: somebody had paused it. `unwell`: what its `live` probe said. `disk_bytes`: what its
    folders held, when that was more than it was given."""

    key: Key
    kill_at_s: float
    hung: bool = False
    frozen: bool = False
    unwell: str = ""
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Exited:
    """The process is gone. Also of a worker that was stopped before it was ever started."""

    key: Key
    exit: Exit


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The coordinator knows of the end. The number is remembered, so that it never starts again."""

    key: Key


@dataclass(frozen=True, slots=True)
class GpuFaulty:
    """So many workers that are forgotten were ended by a fault of this GPU."""

    gpu: int
    faults: int


Entry = TermSeen | Accepted | Moved | Started | Held | Stopping | Exited | Forgotten | GpuFaulty

# --- events ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OrderReceived:
    term: int
    order: Order


@dataclass(frozen=True, slots=True)
class Recovered:
    """An entry of the journal, in its order, before anything else happens."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class NeverStarted:
    """After a restart: no shim has claimed this worker. `prepared`: its folder is there, so it was
    not started, or its shim has not come so far yet. Without one it has ended: a folder is made
    before the worker is in the journal, and removed after its end is there. The journal has lost
    that end again, as it may lose its last batch. `called_off`: it is claimed for nobody, so no
    shim can come any more; that stays true though the journal has lost why."""

    key: Key
    prepared: bool = True
    called_off: bool = False


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    key: Key
    identity: Identity


@dataclass(frozen=True, slots=True)
class ProcessAdopted:
    """After a restart: the worker's process is alive."""

    key: Key
    identity: Identity


@dataclass(frozen=True, slots=True)
class ProcessExited:
    key: Key
    ending: Ending


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker says of itself: a level, not a change. It says it again when it reconnects,
    and, where it `beats`, at least every `WORKER_BEAT_S`."""

    key: Key
    ready: bool = False
    view: int = 0
    step: int | None = None
    unreadable: frozenset[int] = frozenset()  # committed steps that it could not read back
    waits: bool = False  # for its peers: that it makes no progress is not its own fault
    ending: bool = False
    suspects: frozenset[int] = frozenset()
    metrics: Mapping[str, float] = field(default_factory=dict)
    beats: bool = False
    unreadable_why: str = ""  # of the last that it tried


@dataclass(frozen=True, slots=True)
class PartsReport:
    """All its parts of this attempt are durable; `missed`: it had already passed the step."""

    key: Key
    attempt: int
    parts: tuple[Part, ...] = ()
    missed: bool = False


@dataclass(frozen=True, slots=True)
class Connected:
    """The worker's socket is open: tell it what it should know."""

    key: Key


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The worker's socket was closed: no sign of life is to be expected over it."""

    key: Key


@dataclass(frozen=True, slots=True)
class Examined:
    """The answer to `Examine`: whether the system has the worker's process paused."""

    key: Key
    paused: bool


class Asked(Enum):
    """Which of a worker's probes."""

    READY = "ready"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class Probed:
    """What came of asking once. `said`: why it did not pass, for people."""

    key: Key
    asked: Asked
    passed: bool
    said: str = ""


@dataclass(frozen=True, slots=True)
class DiskUsed:
    """What the worker's folders hold: more than it was given."""

    key: Key
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Preparing:
    """What is done before the worker can be started, since when by the clock on the wall; `doing`
    empty: that is over."""

    key: Key
    doing: str
    since_s: float


@dataclass(frozen=True, slots=True)
class PortsTaken:
    """A stranger listens where this worker should; nothing was started."""

    key: Key
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timer:
    """Time has passed; `AgentMachine.wake_s` says when it is wanted."""


Event = (
    OrderReceived
    | Recovered
    | NeverStarted
    | ProcessStarted
    | ProcessAdopted
    | ProcessExited
    | WorkerReport
    | PartsReport
    | Connected
    | Disconnected
    | Examined
    | Probed
    | DiskUsed
    | Preparing
    | PortsTaken
    | Timer
)

# --- actions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteEntry:
    """Make this durable before anything else of the list is done."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class OrderAnswer:
    """The reply to an order; exactly one for each. `reason` is for people."""

    accepted: bool
    reason: str
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start it unless it was ever started before: the supervisor can tell, also after a crash."""

    order: StartWorker
    slots: Slots


class Force(Enum):
    """How a process is told to end."""

    ASK = "ask"  # SIGTERM to the worker alone
    KILL = "kill"  # SIGKILL to it and to all that it started


@dataclass(frozen=True, slots=True)
class SignalProcess:
    key: Key
    force: Force


@dataclass(frozen=True, slots=True)
class Tell:
    """Pass this on to the worker, if it is connected; it is told again when it connects."""

    key: Key
    what: GiveView | GiveSettings | TakeShare | StopWorker


@dataclass(frozen=True, slots=True)
class Examine:
    """Look whether the worker's process is paused; `Examined` follows."""

    key: Key


@dataclass(frozen=True, slots=True)
class BeginProbes:
    """Ask this worker's probes from now on, until it has ended; `Probed` follows each time."""

    order: StartWorker
    ports: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WatchDisk:
    """Look now and then how much the worker's folders hold, until it has ended; `DiskUsed` follows
    when it is more than `bytes_max`."""

    key: Key
    bytes_max: int


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Remove what the worker left behind, except its logs."""

    key: Key


@dataclass(frozen=True, slots=True)
class Report:
    """The snapshot has changed."""


Action = (
    WriteEntry
    | OrderAnswer
    | StartProcess
    | SignalProcess
    | Tell
    | Examine
    | BeginProbes
    | WatchDisk
    | CleanUp
    | Report
)
