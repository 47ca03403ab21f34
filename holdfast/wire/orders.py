"""What the coordinator tells an agent, as values.

Each order travels with the leader's term; an agent refuses an older one. Each names a worker that
never comes back, so it means the same whenever and however often it arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.wire.probes import Probe
from holdfast.wire.resources import Resources


@dataclass(frozen=True, slots=True)
class View:
    """A numbered membership of a job. `lanes` has, for each worker in it, the lanes that it holds.

    Every lane is held exactly once. The members meet at `addresses` (`host:port`, each its own)
    before the first step in it, and the most advanced passes its state on. `restore_step` is set
    when no member is known to hold a state: if indeed none does, all start from that committed
    checkpoint, whose manifest is named (0 and no manifest: from the beginning). Whoever meets knows
    the first `settings` of the job's settings, so all take them at the same step.
    """

    number: int
    lanes: Mapping[int, tuple[int, ...]]
    restore_step: int | None = None
    manifest: str = ""
    addresses: Mapping[int, str] = field(default_factory=dict)
    settings: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """A checkpoint under way: the members of view `view` write their shares of step `step`."""

    number: int
    step: int
    view: int
    since_s: float


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start this worker, once. Without a sign of progress for `silence_s` it has hung; None: the
    agent's own bound. `secret` is the job's: nothing decides by it, so it is put in when the order
    is sent. `queue`: whose locks and values it may share; empty: none. `user`: whom it runs as;
    empty: as the agent does. `ports`: by name, the number that it listens at; 0: the agent chooses
    one. `references`: variables of its environment, and the secret that each is; `secrets` has the
    values, also put in when the order is sent, and kept in no journal. `requirements`: lines for
    pip; it runs in an environment that has these."""

    node: str
    job: str
    worker: int
    bundle: str
    command: tuple[str, ...]
    resources: Resources
    environment: Mapping[str, str] = field(default_factory=dict)
    silence_s: float | None = None
    secret: str = field(default="", repr=False, compare=False)
    queue: str = ""
    user: str = ""
    ports: Mapping[str, int] = field(default_factory=dict)
    ready: Probe | None = None
    live: Probe | None = None
    references: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    requirements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GiveView:
    """Tell a worker of a view: it adopts it at a step boundary, or leaves if it is not in it."""

    node: str
    job: str
    worker: int
    view: View


@dataclass(frozen=True, slots=True)
class GiveSettings:
    node: str
    job: str
    worker: int
    settings: tuple[tuple[str, str, int], ...]  # name, value, at step


@dataclass(frozen=True, slots=True)
class TakeShare:
    """Write share `share` of `shares` of the state at the attempt's step."""

    node: str
    job: str
    worker: int
    attempt: Attempt
    share: int
    shares: int


@dataclass(frozen=True, slots=True)
class StopWorker:
    """SIGTERM, and SIGKILL after `notice_s`."""

    node: str
    job: str
    worker: int
    notice_s: float


@dataclass(frozen=True, slots=True)
class Forget:
    """The coordinator has taken note of a worker's end."""

    node: str
    job: str
    worker: int


Order = StartWorker | GiveView | GiveSettings | TakeShare | StopWorker | Forget
