"""The world: who lives, what goes wrong, and one run from a seed to a verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from holdfast.serve.records import RolloutPlan
from holdfast.serve.rollout import advance
from holdfast.serve.rollout.facts import DesiredService, ServiceObservation, SetPlan
from holdfast.wire.errors import BugError
from simulation.kernel import Kernel, SimulatedProcess, Violation
from simulation.serving.checks import Checks
from simulation.serving.controller import RolloutController
from simulation.serving.faults import Faults
from simulation.serving.gateway import SimulatedGateway
from simulation.serving.plane import JOB, PLAN, SERVICE, Node, Plane, PlaneMirror
from simulation.serving.pure import KnownResults, Pure
from simulation.serving.replica import RESTLESS_TIMES, SimulatedReplica
from simulation.serving.settings import UserAction, WorldSettings, draw
from simulation.serving.traffic import Traffic
from simulation.verdict import NO_FAULTS_OFF, Kind, Verdict, verdict_of, with_story

LOAD_S: Final = 2.0  # how long the service is as busy as it is
TOLD_S: Final = 2.0  # until a controller knows that its session is over
LOOK_S: Final = 0.7  # how often it is looked whether all is settled
EPOCH_S: Final = 1_000.0
PEACE_S: Final = 180.0
# A clock jumps by seconds; if by more than so many, by so many times as much: an hour or so.
FAR_S, FAR = 2.0, 900.0
EXPIRIES: Final = ("expire replica", "expire gateway", "depose controller")
_KEPT: Final = KnownResults()
EVENTS_MAX: Final = 30_000


class World:
    """One run."""

    def __init__(
        self,
        seed: int,
        off: frozenset[str] = NO_FAULTS_OFF,
        *,
        traced: bool = False,
        kept: KnownResults | None = None,
    ) -> None:
        self.seed = seed
        self.kernel = Kernel(seed, traced=traced)
        self.settings: WorldSettings = draw(seed, off)
        storms_s = [storm.length_s for storm in self.settings.storms]
        self.faults = Faults(seed, storms_s, off)
        self.pure = Pure(seed, kept or KnownResults())
        service = self.settings.service
        self.plane = Plane(service, service.replicas_min)
        self.replicas: dict[int, SimulatedReplica] = {}
        self.by_address: dict[str, SimulatedReplica] = {}  # the dead too
        self.happened: Counter[str] = Counter()
        self.silent_until_s = 0.0
        self.hung_until_s = 0.0  # a replica hangs, or has just done so
        self.waiting = 0  # requests in all queues
        self.stormy = True
        self.plans: list[RolloutPlan] = []  # all that were written
        self._workers = 0
        self._over = False
        self.checks = Checks(self)
        self.traffic = Traffic(self)
        self.gateways = [
            SimulatedGateway(self, f"g{number}", front)
            for number, front in enumerate(self.settings.fronts)
        ]
        self.controllers = [
            RolloutController(self, f"c{number}", clock_s)
            for number, clock_s in enumerate(self.settings.clocks_s)
        ]

    @property
    def now_s(self) -> float:
        return self.kernel.now_s

    @property
    def wall_s(self) -> float:
        """By a clock that is right."""
        return EPOCH_S + self.kernel.now_s

    def processes(self) -> list[SimulatedProcess]:
        """All processes but Envoy."""
        return [*self.gateways, *self.controllers, *self.replicas.values()]

    def mirrors(self) -> list[PlaneMirror]:
        """What each of them has read."""
        return [
            *(gateway.mirror for gateway in self.gateways),
            *(controller.mirror for controller in self.controllers),
            *(replica.mirror for replica in self.replicas.values()),
        ]

    # --- one run ----------------------------------------------------------------------------------

    def run(self) -> Verdict:
        """From the first event until all is settled after the last storm, or a rule is broken."""
        kernel, rule, what = self.kernel, "", ""
        for gateway in self.gateways:
            gateway.start()
        for controller in self.controllers:
            controller.start()
        self._match_job()
        kernel.after(self.settings.calm_s, lambda: self._storm(0))
        self.traffic.start()
        kernel.after(LOAD_S, self._load)
        try:
            while not self._over and kernel.step():
                pass
        except Violation as violation:
            rule, what = violation.rule, violation.what
        except BugError as error:
            rule, what = "the code's own checks hold", str(error)
        return verdict_of(self.seed, kernel, self.faults, self.happened, (rule, what))

    def _storm(self, number: int) -> None:
        storm, kernel = self.settings.storms[number], self.kernel
        self.stormy, self.faults.quiet = True, False
        kernel.tell("world", "storm", number + 1)
        for act in storm.acts:
            kernel.after(act.at_s, lambda act=act: self._act(act))  # type: ignore[misc]
        for planned in self.faults.planned[number]:
            kernel.after(planned.at_s, lambda kind=planned.kind: self._strike(kind))  # type: ignore[misc]
        kernel.after(storm.length_s, lambda: self._peace(number))

    def _peace(self, number: int) -> None:
        """Nothing goes wrong any more, and what is wrong ends."""
        self.kernel.tell("world", "peace")
        self.stormy, self.faults.quiet = False, True
        self.checks.peace_begins()
        self.kernel.after(LOOK_S, lambda: self._settle(number, self.now_s + PEACE_S))

    def _settle(self, number: int, until_s: float) -> None:
        if self.now_s > until_s or self.kernel.events > EVENTS_MAX:
            self.checks.unsettled()
        if not self.checks.settled():
            self.kernel.after(LOOK_S, lambda: self._settle(number, until_s))
            return
        self.checks.at_the_end()
        if number + 1 < len(self.settings.storms):
            self._storm(number + 1)
        else:
            self._over = True

    # --- the plane's changes ----------------------------------------------------------------------

    def write_plan(
        self,
        who: str,
        term: int,
        command: SetPlan,
        desired: DesiredService,
        seen: ServiceObservation,
    ) -> bool:
        """Whether it was written: by the leader of the newest term, upon the plan that it saw."""
        present = self.plane.plan
        if self.fenced(term, command):
            self.happened["refused"] += 1
            self.kernel.tell(who, "is refused", command.before)
            return False
        self.plane.plan = command.plan
        self.plans.append(command.plan)
        self.happened[command.plan.stage.value] += 1
        self.kernel.tell(who, "plan", command.plan)
        self.checks.plan_written(term, present, command.plan, desired, seen)
        self.changed((PLAN, 0))
        return True

    def fenced(self, term: int, command: SetPlan) -> bool:
        present = self.plane.plan.number if self.plane.plan is not None else 0
        return term != self.plane.leader or command.before != present

    def changed(self, node: Node) -> None:
        """Watches wake those who look there."""
        for controller in self.controllers:
            if controller.term:
                controller.mirror.touched(node)
        for gateway in self.gateways:
            gateway.mirror.touched(node)
        if node[0] == PLAN:
            for replica in self.replicas.values():
                if replica.joined:
                    replica.mirror.touched(node)

    def leader_lost(self, term: int, after_s: float) -> None:
        """The session of this term's leader is over, so much later."""
        if term and term == self.plane.leader:
            self.kernel.after(after_s, lambda: self._elect(term))

    def _elect(self, term: int) -> None:
        if self.plane.leader != term:
            return
        if self.now_s < self.plane.away_until_s:
            self.kernel.after(self.plane.away_until_s - self.now_s, lambda: self._elect(term))
            return
        self.plane.leader = 0
        for controller in self.controllers:
            if controller.up and not controller.term:
                controller.stand()
            elif controller.up:
                # At the latest: a session that ends while the plane is away ends after all others.
                controller.after(TOLD_S, controller.give_up_if_deposed)

    # --- the job: as many replicas as it shall have -----------------------------------------------

    def scale(self, replicas: int) -> None:
        self.checks.scaled(self.plane.job_replicas, replicas)
        self.plane.job_replicas = replicas
        self.kernel.tell("job", "shall have", replicas)
        self._match_job()
        self.changed((JOB, 0))

    def _match_job(self) -> None:
        alive = [
            replica for replica in self.replicas.values() if replica.up and not replica.draining
        ]
        for _ in range(self.plane.job_replicas - len(alive)):
            self._workers += 1
            replica = SimulatedReplica(self, self._workers)
            self.replicas[self._workers] = self.by_address[replica.host] = replica
            replica.start()
        for replica in alive[self.plane.job_replicas :]:
            replica.drain()

    def replica_gone(self, replica: SimulatedReplica) -> None:
        self.replicas.pop(replica.worker, None)
        self.kernel.after(self.kernel.between(0.3, 1.5), self._match_job)

    # --- users, faults ----------------------------------------------------------------------------

    def _load(self) -> None:
        self.waiting = self.kernel.random.choice((0, 4, 20, 60)) if self.stormy else 0
        self.kernel.after(LOAD_S, self._load)

    def _act(self, act: UserAction) -> None:
        """A user asks for something. Retired versions are refused to them, as they really are."""
        plane, first = self.plane, act.versions[0]
        if self.now_s < plane.away_until_s:
            self.kernel.after(plane.away_until_s - self.now_s, lambda: self._act(act))
            return
        service = replace(plane.service, revision=plane.service.revision + 1)
        asked = replace(service, version_revision=service.version_revision + 1)
        usable = [version for version in act.versions if version not in plane.retired]
        if act.what == "target" and usable:
            plane.target = usable[0]
            if act.number % 2:  # its alias moves by itself, or users ask for a rollout with it
                plane.service = replace(asked, pinned=None, split={})
        elif act.what == "pin" and usable:
            plane.service = replace(asked, pinned=usable[0], split={})
        elif act.what == "rollout":
            plane.service = replace(asked, pinned=None, split={})
        elif act.what == "split" and usable:
            split = dict(zip(usable, (3_000, 1_000 * act.number), strict=False))
            plane.service = replace(asked, split=split, pinned=None)
        elif act.what == "retire" and (plane.plan is None or first != plane.plan.stable):
            plane.retired[first] = "it is bad"
        elif act.what == "scale":
            most = max(plane.service.replicas_max, act.number)
            plane.service = replace(service, replicas_wanted=act.number, replicas_max=most)
        self.kernel.tell("user", act.what, act.versions, act.number)
        self.happened[act.what] += 1
        self.checks.desired_changed()
        self.changed((SERVICE, 0))

    def _strike(self, kind: str) -> None:
        # A plane that is away ends no session.
        if kind in EXPIRIES and self.now_s < self.plane.away_until_s:
            return
        if not self.faults.happens(kind):
            return
        self.happened[kind] += 1
        self.checks.struck(kind)
        self.kernel.tell("fault", kind)
        random, between = self.faults.random, self.kernel.between
        replicas = list(self.replicas.values())
        if kind.endswith("replica") and replicas:
            self._strike_replica(kind, random.choice(replicas))
        elif kind.endswith("controller") or kind == "clock jump":
            self._strike_controller(kind, random.choice(self.controllers))
        elif kind.endswith(("gateway", "envoy")):
            self._strike_gateway(kind, random.choice(self.gateways))
        elif kind in ("deaf", "mute"):
            mirror = random.choice(self.mirrors())
            until_s = self.now_s + between(0.3, 4.0)
            if kind == "deaf":
                mirror.deaf_until_s = until_s
            else:
                mirror.mute_until_s = until_s
        elif kind == "plane away":
            self.plane.away_until_s = self.now_s + between(0.5, 6.0)
        elif kind == "silence":
            self.silent_until_s = self.now_s + between(0.5, 3.0)
        elif kind == "everything":
            for replica in replicas:
                replica.killed()
            for controller in self.controllers:
                controller.crash()
            self._strike_gateway("restart gateway", self.gateways[0])

    def _strike_replica(self, kind: str, replica: SimulatedReplica) -> None:
        if kind == "kill replica":
            replica.killed()
        elif kind == "pause replica":
            replica.pause(self.kernel.between(0.2, 4.0))
        elif kind == "restless replica":
            replica.restless(RESTLESS_TIMES)
        else:
            replica.expired()

    def _strike_controller(self, kind: str, controller: RolloutController) -> None:
        if kind == "crash controller":
            controller.crash()
        elif kind == "pause controller":
            controller.pause(self.kernel.between(0.2, 4.0))
        elif kind == "clock jump":
            by_s = self.kernel.between(-5.0, 5.0)
            controller.clock_s += by_s if abs(by_s) < FAR_S else by_s * FAR
        else:
            for each in self.controllers:
                each.depose()

    def _strike_gateway(self, kind: str, gateway: SimulatedGateway) -> None:
        if kind == "restart gateway":
            gateway.restart()
        elif kind == "pause gateway":
            gateway.pause(self.kernel.between(0.3, 5.0))
        elif kind == "expire gateway":
            gateway.expired()
        else:
            gateway.envoy_crashed()


def run(
    seed: int,
    off: frozenset[str] = NO_FAULTS_OFF,
    *,
    traced: bool = False,
    own_checks: bool = True,
) -> Verdict:
    """Run a seed."""
    judged = advance.validate
    if not own_checks:
        advance.validate = _unchecked
    kept = _KEPT if own_checks else None
    try:
        return with_story(lambda traced: World(seed, off, traced=traced, kept=kept).run(), traced)
    finally:
        advance.validate = judged


def _unchecked(plan: RolloutPlan) -> None:
    """A hunt for mutants leaves all judging to the world's truth."""


SERVING: Final = Kind("simulation.serving", run)
