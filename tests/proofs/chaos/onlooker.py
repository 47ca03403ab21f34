"""Looks at a service from outside, all the time: its replicas, its course, its gateway."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Final

from holdfast.serve.records import Course, Load, Replica, Stage
from holdfast.serve.services import Services
from holdfast.wire.errors import Missing, RetryError
from tests.proofs.chaos.histories import AppliedSeen, CourseSeen
from tests.proofs.chaos.town import Town
from tests.proofs.serving.stage import SERVICE

LOOK_S: Final = 0.2


class Onlooker:
    """A thread of its own. What it last saw: `ready`, `course`; what it ever saw: the lists."""

    def __init__(self, services: Services, town: Town) -> None:
        self._services = services
        self._town = town
        self.courses: list[CourseSeen] = []
        self.applied: list[AppliedSeen] = []
        self.course: Course | None = None
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
                for look in (self._look_at_replicas, self._look_at_course, self._look_at_gateway):
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
        living = {worker for _, worker in self._town.replicas()}
        listed = {one[0]: one for one in self._listed if one[0] in living}
        listed |= {
            worker: [worker, one.host, one.http_port]
            for worker, one in found.items()
            if worker in living
        }
        now = sorted(listed.values(), key=str)
        if now != self._listed:
            self._listed = now
            draft = self._town.where.with_suffix(".tmp")
            draft.write_text(json.dumps(now))
            draft.replace(self._town.where)

    def _look_at_course(self) -> None:
        course = self._services.course(SERVICE)
        if course is None or (self.course is not None and course.number == self.course.number):
            return
        self.course = course
        versions = tuple(sorted({arm.version for arm in course.arms if arm.weight}))
        self.courses.append(CourseSeen(time.time(), course.number, versions))

    def _look_at_gateway(self) -> None:
        for one in self._services.gateways().values():
            number = one.applied.get(SERVICE, 0)
            if not self.applied or number > self.applied[-1].number:
                self.applied.append(AppliedSeen(time.time(), number))

    def settled(self, replicas: int) -> bool:
        """One version alone is served, everywhere, and all replicas have it."""
        course = self.course
        if course is None or course.stage is not Stage.STEADY or course.stable is None:
            return False
        can = [
            one
            for one in self.ready.values()
            if course.stable in one.versions and one.versions[course.stable].state is Load.READY
        ]
        taken = self.applied[-1].number if self.applied else 0
        return len(can) == replicas and taken >= course.number
