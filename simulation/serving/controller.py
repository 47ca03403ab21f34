"""A simulated controller around the real decisions: it reads, decides, and writes a little later.

It may die between any two of these, sleep, or be deposed without knowing. What it remembers of
replicas is the real `ServiceHistory`, and dies with it. Its wall clock is wrong, and jumps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.serve.controller.controller import pauses_s
from holdfast.serve.controller.memory import ServiceHistory
from holdfast.serve.records import RolloutPlan, Variant
from holdfast.serve.rollout import advance
from holdfast.serve.rollout.facts import (
    DesiredService,
    RolloutDecision,
    ScaleJob,
    ServiceObservation,
    SetPlan,
)
from holdfast.wire.limits import ROLLOUT_LOOK_S, TROUBLE_S
from simulation.kernel import SimulatedProcess
from simulation.serving.plane import GATEWAY, JOB, REPLICA, SERVICE, PlaneMirror
from simulation.serving.settings import NAME

if TYPE_CHECKING:
    from simulation.serving.world import World

WRITE_S: Final = (0.001, 0.03)
ANSWER_S: Final = (0.005, 0.05)
STAND_S: Final = (0.02, 0.5)


class RolloutController(SimulatedProcess):
    """A candidate; it leads when nobody else does."""

    def __init__(self, world: World, name: str, clock_s: float) -> None:
        super().__init__(world.kernel, name)
        self.world = world
        self.clock_s = clock_s
        self.term = 0  # that it believes to lead
        self.memory = ServiceHistory()
        kinds = frozenset({SERVICE, JOB, REPLICA, GATEWAY})
        self.mirror = PlaneMirror(world, self, kinds, self._look)
        self.plan: RolloutPlan | None = None  # as it wrote it, or read it in this term
        self._in_hand = False
        self._dirty = False
        self._polling = False
        self._polled_s = -1.0
        self._unscaled_s = 0.0
        self._due_s = 0.0

    @property
    def leads(self) -> bool:
        """As it believes."""
        return self.up and self.term > 0

    def now_s(self) -> float:
        """By its wall clock."""
        return self.world.wall_s + self.clock_s

    def start(self) -> None:
        self.begin()
        self.term, self._due_s = 0, 0.0
        self.stand()

    def stand(self) -> None:
        self.after(self.kernel.between(*STAND_S), self._campaign)

    # --- faults -----------------------------------------------------------------------------------

    def crash(self) -> None:
        if self.up:
            self.tell("dies")
            self.world.leader_lost(self.term, self.world.settings.session_s)
            self.die()
            self.kernel.after(self.kernel.between(0.1, 2.0), self.start)

    def pause(self, for_s: float) -> None:
        """Longer than its session it wakes up deposed."""
        if not self.up or self.stopped:
            return
        self.tell("is stopped", for_s)
        life, term = self.life, self.term
        self.stop()
        if for_s > self.world.settings.session_s:
            self.world.leader_lost(term, self.world.settings.session_s)
        self.kernel.after(for_s, lambda: self._goes_on(life))

    def depose(self) -> None:
        """Its session is over; it goes on for a while as if nothing had happened."""
        if self.leads and self.term == self.world.plane.leader:
            self.world.leader_lost(self.term, 0.0)
            self.after(self.kernel.between(0.5, 2.0), self.give_up_if_deposed)

    def _goes_on(self, life: int) -> None:
        if life == self.life and self.stopped:
            self.tell("goes on")
            self.go_on()
            if self.leads:
                # A moment passes before it hears that it is deposed.
                self.after(self.kernel.between(0.01, 0.3), self.give_up_if_deposed)

    def give_up_if_deposed(self) -> None:
        if self.term and self.term != self.world.plane.leader:
            self._give_up()

    def _give_up(self) -> None:
        if self.term:
            self.tell("gives up", self.term)
        self.term = 0
        self.stand()

    # --- leading ----------------------------------------------------------------------------------

    def _campaign(self) -> None:
        """Lead, if nobody does."""
        plane = self.world.plane
        if self.term or plane.leader:
            return  # it is woken when the leader is gone
        if not self.mirror.reaches:
            self.after(1.0, self._campaign)
            return
        plane.term += 1
        self.term = plane.leader = plane.term
        self.memory, self.plan = ServiceHistory(), None
        self._in_hand = self._polling = False
        self._dirty, self._unscaled_s = True, 0.0
        self._polled_s = -1.0
        self.tell("leads", self.term)
        self.mirror.begin()

    def _look_at(self, after_s: float) -> None:
        """Look at that time, unless it looks earlier anyway."""
        due_s = self.kernel.now_s + after_s
        if not self.kernel.now_s < self._due_s <= due_s:
            self._due_s = due_s
            self.after(after_s, self._timed)

    def _timed(self) -> None:
        if self.kernel.now_s >= self._due_s:
            self._look()

    def _look(self) -> None:
        if self._in_hand or not self.term or not self.mirror.known:
            return  # it looks again when it has written
        if self._dirty:
            if not self.mirror.receives:
                self._look_at(ROLLOUT_LOOK_S)
                return
            self.plan, self._dirty = self.world.plane.plan, False
        observed, desired = self._observed(), self.mirror.desired
        assert desired is not None
        decisions = advance.advance(desired, observed, self.now_s())
        if decisions:
            self._in_hand = True
            term = self.term
            delay_s = self.kernel.between(*WRITE_S)
            self.after(delay_s, lambda: self._carry_out(term, decisions, desired, observed))
        else:
            self._look_at(self._poll(desired))

    def _observed(self) -> ServiceObservation:
        mirror = self.mirror
        now = ServiceObservation(
            self.plan, mirror.replicas, mirror.gateways, job_replicas=mirror.job_replicas
        )
        return self.memory.look(NAME, now, mirror.failures, self.now_s())

    def _carry_out(
        self,
        term: int,
        decisions: list[RolloutDecision],
        desired: DesiredService,
        observed: ServiceObservation,
    ) -> None:
        commands = [decision.command for decision in decisions]
        if term != self.term:
            # It has a newer term by now, and this was still on its way.
            for command in commands:
                if isinstance(command, SetPlan):
                    self.world.write_plan(self.name, term, command, desired, observed)
            return
        self._in_hand = False
        done = False
        for command in commands:
            if not self.mirror.reaches or self.world.faults.strikes("request lost"):
                self._dirty = True
            elif isinstance(command, SetPlan):
                done = self._set_plan(command, desired, observed)
            else:
                done = self._scale(command) or done
            if self._dirty:
                break
        if not self.term:
            return
        if self._dirty:
            self._look_at(ROLLOUT_LOOK_S)
        elif done:
            self._look()
        else:
            self._look_at(self._poll(desired))

    def _set_plan(
        self, command: SetPlan, desired: DesiredService, observed: ServiceObservation
    ) -> bool:
        world = self.world
        if not world.write_plan(self.name, self.term, command, desired, observed):
            self._dirty = True
            if self.term != world.plane.leader:
                self._give_up()
            return False
        if world.faults.strikes("reply lost"):
            self._dirty = True
        self.plan = command.plan
        return True

    def _scale(self, command: ScaleJob) -> bool:
        """Whether it was done. Nothing fences it but that the leader looks whether it still is."""
        world, now_s = self.world, self.kernel.now_s
        if now_s < self._unscaled_s or self.term != world.plane.leader:
            return False
        if world.faults.strikes("scale refused"):
            self._unscaled_s = now_s + TROUBLE_S
            return False
        world.scale(command.replicas)
        self.mirror.job_replicas = command.replicas
        return True

    def _poll(self, desired: DesiredService) -> float:
        """Ask replicas for their counts, if they matter now; when to look again."""
        plan, now_s = self.plan, self.kernel.now_s
        every_s, look_s = pauses_s(plan, desired.service)
        if plan is None or every_s is None or self._polling or not self.mirror.replicas:
            return look_s
        if now_s >= self._polled_s + every_s:
            self._polled_s, self._polling = now_s, True
            asked, variants, term = sorted(self.mirror.replicas), plan.variants, self.term
            self.after(
                self.kernel.between(*ANSWER_S), lambda: self._take_answers(term, asked, variants)
            )
        return look_s

    def _take_answers(self, term: int, asked: list[int], variants: tuple[Variant, ...]) -> None:
        if term != self.term:
            return
        self._polling = False
        world = self.world
        world.traffic.flow()
        living = {worker: world.replicas[worker] for worker in asked if worker in world.replicas}
        found = {worker: replica.stats() for worker, replica in living.items()}
        answers = {worker: stats for worker, stats in found.items() if stats is not None}
        self.memory.see_stats(answers, list(living), variants, self.now_s())
        self._look()
