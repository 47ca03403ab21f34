"""A simulated conductor around the real decisions: it reads, decides, and writes a little later.

It may die between any two of these, or be deposed without knowing. What it remembers of replicas
is the real `Memory`, and dies with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from holdfast.serve import moves, rollout
from holdfast.serve.autoscale import is_automatic
from holdfast.serve.conduct import Decision, Desired, Observed, SetCourse
from holdfast.serve.conductor.memory import Memory
from holdfast.serve.records import Stage
from simulation.kernel import Being
from simulation.serving.settings import NAME

if TYPE_CHECKING:
    from simulation.serving.world import World

LOOK_S: Final = 0.5
POLL_S: Final = 0.25


class Conductor(Being):
    """A candidate; it leads when nobody else does."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.kernel, name)
        self.world = world
        self.term = 0
        self.memory = Memory()
        self.wake_comes = False
        self.in_hand = False
        self.polled_s = -1.0

    @property
    def leads(self) -> bool:
        """As it believes."""
        return self.up and self.term > 0

    def start(self) -> None:
        self.begin()
        self.term, self.memory = 0, Memory()
        self.wake_comes = self.in_hand = False
        self.after(self.kernel.between(0.05, 1.0), self._campaign)
        self.after(LOOK_S, self._look_now_and_then)

    def crash(self) -> None:
        if self.up:
            self.die()
            self.kernel.after(self.kernel.between(0.1, 3.0), self.start)

    def depose(self) -> None:
        """Its session is over; it goes on for a while as if nothing had happened."""
        if self.leads and self.term == self.world.plane.term:
            self.world.plane.term += 1
            self.after(self.kernel.between(0.5, 3.0), self._stand_again)

    def woken(self) -> None:
        if self.leads and not self.wake_comes:
            self.wake_comes = True
            self.after(self.kernel.between(0.001, 0.02), self._look)

    # --- private --------------------------------------------------------------------------------

    def _stand_again(self) -> None:
        self.term, self.memory = 0, Memory()
        self._campaign()

    def _campaign(self) -> None:
        """Lead, if the leader of the newest term is dead or has given up."""
        plane = self.world.plane
        others = [one for one in self.world.conductors if one is not self and one.leads]
        if any(one.term == plane.term for one in others):
            self.after(1.0, self._campaign)
            return
        plane.term += 1
        self.term = plane.term
        self.tell("leads", self.term)
        self.woken()

    def _look_now_and_then(self) -> None:
        self.woken()
        self.after(LOOK_S, self._look_now_and_then)

    def _look(self) -> None:
        self.wake_comes = False
        if self.in_hand:
            return  # it looks again when it has written
        world, plane, now_s = self.world, self.world.plane, self.world.now_s
        course, memory = plane.course, self.memory
        applied = course is not None and moves.applied_by_all(course, plane.gateways, NAME)
        memory.see_course(course, applied=applied)
        memory.see_replicas(plane.replicas, now_s)
        memory.see_failures(plane.failures)
        observed = replace(
            plane.observed(), window=memory.window, samples=memory.samples, deaths=memory.deaths
        )
        desired = plane.desired()
        decisions = rollout.advance(desired, observed, now_s)
        if decisions:
            self.in_hand = True
            delay_s = self.kernel.between(0.001, 0.1)
            self.after(delay_s, lambda: self._carry_out(decisions, desired, observed))
        elif course is not None and (course.stage is Stage.SHIFTING or is_automatic(plane.service)):
            self._poll(world, now_s)

    def _carry_out(self, decisions: list[Decision], desired: Desired, observed: Observed) -> None:
        self.in_hand = False
        for decision in decisions:
            command = decision.command
            if isinstance(command, SetCourse):
                written = self.world.write_course(self.name, self.term, command, desired, observed)
                if not written:
                    break
            elif self.term == self.world.plane.term:
                self.world.scale(command.replicas)
        self.woken()

    def _poll(self, world: World, now_s: float) -> None:
        if now_s < self.polled_s + POLL_S:
            return
        self.polled_s = now_s
        course, asked = world.plane.course, sorted(world.plane.replicas)
        assert course is not None
        arms = course.arms
        beings = {worker: world.replicas.get(worker) for worker in asked}

        def answer() -> None:
            found = {w: being.stats() for w, being in beings.items() if being is not None}
            answers = {worker: stats for worker, stats in found.items() if stats is not None}
            self.memory.see_stats(answers, asked, arms, world.now_s)
            self.woken()

        self.after(self.kernel.between(0.005, 0.1), answer)
        self.after(POLL_S, self.woken)
