"""Looks at a service from outside, all the time: its replicas, its plan, its gateways."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Final

from holdfast.serve.records import Load, Replica, RolloutPlan, RolloutStage
from holdfast.serve.services import Services
from holdfast.wire.errors import Missing, RetryError
from tests.proofs.chaos.histories import AppliedSeen, Lost, PlanSeen
from tests.proofs.chaos.processes import HostProcesses
from tests.proofs.serving.cluster import SERVICE

LOOK_S: Final = 0.2


class Onlooker:
    """A thread of its own. What it last saw: `ready`, `plan`; what it ever saw: the lists."""

    def __init__(self, services: Services, processes: HostProcesses) -> None:
        self._services = services
        self._processes = processes
        self.plans: list[PlanSeen] = []
        self.applied: list[AppliedSeen] = []
        self.lost: list[Lost] = []  # when the plane did not know of a gateway
        self._taken: dict[str, int] = {}  # by each gateway that the plane knows of
        self._missed_s: dict[str, float] = {}
        self.plan: RolloutPlan | None = None
        self.ready: dict[int, Replica] = {}
        self.trouble: BaseException | None = None
        self._listed: list[list[object]] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onlooker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            while not self._closed.wait(LOOK_S):
                for look in (self._look_at_replicas, self._look_at_plan, self._look_at_gateways):
                    self._guarded(look)
        except BaseException as error:
            self.trouble = error
            raise

    def _guarded(self, look: Callable[[], None]) -> None:
        try:
            look()
        except (RetryError, Missing):
            self._closed.wait(LOOK_S)  # the plane is away, and what was seen last stays

    def _look_at_replicas(self) -> None:
        found = self._services.replicas(SERVICE)
        self.ready = {
            worker: one
            for worker, one in found.items()
            if any(loaded.state is Load.READY for loaded in one.versions.values())
        }
        # One whose session was lost is looked at as long as its process lives.
        living = {worker for _, worker in self._processes.replicas()}
        listed = {one[0]: one for one in self._listed if one[0] in living}
        listed |= {
            worker: [worker, one.host, one.http_port]
            for worker, one in found.items()
            if worker in living
        }
        now = sorted(listed.values(), key=str)
        if now != self._listed:
            self._listed = now
            draft = self._processes.where.with_suffix(".tmp")
            draft.write_text(json.dumps(now))
            draft.replace(self._processes.where)

    def _look_at_plan(self) -> None:
        plan = self._services.plan(SERVICE)
        if plan is None or (self.plan is not None and plan.number == self.plan.number):
            return
        self.plan = plan
        versions = tuple(sorted({variant.version for variant in plan.variants if variant.weight}))
        self.plans.append(PlanSeen(time.time(), plan.number, versions))

    def _look_at_gateways(self) -> None:
        found, now_s = self._services.gateways(), time.time()
        taken = {name: one.applied.get(SERVICE, 0) for name, one in found.items()}
        for name, number in taken.items():
            if number > max((one.number for one in self.applied if one.gateway == name), default=0):
                self.applied.append(AppliedSeen(now_s, number, name))
        # One that is back has taken nothing yet: it is lost until it has.
        for name in self._processes.cast.gateways:
            if taken.get(name):
                self._missed_s.pop(name, None)
            else:
                since_s = self._missed_s.setdefault(name, now_s - LOOK_S)
                self.lost.append(Lost(name, since_s, now_s))
        self._taken = taken

    def settled(self, replicas: int) -> bool:
        """One version alone is served, by every gateway, and all replicas have it."""
        plan = self.plan
        if plan is None or plan.stage is not RolloutStage.STEADY or plan.stable is None:
            return False
        can = [
            one
            for one in self.ready.values()
            if plan.stable in one.versions and one.versions[plan.stable].state is Load.READY
        ]
        taken = [self._taken.get(name, 0) for name in self._processes.cast.gateways]
        return len(can) == replicas and min(taken) >= plan.number
