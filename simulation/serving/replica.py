"""A simulated replica: it follows the plan, loads one version at a time, answers, and dies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from holdfast.control.decide.facts import Failure
from holdfast.serve.records import (
    LATENCY_BOUNDS_MS,
    Counts,
    Load,
    Loaded,
    OutputStats,
    Replica,
    ReplicaStats,
    RolloutStage,
)
from holdfast.wire.limits import HEALTH_CHECK_FAILURES, HEALTH_CHECK_S, HEALTH_CHECK_TIMEOUT_S
from simulation.kernel import SimulatedProcess
from simulation.serving.plane import JOB, PLAN, REPLICA, PlaneMirror
from simulation.serving.settings import NAME, Nature

if TYPE_CHECKING:
    from simulation.serving.world import World

_ORDINARY, _SLOW = 8, 16
_BUCKETS: Final = len(LATENCY_BOUNDS_MS) + 1
LOAD_S: Final = (0.05, 0.5)
SLOW_LOAD_S: Final = (1.0, 4.0)
DRAIN_S: Final = 1.0
FAILURES_KEPT: Final = 32
RESTLESS_S: Final = (0.1, 0.5)
RESTLESS_TIMES: Final = 16
HTTP_PORT, GRPC_PORT = 8000, 8001
_READY: Final = Loaded(Load.READY)
_LOADING: Final = Loaded(Load.LOADING)

# Until a check, and until enough checks have failed: refused at once, or without an answer.
WELL_AFTER_S: Final = HEALTH_CHECK_S
UNWELL_AFTER_S: Final = HEALTH_CHECK_FAILURES * HEALTH_CHECK_S
SILENT_AFTER_S: Final = HEALTH_CHECK_FAILURES * HEALTH_CHECK_TIMEOUT_S + HEALTH_CHECK_S


class SimulatedReplica(SimulatedProcess):
    """One process. Its number never comes back."""

    def __init__(self, world: World, worker: int) -> None:
        super().__init__(world.kernel, f"r{worker}")
        self.world = world
        self.worker = worker
        self.machine = f"m{worker % 3}"
        self.region = world.settings.regions[worker % len(world.settings.regions)]
        self.host = f"10.0.{worker // 250}.{worker % 250}"
        self.versions: dict[int, Loaded] = {}
        self.counts: dict[int, list[int]] = {}  # version -> requests, errors, slow ones
        # In a rollout, of its two versions: answers, and those of them that are not finite.
        self.rollout: tuple[int | None, int | None] = (None, None)
        self.watched: dict[int, list[int]] = {}
        self.grpc_port = GRPC_PORT
        self.draining = False
        self.joined = False
        self.plan = 0
        self.version_revision = 0
        self.stable: int | None = None
        self.hold: tuple[int, ...] = ()
        self.loading: int | None = None
        self.started_s = 0.0
        self.registered = False  # its session lives, and it has joined
        self.pauses = 0  # how often it was stopped
        self.mirror = PlaneMirror(world, self, frozenset({PLAN}), self._follow)
        self._shows = False
        # What those see who ask for its health: since when, and what they believed before.
        self.well = False
        self._well_since_s = 0.0
        self._believed = False
        self._lag_s = 0.0

    def start(self) -> None:
        self.begin()
        self.started_s = self.world.wall_s
        self.after(self.kernel.between(0.1, 0.6), self._join)

    def drain(self) -> None:
        self.draining = True
        self._look_well()
        self._show()
        self.after(DRAIN_S, self._leave)

    def killed(self) -> None:
        """By somebody else."""
        if self.up:
            self._end(own_fault="")

    def pause(self, for_s: float) -> None:
        """SIGSTOP; a session that ends meanwhile is begun anew afterwards."""
        if not self.up or self.stopped:
            return
        self.tell("is stopped", for_s)
        life = self.life
        self.stop()
        self.world.hung_until_s = max(self.world.hung_until_s, self.kernel.now_s + for_s + 1.5)
        self.pauses += 1
        self._look_well()
        if for_s > self.world.settings.session_s:
            self.kernel.after(
                self.world.settings.session_s, lambda: self._gone(life, while_stopped=True)
            )
        self.kernel.after(for_s, lambda: self._goes_on(life))

    def restless(self, times: int) -> None:
        """Its gRPC has another port again and again: a change of its clusters, of no effect."""
        if self.up and times and not self.world.faults.quiet:
            self.grpc_port ^= 1
            self._show()
            self.after(self.kernel.between(*RESTLESS_S), lambda: self.restless(times - 1))

    def expired(self) -> None:
        """Its session is lost; the process is well."""
        if self.registered and not self.stopped:
            self._gone(self.life)
            self.after(self.kernel.between(0.1, 1.0), self._register)

    # --- requests ---------------------------------------------------------------------------------

    def has(self, version: int) -> bool:
        return self.versions.get(version) is _READY

    def answers(self, version: int, instead: int | None) -> int | None:
        """The version that it answers with; None: neither is here."""
        if self.versions.get(version) is _READY:
            return version
        if instead is not None and self.versions.get(instead) is _READY:
            return instead
        return None

    def serve(self, version: int, requests: int) -> None:
        """Answer so many. A version that crashes ends the process."""
        nature = self.world.settings.natures[version]
        if nature is Nature.CRASHING:
            self._end(own_fault=f"segmentation fault in version {version}")
            return
        counted = self.counts.get(version)
        if counted is None:
            counted = self.counts[version] = [0, 0, 0]
        counted[0] += requests
        if nature is Nature.ERRING:
            counted[1] += requests // 3
        elif nature is Nature.SLOW:
            counted[2] += requests
        if version in self.watched:
            self.watched[version][0] += requests
            if nature is Nature.NONFINITE:
                self.watched[version][1] += requests // 3

    def stats(self) -> ReplicaStats | None:
        """What it answers when it is asked; None: nothing."""
        if not self.up or self.stopped or self.world.now_s < self.world.silent_until_s:
            return None
        versions = {}
        for version, (requests, errors, slow) in self.counts.items():
            buckets = [0] * _BUCKETS
            buckets[_ORDINARY], buckets[_SLOW] = requests - slow, slow
            versions[version] = Counts(requests, errors, tuple(buckets))
        waiting = self.world.waiting // len(self.world.replicas)
        watched = {
            version: OutputStats(answers, {"y": broken}, {})
            for version, (answers, broken) in self.watched.items()
        }
        return ReplicaStats(self.worker, waiting, 0, 0, versions, watched=watched)

    # --- health, as checks find it ----------------------------------------------------------------

    def believed(self, checked_s: float) -> bool:
        """Whether somebody who checked it first at that time takes it for healthy now."""
        since_s = self._well_since_s
        if checked_s >= since_s or self.kernel.now_s >= since_s + self._lag_s:
            return self.well
        return self._believed

    def _look_well(self) -> None:
        """As `/v2/health/ready` says: the stable version is here, and it does not drain."""
        stable = self.stable
        well = (
            self.up
            and not self.stopped
            and not self.draining
            and stable is not None
            and self.versions.get(stable) is _READY
        )
        if well != self.well:
            self._believed = self.believed(-1.0)
            self.well, self._well_since_s = well, self.kernel.now_s
            self._lag_s = WELL_AFTER_S
            if not well:
                self._lag_s = SILENT_AFTER_S if self.stopped else UNWELL_AFTER_S

    # --- following --------------------------------------------------------------------------------

    def _join(self) -> None:
        self.joined = True
        self._register()
        self.mirror.begin()

    def _register(self) -> None:
        self.registered = True
        self._show()

    def _follow(self) -> None:
        plan = self.mirror.plan
        if plan is None:
            return
        if plan.version_revision != self.version_revision:
            self.version_revision = plan.version_revision
            self._forget(v for v, held in self.versions.items() if held.state is Load.FAILED)
        self.plan, self.hold, self.stable = plan.number, plan.hold, plan.stable
        under_way = plan.stage in (RolloutStage.LOADING, RolloutStage.SHIFTING)
        rollout = (plan.stable, plan.next) if under_way else (None, None)
        if rollout != self.rollout:
            self.rollout = rollout
            self.watched = {version: [0, 0] for version in rollout if version is not None}
        self._forget(v for v in self.versions if v not in plan.hold)
        for version in plan.hold:
            self.versions.setdefault(version, _LOADING)
        self._look_well()
        self._show()
        self._load()

    def _forget(self, versions: Iterable[int]) -> None:
        for version in list(versions):
            del self.versions[version]
            self.counts.pop(version, None)

    def _load(self) -> None:
        """The most needed one that is not loaded, one at a time."""
        if self.loading is not None:
            return
        waiting = [version for version in self.hold if self.versions.get(version) is _LOADING]
        if waiting:
            self.loading = waiting[0]
            slow = self.world.faults.strikes("slow load")
            self.after(self.kernel.between(*(SLOW_LOAD_S if slow else LOAD_S)), self._loaded)

    def _loaded(self) -> None:
        version, self.loading = self.loading, None
        assert version is not None
        nature = self.world.settings.natures[version]
        if self.world.faults.strikes("failed load"):
            self._load()  # nobody was reached, which says nothing about the version
            return
        if nature is Nature.FATAL:
            self._end(own_fault=f"segmentation fault while version {version} was loaded")
            return
        failed = nature is Nature.UNLOADABLE or (nature is Nature.PICKY and self.machine == "m1")
        if version in self.versions:
            self.versions[version] = Loaded(Load.FAILED, "it has no head") if failed else _READY
            self._look_well()
            self._show()
        self._load()

    # --- being seen -------------------------------------------------------------------------------

    def _show(self) -> None:
        """Its node, a little later, as it then is."""
        if not self._shows:
            self._shows = True
            self.after(self.kernel.between(0.001, 0.05), self._write)

    def _write(self) -> None:
        mirror = self.mirror
        if not mirror.reaches:
            until_s = max(mirror.mute_until_s, self.world.plane.away_until_s)
            self.after(until_s - self.kernel.now_s + 0.01, self._write)
            return
        self._shows = False
        if not self.registered:
            return
        self.world.plane.replicas[self.worker] = Replica(
            NAME,
            self.worker,
            self.host,
            HTTP_PORT,
            self.grpc_port,
            node=self.machine,
            region=self.region,
            versions=dict(self.versions),
            draining=self.draining,
            plan=self.plan,
            started_s=self.started_s,
        )
        self.world.changed((REPLICA, self.worker))

    # --- its end ----------------------------------------------------------------------------------

    def _goes_on(self, life: int) -> None:
        if life != self.life or not self.stopped:
            return
        self.tell("goes on")
        self.go_on()
        self._look_well()
        if self.up and self.joined and not self.registered:
            self.after(self.kernel.between(0.05, 0.5), self._register)

    def _leave(self) -> None:
        self.die()
        self._look_well()
        self._gone(self.life)
        self.world.replica_gone(self)

    def _end(self, own_fault: str) -> None:
        """The process ends now; others see it when its session is over."""
        self.tell("dies", own_fault)
        self.die()
        self._look_well()
        world, life = self.world, self.life
        world.replica_gone(self)
        if own_fault:
            failure = Failure(self.worker, own_fault, world.wall_s)
            self.kernel.after(0.1, lambda: self._report(failure))
        self.kernel.after(
            self.kernel.between(0.05, world.settings.session_s), lambda: self._gone(life)
        )
        world.traffic.probe()

    def _report(self, failure: Failure) -> None:
        plane = self.world.plane
        plane.failures = (*plane.failures, failure)[-FAILURES_KEPT:]
        self.world.changed((JOB, 0))

    def _gone(self, life: int, *, while_stopped: bool = False) -> None:
        """Its session is over, and its node with it. A plane that is away ends no session."""
        plane = self.world.plane
        if self.kernel.now_s < plane.away_until_s:
            after_s = plane.away_until_s - self.kernel.now_s + self.world.settings.session_s
            self.kernel.after(after_s, lambda: self._gone(life, while_stopped=while_stopped))
            return
        if life != self.life or (while_stopped and not self.stopped):
            return
        self.registered = False
        if plane.replicas.pop(self.worker, None) is not None:
            self.world.changed((REPLICA, self.worker))
