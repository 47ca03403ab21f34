"""The loop of a gateway: what is known goes into Envoy, and Envoy is kept alive.

An event never carries a decision: it wakes the loop, which looks at all that is known, computes
`resources`, and has Envoy take the difference.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from holdfast.serve.gateway.admin import Breakers
from holdfast.serve.gateway.applying import Applying
from holdfast.serve.gateway.clusters import Json
from holdfast.serve.gateway.envoy import Envoy
from holdfast.serve.gateway.resources import ACCESS_LOG, ServiceResources, parts, resources
from holdfast.serve.gateway.state import (
    Address,
    Front,
    GatewayState,
    KnownService,
    anything_lost,
    kept,
    pressing,
)
from holdfast.serve.gateway.watching import PlaneWatcher
from holdfast.serve.records import Gateway as Facts
from holdfast.serve.records import Replica, RolloutPlan, ServiceSpec
from holdfast.system import disk, logs
from holdfast.system.backoff import Backoff
from holdfast.wire import documents
from holdfast.wire.errors import Corrupt, Full, RetryError, TerminalError, Unavailable
from holdfast.wire.limits import GATEWAY_LOG_BYTES_MAX, LOST_LOOK_S, STALE_AFTER_S, STALE_STEP_S

# How often a gateway asks its Envoy whom it has ejected, and of how many replicas of a service it
# tells that in the plane: a node has a megabyte.
BREAKERS_LOOK_S: Final = 1.0
# The last knowledge is written down again so often, so that its age on disk is true.
MEMORY_S: Final = 15.0
# An Envoy that has not answered there for so long is ended, and another one started.
ENVOY_SILENT_S: Final = 20.0
# What Envoy has is compared with what it should have, this often.
ENVOY_COMPARE_S: Final = 5.0
# Envoy that died is started again at once; one that dies within this of its start, after a pause.
ENVOY_LIFE_S_MIN: Final = 5.0
ENVOY_PAUSE_S: Final = 0.5
ENVOY_PAUSE_S_MAX: Final = 10.0
# A gateway that never knew anything listens after this, whether the plane has answered or not: who
# asks gets an answer of ours, and not none.
FIRST_WORD_S: Final = 20.0
# What no request waits for is told to Envoy so much later, together with what comes meanwhile.
GATEWAY_GATHER_S: Final = 0.1

log = logs.get(__name__)


class GatewayLoop:
    """Runs on one thread; `wake` may be called on any."""

    def __init__(
        self, name: str, front: Front, folder: Path, envoy: Envoy, applying: Applying
    ) -> None:
        self._front = front
        self._folder = folder
        self._envoy = envoy
        self._applying = applying
        self._facts = Facts(name, front.region, front.address)
        self._wakeup = threading.Event()
        self._parts: dict[str, ServiceResources] = {}
        self._applied: GatewayState | None = None
        self._compare_s = 0.0
        self._breakers = Breakers()
        self._breakers_s = 0.0  # not looked at before
        self._started_s = 0.0
        self._deaths = Backoff(ENVOY_PAUSE_S, ENVOY_PAUSE_S_MAX, at_once=True)
        self._silent_s: float | None = None
        self._wait_until_s = 0.0
        self._gather_until_s = 0.0  # 0: nothing is gathered
        self._remembered_s = 0.0
        remembered = recall(folder)
        self._knows_nothing = remembered is None
        self._services: tuple[KnownService, ...] = remembered.services if remembered else ()
        self._present_s = remembered.at_s if remembered else time.time()

    @property
    def address(self) -> str:
        return self._facts.address

    def wake(self) -> None:
        self._wakeup.set()

    def begin(self) -> None:
        """Have an Envoy that answers with what is remembered: adopted, or started. A gateway that
        never knew anything waits for the plane's word first, a little: where others listen at the
        same address, requests come as soon as this one does."""
        if self._envoy.adopt():
            self._applying.adopt()
            # It may know more than we remember: the plane's word is waited for, a little.
            self._wait_until_s = time.monotonic() + STALE_AFTER_S
            self._knows_nothing = False
        elif self._knows_nothing:
            self._envoy.check_free()
            self._wait_until_s = time.monotonic() + FIRST_WORD_S
        else:
            self._envoy.check_free()
            try:
                self._applying.prepare(self._resources(self._state()))
                self._start()
            except Full as error:
                log.warning("Envoy waits for room on the disk", reason=str(error))

    def run(self, watching: PlaneWatcher, stop: threading.Event) -> None:
        """Until it is told to stop (`stop`, then `wake`)."""
        while not stop.is_set():
            try:
                self._turn(watching)
                self._silent_s = None
            except Full as error:
                self._without_room(error, watching)
                stop.wait(ENVOY_PAUSE_S)
            except RetryError as error:
                log.warning("the gateway tries again", reason=str(error))
                self._applied = None
                self._silence(isinstance(error, Unavailable))
                if self._envoy.alive:
                    stop.wait(ENVOY_PAUSE_S)
            except TerminalError as error:
                log.warning("Envoy does not start", reason=str(error))
                stop.wait(ENVOY_PAUSE_S_MAX)
            self._wakeup.wait(self._patience_s())
            self._wakeup.clear()

    # --- private --------------------------------------------------------------------------------

    def _turn(self, watching: PlaneWatcher) -> None:
        now_s = time.time()
        present, found = watching.present, watching.found
        if self._knows_nothing:
            if found is not None:
                self._services = kept(self._services, found, now_s, None)
            elif time.monotonic() < self._wait_until_s:
                return
            self._knows_nothing = False
        if not self._envoy.alive:
            self._revive()
        if present and found is not None:
            self._services = kept(self._services, found, now_s, self._healthy())
            self._present_s = now_s
        elif time.monotonic() < self._wait_until_s:
            return
        state = self._state()
        if state == self._applied:
            self._gather_until_s = 0.0
        elif self._is_due(state):
            self._apply(state, watching)
        if present and now_s > self._remembered_s + MEMORY_S:
            self._remember(state)
        self._chores()
        self._look_at_breakers(watching)

    def _is_due(self, state: GatewayState) -> bool:
        """Whether Envoy is told now. What no request waits for is gathered: each change of a
        cluster or a route costs all threads of Envoy, and the next replica says the same soon."""
        if self._applied is None or pressing(state) != pressing(self._applied):
            return True
        now_s = time.monotonic()
        self._gather_until_s = self._gather_until_s or now_s + GATEWAY_GATHER_S
        return now_s >= self._gather_until_s

    def _apply(self, state: GatewayState, watching: PlaneWatcher) -> None:
        begun_s = time.monotonic()
        self._gather_until_s = 0.0
        self._applying.apply(self._resources(state))
        log.debug("Envoy has taken it", took_ms=round(1000 * (time.monotonic() - begun_s), 1))
        # Remembered, then told: after a crash we come back with what others count on, or newer.
        if self._applied is None or self._applied.services != state.services:
            self._remember(state)
        plans = {one.name: one.plan.number for one in state.services if one.plan is not None}
        self._facts = replace(self._facts, applied=plans, why="")
        watching.show(self._facts)
        self._applied = state

    def _without_room(self, error: Full, watching: PlaneWatcher) -> None:
        """A full disk: all goes on as it is, and it is said why. Whoever waits for us knows."""
        self._applied = None
        if self._facts.why != error.what:
            log.warning("the gateway waits for room on its disk", reason=str(error))
            self._facts = replace(self._facts, why=error.what)
            watching.show(self._facts)

    def _remember(self, state: GatewayState) -> None:
        remember(self._folder, LastKnown(self._present_s, state.services))
        self._remembered_s = time.time()

    def _state(self) -> GatewayState:
        age_s = time.time() - self._present_s
        if age_s < STALE_AFTER_S:
            return GatewayState(self._front, self._services)
        return GatewayState(self._front, self._services, int(age_s // STALE_STEP_S * STALE_STEP_S))

    def _resources(self, state: GatewayState) -> dict[str, Json]:
        self._parts = parts(state, self._parts)
        return resources(state, self._parts)

    def _healthy(self) -> Collection[Address] | None:
        """Asked only for those of whom the plane says nothing any more."""
        if not anything_lost(self._services):
            return None
        return self._envoy.admin.healthy()

    def _patience_s(self) -> float:
        if self._knows_nothing:
            return max(0.0, self._wait_until_s - time.monotonic())
        if self._applied is None:
            return 0.0
        gathers_s = self._gather_until_s - time.monotonic()
        if gathers_s > 0.0:
            return gathers_s
        if self._applied.stale_s is not None:
            return STALE_STEP_S / 2
        return LOST_LOOK_S if anything_lost(self._services) else STALE_STEP_S / 2

    def _revive(self) -> None:
        """At once, if it had lived; after a pause that grows, if it dies again and again."""
        lived_s = time.monotonic() - self._started_s
        if lived_s < ENVOY_LIFE_S_MIN:
            time.sleep(self._deaths.failed())
        else:
            self._deaths.succeeded()
        self._applying.prepare(self._resources(self._state()))
        self._start()
        self._applied = None

    def _silence(self, silent: bool) -> None:
        """An Envoy that lives and does not answer for long is no use to anybody."""
        if not silent:
            self._silent_s = None
            return
        now_s = time.monotonic()
        self._silent_s = now_s if self._silent_s is None else self._silent_s
        if now_s - self._silent_s > ENVOY_SILENT_S:
            log.error("Envoy lives and does not answer; it is ended")
            self._envoy.kill()
            self._silent_s = None

    def _start(self) -> None:
        self._started_s = time.monotonic()
        self._envoy.start()

    def _look_at_breakers(self, watching: PlaneWatcher) -> None:
        """Tell others which replicas get no requests from here, when that has changed."""
        now_s = time.monotonic()
        if now_s < self._breakers_s:
            return
        self._breakers_s = now_s + BREAKERS_LOOK_S
        try:
            hosts = self._envoy.admin.hosts()
        except Unavailable:
            return  # whether it lives is looked at elsewhere; it is asked again
        states = self._breakers.see(hosts, self._services, time.time())
        if states != self._facts.breakers:
            self._facts = replace(self._facts, breakers=states)
            watching.show(self._facts)

    def _chores(self) -> None:
        now_s = time.monotonic()
        if now_s < self._compare_s:
            return
        self._compare_s = now_s + ENVOY_COMPARE_S
        if not self._applying.compare():
            self._compare_s = now_s
        path = self._folder / ACCESS_LOG
        if path.exists() and path.stat().st_size > GATEWAY_LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.1"))
            self._envoy.admin.reopen_logs()


# --- memory ---------------------------------------------------------------------------------------
# The last knowledge, on disk: a gateway that starts while the plane is away serves from it.


_FILE: Final = "knowledge.json"


@dataclass(frozen=True, slots=True)
class LastKnown:
    """What was known, and when that was the present."""

    at_s: float
    services: tuple[KnownService, ...] = ()

    @staticmethod
    def of_older(plain: dict[str, Any]) -> dict[str, Any]:
        return {**plain, "services": [_of_older(one) for one in plain.get("services", ())]}


def _of_older(plain: dict[str, Any]) -> dict[str, Any]:
    known = documents.renamed(plain, course="plan")
    plan, replicas = known.get("plan"), known.get("replicas", ())
    return {
        **known,
        "service": ServiceSpec.of_older(known["service"]),
        "plan": None if plan is None else RolloutPlan.of_older(plan),
        "replicas": [{**one, "replica": Replica.of_older(one["replica"])} for one in replicas],
    }


def remember(folder: Path, memory: LastKnown) -> None:
    """Durably: whoever is told of it afterwards may count on it. `Full`: what was remembered last
    still is."""
    disk.replace_durably(folder / _FILE, documents.to_bytes(memory))


def recall(folder: Path) -> LastKnown | None:
    """What was remembered last; None: nothing, or what this version does not understand."""
    path = folder / _FILE
    try:
        return documents.from_bytes(str(path), LastKnown, path.read_bytes())
    except FileNotFoundError:
        return None
    except Corrupt as error:
        log.warning(
            "the last knowledge cannot be read; the plane's is waited for", reason=str(error)
        )
        return None
