"""What is written in the coordination plane, and what each process has read of it: later, and not
all of it at the same time.

A watch only wakes. What is read is what is there when it is read; values are never changed, only
replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from holdfast.control.decide.facts import Failure
from holdfast.serve.records import Gateway, Replica, RolloutPlan, ServiceSpec
from holdfast.serve.rollout.facts import DesiredService
from simulation.kernel import SimulatedProcess

if TYPE_CHECKING:
    from simulation.serving.world import World

SERVICE: Final = "service"  # the service, what its target names, what is retired
PLAN: Final = "plan"
JOB: Final = "job"
REPLICA: Final = "replica"
GATEWAY: Final = "gateway"

READ_S: Final = 0.001  # at least
LATE_S: Final = (0.2, 3.0)

K = TypeVar("K")
V = TypeVar("V")
Node = tuple[str, int | str]


@dataclass(slots=True)
class Plane:
    """What is written."""

    service: ServiceSpec
    job_replicas: int
    target: int = 1
    retired: dict[int, str] = field(default_factory=dict)
    plan: RolloutPlan | None = None
    replicas: dict[int, Replica] = field(default_factory=dict)
    gateways: dict[str, Gateway] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    term: int = 0
    leader: int = 0  # the term of the leader whose session lives; 0: there is none
    away_until_s: float = 0.0

    def desired(self) -> DesiredService:
        unusable = {version: f"it is retired: {why}" for version, why in self.retired.items()}
        return DesiredService(self.service, self.target, "", unusable)


class PlaneMirror:
    """What one process has read. `news` is called after each read."""

    def __init__(
        self,
        world: World,
        process: SimulatedProcess,
        kinds: frozenset[str],
        news: Callable[[], None],
    ) -> None:
        self._world = world
        self._process = process
        self._kinds = kinds
        self._news = news
        self._dirty: dict[Node, None] = {}
        self._comes = False
        self._late_until_s: dict[Node, float] = {}
        self.deaf_until_s = 0.0
        self.mute_until_s = 0.0
        self.known = False  # everything was read at least once
        self.desired: DesiredService | None = None
        self.plan: RolloutPlan | None = None
        self.replicas: dict[int, Replica] = {}
        self.gateways: dict[str, Gateway] = {}
        self.failures: tuple[Failure, ...] = ()
        self.job_replicas = 0

    def begin(self) -> None:
        """Of a life, or of a term: nothing is known, and all is read."""
        plane = self._world.plane
        self.known, self._comes = False, False
        self.replicas, self.gateways = {}, {}
        self._dirty = {(kind, 0): None for kind in (SERVICE, PLAN, JOB) if kind in self._kinds}
        if REPLICA in self._kinds:
            self._dirty |= {(REPLICA, worker): None for worker in plane.replicas}
        if GATEWAY in self._kinds:
            self._dirty |= {(GATEWAY, name): None for name in plane.gateways}
        self._read_soon()

    @property
    def reaches(self) -> bool:
        """Whether its requests get to the plane."""
        now_s = self._world.kernel.now_s
        return now_s >= self.mute_until_s and now_s >= self._world.plane.away_until_s

    @property
    def receives(self) -> bool:
        now_s = self._world.kernel.now_s
        return now_s >= self.deaf_until_s and now_s >= self._world.plane.away_until_s

    def touched(self, node: Node) -> None:
        """Something was written there."""
        if node[0] not in self._kinds or not self._process.up:
            return
        faults = self._world.faults
        if faults.strikes("late"):
            late_s = self._world.kernel.between(*LATE_S)
            self._late_until_s[node] = self._world.kernel.now_s + late_s
            self._process.after(late_s, lambda: self.mark(node))
            return
        if faults.strikes("double"):
            self._process.after(self._world.kernel.between(*LATE_S), lambda: self.mark(node))
        self.mark(node)

    def is_late(self, node: Node) -> bool:
        """Whether news of it are still on their way, by a fault."""
        return self._world.kernel.now_s <= self._late_until_s.get(node, -1.0)

    def mark(self, node: Node) -> None:
        """Read it again."""
        self._dirty[node] = None
        if not self._comes:
            self._read_soon()

    def _read_soon(self) -> None:
        self._comes = True
        self._process.after(self._read_s(), self._read)

    def _read_s(self) -> float:
        return self._world.kernel.between(READ_S, self._world.settings.read_s)

    def _read(self) -> None:
        world, kernel = self._world, self._world.kernel
        heard_s = max(self.deaf_until_s, world.plane.away_until_s)
        if kernel.now_s < heard_s:
            self._process.after(heard_s - kernel.now_s + self._read_s(), self._read)
            return
        self._comes = False
        dirty, self._dirty = self._dirty, {}
        for kind, name in dirty:
            self._take(kind, name)
        self.known = True
        self._news()

    def _take(self, kind: str, name: int | str) -> None:
        plane = self._world.plane
        if kind == SERVICE:
            self.desired = plane.desired()
        elif kind == PLAN:
            self.plan = plane.plan
        elif kind == JOB:
            self.failures, self.job_replicas = plane.failures, plane.job_replicas
        elif kind == REPLICA:
            assert isinstance(name, int)
            self.replicas = _with(self.replicas, name, plane.replicas.get(name))
        else:
            assert isinstance(name, str)
            self.gateways = _with(self.gateways, name, plane.gateways.get(name))


def _with(known: Mapping[K, V], key: K, value: V | None) -> dict[K, V]:
    """A mapping of its own: others hold the one before."""
    after = {each: one for each, one in known.items() if each != key}
    if value is not None:
        after[key] = value
    return after
