"""A simulated replica: it follows the course, loads one version at a time, counts, and dies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.control.facts import Failure
from holdfast.serve.records import (
    LATENCY_BOUNDS_MS,
    Counts,
    Course,
    Load,
    Loaded,
    Replica,
    ReplicaStats,
)
from simulation.kernel import Being
from simulation.serving.settings import NAME, Nature

if TYPE_CHECKING:
    from simulation.serving.world import World

_ORDINARY, _SLOW = 8, 16
_BUCKETS = len(LATENCY_BOUNDS_MS) + 1


class ReplicaBeing(Being):
    """One process. Its number never comes back."""

    def __init__(self, world: World, worker: int) -> None:
        super().__init__(world.kernel, f"r{worker}")
        self.world = world
        self.worker = worker
        self.machine = f"m{worker % 3}"
        self.versions: dict[int, Loaded] = {}
        self.counts: dict[int, list[int]] = {}  # version -> requests, errors, slow ones
        self.draining = False
        self.joined = False
        self.course = 0
        self.wishes = 0
        self.hold: tuple[int, ...] = ()
        self.loading: int | None = None
        self.started_s = 0.0

    def start(self) -> None:
        self.begin()
        self.started_s = self.world.now_s
        self.after(self.kernel.between(0.2, 1.0), self._join)

    def ready(self, version: int) -> bool:
        held = self.versions.get(version)
        return self.up and held is not None and held.state is Load.READY

    def drain(self) -> None:
        self.draining = True
        self._show()
        self.after(1.0, self._leave)

    def killed(self) -> None:
        """By somebody else."""
        if self.up:
            self._end(own_fault="")

    def course_changed(self) -> None:
        self.after(self.kernel.between(0.005, 0.1), self._follow)

    def serve(self, version: int, requests: int) -> None:
        """Answer them. A version that crashes ends the process."""
        nature = self.world.settings.natures[version]
        if nature is Nature.CRASHING:
            self._end(own_fault=f"segmentation fault in version {version}")
            return
        counted = self.counts.setdefault(version, [0, 0, 0])
        counted[0] += requests
        counted[1] += requests // 3 if nature is Nature.ERRING else 0
        counted[2] += requests if nature is Nature.SLOW else 0

    def stats(self) -> ReplicaStats | None:
        """What it answers when it is asked; None: nothing."""
        if not self.up or not self.joined or self.world.now_s < self.world.silent_until_s:
            return None
        versions = {}
        for version, (requests, errors, slow) in self.counts.items():
            buckets = [0] * _BUCKETS
            buckets[_ORDINARY], buckets[_SLOW] = requests - slow, slow
            versions[version] = Counts(requests, errors, tuple(buckets))
        waiting = self.world.waiting // len(self.world.replicas)
        return ReplicaStats(self.worker, waiting, 0, 0, versions)

    # --- private --------------------------------------------------------------------------------

    def _join(self) -> None:
        self.joined = True
        self._follow()

    def _follow(self) -> None:
        course: Course | None = self.world.plane.course
        if course is not None and self.joined:
            if course.wishes != self.wishes:
                self.wishes = course.wishes
                self._forget(v for v, held in self.versions.items() if held.state is Load.FAILED)
            self.course, self.hold = course.number, course.hold
            self._forget(v for v in self.versions if v not in course.hold)
            for version in course.hold:
                self.versions.setdefault(version, Loaded(Load.LOADING))
        self._show()
        self._load()

    def _forget(self, versions: Iterable[int]) -> None:
        for version in list(versions):
            del self.versions[version]
            self.counts.pop(version, None)

    def _load(self) -> None:
        """The most needed one that is not loaded, one at a time."""
        waiting = [
            version
            for version in self.hold
            if version in self.versions and self.versions[version].state is Load.LOADING
        ]
        if self.loading is not None or not waiting:
            return
        self.loading = waiting[0]
        self.after(self.kernel.between(0.1, 1.5), self._loaded)

    def _loaded(self) -> None:
        version, self.loading = self.loading, None
        assert version is not None
        nature = self.world.settings.natures[version]
        if nature is Nature.FATAL:
            self._end(own_fault=f"segmentation fault while version {version} was loaded")
            return
        picky = nature is Nature.PICKY and self.machine == "m1"
        failed = nature is Nature.UNLOADABLE or picky
        if version in self.versions:
            state = Load.FAILED if failed else Load.READY
            self.versions[version] = Loaded(state, "it has no head" if failed else "")
            self._show()
        self._load()

    def _show(self) -> None:
        """Its node, a little later, as it then is."""
        self.after(self.kernel.between(0.001, 0.05), self._write)

    def _write(self) -> None:
        if not self.joined:
            return
        self.world.plane.replicas[self.worker] = Replica(
            NAME,
            self.worker,
            self.name,
            1,
            1,
            node=self.machine,
            versions=dict(self.versions),
            draining=self.draining,
            course=self.course,
            started_s=self.started_s,
        )
        self.world.changed()

    def _leave(self) -> None:
        self.die()
        self.world.plane.replicas.pop(self.worker, None)
        self.world.replica_gone(self)
        self.world.changed()

    def _end(self, own_fault: str) -> None:
        """The process ends now; others see it when its session is over."""
        self.tell("dies", own_fault)
        self.die()
        world, at_s = self.world, self.world.now_s
        world.replica_gone(self)
        if own_fault:
            failure = Failure(self.worker, own_fault, at_s)
            self.kernel.after(0.1, lambda: self._report(failure))
        self.kernel.after(self.kernel.between(0.05, 2.0), self._expire)

    def _report(self, failure: Failure) -> None:
        self.world.plane.failures = (*self.world.plane.failures, failure)[-32:]
        self.world.changed()

    def _expire(self) -> None:
        self.world.plane.replicas.pop(self.worker, None)
        self.world.changed()
