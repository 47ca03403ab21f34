"""The world: what is written down, who lives, and one run from a seed to a verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.control.facts import Failure
from holdfast.serve.conduct import Desired, Observed, SetCourse
from holdfast.serve.records import Course, Gateway, Replica, Service, Stage
from simulation.kernel import Kernel, Violation
from simulation.serving.checks import Checks
from simulation.serving.conductor import Conductor
from simulation.serving.gateway import GatewayBeing
from simulation.serving.replica import ReplicaBeing
from simulation.serving.settings import STORM_S, Act, Settings, draw

TRAFFIC_S: Final = 0.25
LOAD_S: Final = 4.0  # how long the service is as busy as it is
REQUESTS: Final = 400  # of each gateway, in that time
PEACE_S: Final = 240.0
EVENTS_MAX: Final = 60_000


@dataclass(slots=True)
class Plane:
    """What is written in the coordination plane. Values in it are never changed, only replaced."""

    service: Service
    target: int = 1
    retired: dict[int, str] = field(default_factory=dict)
    course: Course | None = None
    replicas: dict[int, Replica] = field(default_factory=dict)
    gateways: dict[str, Gateway] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    job_replicas: int = 1
    term: int = 0

    def desired(self) -> Desired:
        unusable = {version: f"it is retired: {why}" for version, why in self.retired.items()}
        return Desired(self.service, self.target, "", unusable)

    def observed(self) -> Observed:
        """As it is at this moment; the conductor adds what it remembers."""
        return Observed(
            self.course,
            dict(self.replicas),
            dict(self.gateways),
            job_replicas=self.job_replicas,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a seed."""

    seed: int
    rule: str
    what: str
    events: int
    simulated_s: float
    happened: Counter[str]
    story: list[str]
    digest: str

    @property
    def ok(self) -> bool:
        return not self.rule


class World:
    """One run."""

    def __init__(self, seed: int, off: frozenset[str] = frozenset()) -> None:
        self.seed = seed
        self.kernel = Kernel(seed)
        self.settings: Settings = draw(seed, off)
        first = self.settings.service.replicas_min
        self.plane = Plane(self.settings.service, job_replicas=first)
        self.replicas: dict[int, ReplicaBeing] = {}
        self.workers = 0
        self.checks = Checks(self)
        self.happened: Counter[str] = Counter()
        self.silent_until_s = 0.0
        self.lost = 0  # requests that no replica could answer
        self.waiting = 0  # requests in all queues
        self.gateways = [
            GatewayBeing(self, f"g{number}") for number in range(self.settings.gateways)
        ]
        self.conductors = [
            Conductor(self, f"c{number}") for number in range(self.settings.conductors)
        ]

    @property
    def now_s(self) -> float:
        return self.kernel.now_s

    # --- one run --------------------------------------------------------------------------------

    def run(self, *, traced: bool = False) -> Verdict:
        """From the first event until all is settled, or a rule is broken."""
        kernel, rule, what = self.kernel, "", ""
        for gateway in self.gateways:
            gateway.start()
        for conductor in self.conductors:
            conductor.start()
        self.match_job()
        for act in self.settings.acts:
            kernel.after(act.at_s, lambda act=act: self._act(act))  # type: ignore[misc]
        for at_s, kind in self.settings.faults:
            kernel.after(at_s, lambda kind=kind: self._strike(kind))  # type: ignore[misc]
        kernel.after(TRAFFIC_S, self._traffic)
        kernel.after(LOAD_S, self._load)
        try:
            while kernel.step():
                if kernel.now_s > STORM_S + 5.0 and self.checks.settled():
                    break
                if kernel.now_s > STORM_S + PEACE_S or kernel.events > EVENTS_MAX:
                    self.checks.unsettled()
            self.checks.at_the_end()
        except Violation as violation:
            rule, what = violation.rule, violation.what
        story = kernel.story() if rule else []
        digest = kernel.digest() if traced else ""
        return Verdict(
            self.seed, rule, what, kernel.events, kernel.now_s, self.happened, story, digest
        )

    # --- the plane's changes ----------------------------------------------------------------------

    def write_course(
        self, who: str, term: int, command: SetCourse, desired: Desired, seen: Observed
    ) -> bool:
        """Whether it was written: by the leader of the newest term, upon the course that it saw."""
        present = self.plane.course
        if self.fenced(term, command):
            self.happened["refused"] += 1
            self.kernel.tell(who, "refused", command.before)
            return False
        self.plane.course = command.course
        self.happened[command.course.stage.value] += 1
        self.kernel.tell(who, "course", command.course)
        self.checks.course_written(term, present, command.course, desired, seen)
        for gateway in self.gateways:
            gateway.course_changed()
        for replica in self.replicas.values():
            replica.course_changed()
        self.changed()
        return True

    def fenced(self, term: int, command: SetCourse) -> bool:
        present = self.plane.course.number if self.plane.course is not None else 0
        return term != self.plane.term or command.before != present

    def changed(self) -> None:
        """Watches wake the conductors, a little later."""
        for conductor in self.conductors:
            conductor.woken()

    def scale(self, replicas: int) -> None:
        self.plane.job_replicas = replicas
        self.match_job()
        self.changed()

    # --- the job: as many replicas as it shall have -----------------------------------------------

    def match_job(self) -> None:
        alive = [being for being in self.replicas.values() if being.up and not being.draining]
        for _ in range(self.plane.job_replicas - len(alive)):
            self.workers += 1
            self.replicas[self.workers] = being = ReplicaBeing(self, self.workers)
            being.start()
        for being in alive[self.plane.job_replicas :]:
            being.drain()

    def replica_gone(self, being: ReplicaBeing) -> None:
        self.replicas.pop(being.worker, None)
        self.kernel.after(self.kernel.between(0.5, 2.0), self.match_job)

    # --- traffic, users, faults -------------------------------------------------------------------

    def _traffic(self) -> None:
        for gateway in self.gateways:
            gateway.send(REQUESTS)
        self.kernel.after(TRAFFIC_S, self._traffic)

    def _load(self) -> None:
        stormy = self.now_s < STORM_S
        self.waiting = self.kernel.random.choice((0, 4, 20, 60)) if stormy else 0
        self.kernel.after(LOAD_S, self._load)

    def _act(self, act: Act) -> None:
        """A user asks for something. Retired versions are refused to them, as they really are."""
        plane, first = self.plane, act.versions[0]
        service = replace(plane.service, asked=plane.service.asked + 1)
        wished = replace(service, wishes=service.wishes + 1)
        usable = [version for version in act.versions if version not in plane.retired]
        if act.what == "target" and usable:
            plane.target = usable[0]
        elif act.what == "pin" and usable:
            plane.service = replace(wished, pinned=usable[0], split={})
        elif act.what == "rollout":
            plane.service = replace(wished, pinned=None, split={})
        elif act.what == "split" and usable:
            split = dict.fromkeys(usable, 3_000 + 1_000 * act.number)
            plane.service = replace(wished, split=split, pinned=None)
        elif act.what == "retire" and (plane.course is None or first != plane.course.stable):
            plane.retired[first] = "it is bad"
        elif act.what == "scale":
            most = max(plane.service.replicas_max, act.number)
            plane.service = replace(service, replicas_wanted=act.number, replicas_max=most)
        self.kernel.tell("user", act.what, act.versions, act.number)
        self.happened[act.what] += 1
        self.changed()

    def _strike(self, kind: str) -> None:
        random = self.kernel.random
        self.happened[kind] += 1
        self.kernel.tell("fault", kind)
        if kind == "kill replica" and self.replicas:
            self.replicas[random.choice(sorted(self.replicas))].killed()
        elif kind == "crash conductor":
            random.choice(self.conductors).crash()
        elif kind == "depose conductor":
            for conductor in self.conductors:
                conductor.depose()
        elif kind == "slow gateway":
            slow_s = self.kernel.between(3.0, 20.0)
            for gateway in self.gateways[: random.randint(1, len(self.gateways))]:
                gateway.slow(slow_s)
        elif kind == "restart gateway":
            random.choice(self.gateways).restart()
        elif kind == "silence":
            self.silent_until_s = self.now_s + self.kernel.between(1.0, 5.0)

    @property
    def starting(self) -> bool:
        """Whether nothing has ever been served."""
        return self.plane.course is None or self.plane.course.stage is Stage.STARTING
