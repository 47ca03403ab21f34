"""A simulated gateway's process around the real decisions: it reads late, works out with `kept` and
`resources` what Envoy shall have, and hands it over by `steps`. Envoy outlives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.serve.gateway import state
from holdfast.serve.gateway.applying import AwaitSettled, AwaitTaken, AwaitWarm, Step, Write
from holdfast.serve.gateway.state import Front, GatewayState, KnownService, PlaneService
from holdfast.serve.records import Gateway
from holdfast.wire.limits import ENVOY_SETTLE_S, LOST_LOOK_S, STALE_AFTER_S, STALE_STEP_S
from simulation.kernel import SimulatedProcess
from simulation.serving.envoy import Envoy
from simulation.serving.plane import GATEWAY, PLAN, REPLICA, SERVICE, PlaneMirror
from simulation.serving.settings import NAME

if TYPE_CHECKING:
    from simulation.serving.world import World

TELL_S: Final = (0.001, 0.02)
AGAIN_S: Final = (0.5, 3.0)


class SimulatedGateway(SimulatedProcess):
    """One gateway. What it knew last is on its disk, and its Envoy goes on without it."""

    def __init__(self, world: World, name: str, front: Front) -> None:
        super().__init__(world.kernel, name)
        self.world = world
        self.front = front
        self.envoy = Envoy(world, f"{name}/envoy", lambda: self.arrive(self._go_on))
        kinds = frozenset({SERVICE, PLAN, REPLICA})
        self.mirror = PlaneMirror(world, self, kinds, self._on_news)
        self.services: tuple[KnownService, ...] = ()
        self.remembered: tuple[KnownService, ...] = ()  # on disk
        self.ready_since_s: dict[tuple[int, int], float] = {}  # worker, version: in use since
        self.applied: GatewayState | None = None
        self.told: dict[str, int] = {}
        self.registered = False
        self.astray = False  # nobody waited for it: what it sends to may be gone
        self._applying: GatewayState | None = None
        self._steps: list[Step] = []
        self._settles_s: float | None = None  # until then the step waits that comes next
        self._present_s = 0.0
        self._wait_until_s = 0.0
        self._timer_s = 0.0
        self._tells = False
        self._has_news = False  # there is something to look at

    def start(self) -> None:
        self.begin()
        self.applied = self._applying = None
        self._steps = []
        self._tells, self._timer_s = False, 0.0
        self.told, self.services = {}, self.remembered
        if self.envoy.up:
            self._wait_until_s = self.kernel.now_s + STALE_AFTER_S
        else:
            self._revive()
        self.mirror.begin()
        self._look_again(STALE_AFTER_S)

    # --- faults -----------------------------------------------------------------------------------

    def restart(self) -> None:
        """The process is killed; its node stays for its session's time, or until it is back."""
        if not self.up:
            return
        self.tell("dies")
        self.die()
        self._expire_later(self.life)
        self.kernel.after(self.kernel.between(*AGAIN_S), self.start)

    def pause(self, for_s: float) -> None:
        if not self.up or self.stopped:
            return
        self.tell("is stopped", for_s)
        life = self.life
        self.stop()
        self._expire_later(life)
        self.kernel.after(for_s, lambda: self._goes_on(life))

    def expired(self) -> None:
        """Its session is lost; it joins again."""
        if self.registered and not self.stopped and self.up:
            self._unregister()
            self.after(self.kernel.between(0.1, 1.0), self._say)

    def envoy_crashed(self) -> None:
        if not self.envoy.up:
            return
        self.tell("envoy dies")
        self.envoy.crash()
        self.arrive(self._revive)

    # --- the loop ---------------------------------------------------------------------------------

    def _on_news(self) -> None:
        self._has_news = True
        self._turn()

    def _turn(self) -> None:
        if self._applying is not None or not self.envoy.answering:
            self._has_news = True
            return  # it looks when that is done, or when Envoy is there again
        self._has_news = False
        now_s, mirror = self.kernel.now_s, self.mirror
        # One that is deaf does not notice: its session lives, and nothing seems to change.
        present = mirror.known and now_s >= self.world.plane.away_until_s
        if present and mirror.desired is not None:
            replicas = {str(worker): replica for worker, replica in mirror.replicas.items()}
            found = {NAME: PlaneService(mirror.desired.service, mirror.plan, replicas)}
            healthy = self.envoy.healthy() if state.anything_lost(self.services) else None
            before = self.services
            self.services = state.kept(before, found, now_s, healthy)
            self.world.checks.known_now(self, before)
            self._present_s = now_s
        elif now_s < self._wait_until_s:
            return
        wanted = self._state()
        if wanted != self.applied:
            self._apply(wanted)
        if state.anything_lost(self.services):
            self._look_again(LOST_LOOK_S)
        elif not present:
            self._look_again(STALE_STEP_S / 2)

    def _look_again(self, after_s: float) -> None:
        due_s = self.kernel.now_s + after_s
        if not self.kernel.now_s < self._timer_s <= due_s:
            self._timer_s = due_s
            self.after(after_s, self._timed)

    def _timed(self) -> None:
        if self.kernel.now_s >= self._timer_s:
            self._turn()

    def _state(self) -> GatewayState:
        age_s = self.kernel.now_s - self._present_s
        if age_s < STALE_AFTER_S:
            return GatewayState(self.front, self.services)
        return GatewayState(self.front, self.services, int(age_s // STALE_STEP_S * STALE_STEP_S))

    def _apply(self, state: GatewayState) -> None:
        self._applying, self._settles_s = state, None
        pure = self.world.pure
        files = pure.resources(state, self.world.checks.resources_made)
        self._steps = list(pure.steps(self.envoy.files, files))
        self._go_on()

    def _go_on(self) -> None:
        """The next steps, until one has to wait for Envoy."""
        if not self.envoy.answering:
            return
        if self._applying is None:
            if self.applied is None:
                self._turn()
            return
        while self._steps:
            step = self._steps[0]
            if isinstance(step, AwaitSettled):
                if not self._settled(step):
                    return
            elif isinstance(step, AwaitWarm):
                if not self.envoy.warm(step.clusters):
                    return
            elif isinstance(step, AwaitTaken):
                if not self.envoy.taken(step.names):
                    return
            elif isinstance(step, Write):
                self.envoy.write(step.name, step.content)
            self._steps.pop(0)
        self._applied(self._applying)
        self._say_soon()
        if self._has_news:
            self._turn()

    def _settled(self, step: AwaitSettled) -> bool:
        """Whether Envoy has taken up the last change of these, or has had its time for it."""
        now_s = self.kernel.now_s
        if self._settles_s is None and not self.envoy.settled(step.clusters):
            self._settles_s = now_s + ENVOY_SETTLE_S
            self.after(ENVOY_SETTLE_S, self._go_on)
        if self._settles_s is not None:
            if now_s < self._settles_s and not self.envoy.settled(step.clusters):
                return False
            self._settles_s = None
        return True

    def _applied(self, state: GatewayState) -> None:
        self.applied, self._applying, self.remembered = state, None, state.services
        before, now_s = self.ready_since_s, self.kernel.now_s
        self.ready_since_s = {}
        for known in state.services:
            if known.plan is not None:
                self.told = {NAME: known.plan.number}
            for one in known.replicas:
                for version in one.replica.versions:
                    if one.ready(version) and not one.draining:
                        key = (one.replica.worker, version)
                        self.ready_since_s[key] = before.get(key, now_s)

    def _revive(self) -> None:
        """Another Envoy, with what is known now."""
        self._applying, self._steps, self.applied = None, [], None
        state = self._state()
        files = self.world.pure.resources(state, self.world.checks.resources_made)
        self.envoy.files = dict(files)
        self.envoy.start()

    # --- being seen -------------------------------------------------------------------------------

    def _say_soon(self) -> None:
        if not self._tells:
            self._tells = True
            self.after(self.kernel.between(*TELL_S), self._say)

    def _say(self) -> None:
        mirror, plane = self.mirror, self.world.plane
        if not mirror.reaches:
            until_s = max(mirror.mute_until_s, plane.away_until_s)
            self.after(until_s - self.kernel.now_s + 0.01, self._say)
            return
        self._tells = False
        if not self.told:
            return
        shown = Gateway(self.name, self.front.region, "http://gateway", dict(self.told))
        if plane.gateways.get(self.name) == shown:
            return
        if self.registered or self.told.get(NAME, 0) >= self._newest():
            self.astray = False
        self.registered = True
        plane.gateways[self.name] = shown
        self.tell("tells", shown.applied)
        self.world.changed((GATEWAY, self.name))

    def _newest(self) -> int:
        plan = self.world.plane.plan
        return plan.number if plan is not None else 0

    def _expire_later(self, life: int) -> None:
        self.kernel.after(self.world.settings.session_s, lambda: self._expire(life))

    def _expire(self, life: int) -> None:
        plane = self.world.plane
        if self.kernel.now_s < plane.away_until_s:
            after_s = plane.away_until_s - self.kernel.now_s
            self.kernel.after(after_s, lambda: self._expire_later(life))
        elif life == self.life and (self.stopped or not self.up):
            self._unregister()

    def _unregister(self) -> None:
        self.registered, self.astray = False, True
        self.tell("is not seen any more")
        if self.world.plane.gateways.pop(self.name, None) is not None:
            self.world.changed((GATEWAY, self.name))

    def _goes_on(self, life: int) -> None:
        if life == self.life and self.stopped:
            self.tell("goes on")
            self.go_on()
            if not self.registered:
                self._say_soon()
