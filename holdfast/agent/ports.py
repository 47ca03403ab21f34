"""What the agent's shell needs of the world: protocols, and nothing that touches it.

`agent`, `supervisor`, `journal`, `uplink` and `presence` do all their work through these. `main`
passes the real ones: Linux, gRPC, the coordination plane. The simulator passes its own.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from holdfast.agent.events import BeginProbes, Ending, Identity, Key, OrderAnswer, Slots
from holdfast.wire.errors import Refused
from holdfast.wire.orders import GiveSettings, GiveView, Order, StartWorker, StopWorker, TakeShare
from holdfast.wire.reports import NodeFacts

# --- the disk -------------------------------------------------------------------------------------


class NotReplaced(OSError):
    """A new journal could not be written: the old one is there, whole."""

    def __init__(self, error: OSError) -> None:
        super().__init__(*error.args)
        self.error = error


class JournalFile(Protocol):
    """The bytes of a journal. Whatever the disk refuses is an `OSError`."""

    @property
    def path(self) -> Path: ...

    def salt(self) -> bytes:
        """8 bytes that no other journal has."""

    def read(self) -> bytes | None:
        """All of it; None: there is none yet. What an unfinished `replace` left is removed."""

    def keep(self, size: int) -> None:
        """The first `size` bytes stay, and are durable; what is behind them goes."""

    def write(self, data: bytes, at: int) -> None: ...

    def sync(self) -> None:
        """What was written is durable when it returns."""

    def replace(self, data: bytes) -> None:
        """Durable, in place of all that was there. `NotReplaced`: nothing has changed; `OSError`:
        nobody knows."""

    def close(self) -> None: ...


class WorkerFolders(Protocol):
    """The workers' folders, and the small files in them (`folders`). May block."""

    def worker(self, key: Key) -> Path: ...

    def is_there(self, key: Key) -> bool:
        """Whether it has a folder."""

    def promise(self, keys: Iterable[Key]) -> None:
        """Make the folders of workers that are about to be accepted; `Full`: no room."""

    def present(self) -> list[Key]:
        """Workers that have one."""

    def claim(self, key: Key) -> Identity | None:
        """The shim that this worker was started by; None: none was. `NOBODY`: nor can be."""

    def claim_void(self, key: Key) -> bool:
        """Make a claim for nobody; False: there is one. `FileNotFoundError`: there is no folder."""

    def ending(self, key: Key) -> Ending | None:
        """How the worker ended, as its shim wrote; None: it did not."""

    def stderr_tail(self, key: Key) -> str: ...

    def shim_words(self, key: Key) -> str: ...

    def drop_old_logs(self, living: frozenset[Key]) -> None: ...

    def finish_removals(self) -> None: ...


# --- processes ------------------------------------------------------------------------------------


class HeldProcess(Protocol):
    """Exactly one process, whatever becomes of its number."""

    @property
    def identity(self) -> Identity: ...

    def send(self, number: signal.Signals) -> None:
        """Signal it; one that has ended does not mind."""

    def on_end(self, ended: Callable[[], None]) -> None:
        """Call this in our loop once it has ended, unless it is let go of before."""

    async def wait(self) -> None:
        """Until it has ended."""

    def close(self) -> None:
        """Let go of it."""


class Processes(Protocol):
    """The machine's process table."""

    def hold(self, identity: Identity) -> HeldProcess | None:
        """None: it has ended."""

    def kill_all(self, folder: Path) -> None:
        """SIGKILL to everything that runs for this worker. May block."""

    async def sweep(self, folder: Path) -> None:
        """Kill, and return when nothing runs for this worker any more."""

    def is_paused_below(self, identity: Identity) -> bool:
        """Whether a child of it was paused (SIGSTOP). May block."""


class Launching(Protocol):
    """Brings workers into the world (`launching`)."""

    def begin(self) -> None: ...

    async def gather(self, key: Key, order: StartWorker, slots: Slots) -> Any:
        """Whatever must be there before, for `prepare`: its code, its environment."""

    def taken(self, slots: Slots) -> tuple[int, ...]:
        """Those of its ports where a stranger listens. May block."""

    async def prepare(self, key: Key, order: StartWorker, slots: Slots, gathered: Any) -> bool:
        """Make what its shim needs; whether it is to be started warm."""

    async def start(self, key: Key, *, warm: bool) -> tuple[Identity, HeldProcess | None]:
        """Start its shim. It may have been started before: its claim decides. None: it is gone."""

    async def remove(self, key: Key) -> None:
        """Remove the folder of a worker that is claimed, and what limited it."""

    async def tidy(self, gone: Key | None = None) -> None:
        """Remove what is kept for workers and nobody needs any more; `gone` does not."""

    async def close(self) -> None: ...


# --- workers, as the agent deals with them --------------------------------------------------------


class WorkerConnections(Protocol):
    """What workers say comes over these, and what they are told goes (`channel`)."""

    async def open(self, key: Key, folder: Path) -> None: ...

    def tell(self, key: Key, what: GiveView | GiveSettings | TakeShare | StopWorker) -> None: ...

    def close(self, key: Key) -> None: ...

    def close_all(self) -> None: ...


class Watchers(Protocol):
    """What looks at workers from outside, and what they share, until they have ended."""

    def begin_probes(self, action: BeginProbes) -> None: ...

    def watch_disk(self, key: Key, bytes_max: int) -> None: ...

    def share(self, key: Key, queue: str, body: Any) -> None:
        """What a worker wants to share (`wire.sharing`)."""

    def end(self, key: Key) -> None: ...

    async def close(self) -> None: ...


class Equipment(NamedTuple):
    """What an agent works with, besides its journal and its supervisor."""

    folders: WorkerFolders
    processes: Processes
    launcher: Launching
    connections: WorkerConnections
    watchers: Watchers


# --- the leader -----------------------------------------------------------------------------------


class LeaderAddress(Protocol):
    """Where the leader of a term listens for agents (`wire.rpc.Contact`)."""

    @property
    def term(self) -> int: ...

    @property
    def address(self) -> str: ...


class Welcome(NamedTuple):
    """What a leader answers to an agent that introduces itself; `steps_s`: how often it wants to
    know of steps (0: it does not say)."""

    term: int
    steps_s: float = 0.0


class OrderBatch(NamedTuple):
    """Orders of a leader, for a session of the agent. In place of one that cannot be read stands
    why."""

    term: int
    session: str
    orders: Sequence[Order | Refused]
    steps_s: float = 0.0


class LeaderStream(Protocol):
    """A connection to a leader. When it breaks, each raises a `HoldfastError`."""

    async def introduce(self, session: str) -> Welcome:
        """Say who we are, and in which session; wait for its answer."""

    async def report(self, facts: NodeFacts) -> None: ...

    async def receive(self) -> OrderBatch | None:
        """The next orders; None: the leader has ended the stream."""

    async def refuse(self, batch: OrderBatch, index: int, answer: OrderAnswer) -> None:
        """Say why an order of the batch was not obeyed."""

    async def until_stale(self) -> None:
        """Return when another one should be opened in its place: we have new credentials."""


class LeaderTransport(Protocol):
    """How leaders are reached."""

    def connect(self, contact: LeaderAddress) -> AbstractAsyncContextManager[LeaderStream]: ...


# --- the coordination plane -----------------------------------------------------------------------


class PlaneMember(Protocol):
    """Our node among the nodes. It is there again by itself after a lost session."""

    @property
    def joined(self) -> bool:
        """Whether others see us, as far as we know."""

    @property
    def displaced(self) -> bool:
        """Whether another agent has our name now. That is final."""


class PlaneSession(Protocol):
    """Our session in the coordination plane. While the plane is away, what asks it raises a
    `RetryError` or `SessionLost`."""

    @property
    def session_id(self) -> int:
        """0: there is none now."""

    @property
    def over(self) -> bool:
        """It will have no other."""

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call this, in our loop, when the session or our membership may have changed."""

    def follow_leader(self, known: Callable[[LeaderAddress | None], None]) -> None:
        """Call this, in our loop, with the leader's address now and after each change."""

    async def join(self, node: str, data: Any) -> PlaneMember: ...

    async def members(self) -> Collection[str]:
        """The names of the nodes that are there."""

    async def close(self) -> None:
        """Leave, and end the session: everybody knows at once that we are gone."""
