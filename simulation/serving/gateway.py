"""A simulated gateway: it applies each course late, says so later, and sends by the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.serve.records import WEIGHT_TOTAL, Course, Gateway
from simulation.kernel import Being
from simulation.serving.settings import NAME

if TYPE_CHECKING:
    from simulation.serving.world import World


class GatewayBeing(Being):
    """One gateway. Its router goes on with the last course while it is away itself."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.kernel, name)
        self.world = world
        self.routes: Course | None = None
        self.slow_until_s = 0.0

    def start(self) -> None:
        self.begin()
        self._say()
        self.course_changed()

    def course_changed(self) -> None:
        delay_s = self.kernel.between(0.003, self.world.settings.apply_s)
        if self.world.now_s < self.slow_until_s:
            delay_s += self.slow_until_s - self.world.now_s
        self.after(delay_s, self._apply)

    def slow(self, for_s: float) -> None:
        self.slow_until_s = self.world.now_s + for_s

    def restart(self) -> None:
        """Its node goes; its router stays. It comes back, and has applied nothing yet."""
        if not self.up:
            return
        self.die()
        self.world.plane.gateways.pop(self.name, None)
        self.world.changed()
        self.kernel.after(self.kernel.between(0.5, 4.0), self.start)

    def send(self, requests: int) -> None:
        """So many requests, by the weights, each to replicas that have the version."""
        if self.routes is None:
            return
        for arm in self.routes.arms:
            share = requests * arm.weight // WEIGHT_TOTAL
            ready = [one for one in self.world.replicas.values() if one.ready(arm.version)]
            if not ready:
                self.world.lost += share
                continue
            for replica in ready:
                replica.serve(arm.version, max(1, share // len(ready)))

    def _apply(self) -> None:
        course = self.world.plane.course
        if course is not None and (self.routes is None or course.number > self.routes.number):
            self.routes = course
            self.after(self.kernel.between(0.001, 0.02), self._say)

    def _say(self) -> None:
        applied = {NAME: self.routes.number} if self.routes is not None and self.up else {}
        self.world.plane.gateways[self.name] = Gateway(self.name, "here", "x:1", applied)
        self.world.changed()
