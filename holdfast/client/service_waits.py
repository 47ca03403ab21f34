"""What is waited for of a service: a change that was noted, a version that serves, its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.client import predicting, texts
from holdfast.client.absence import CONDUCTOR, COORDINATOR, Progress, Waiting
from holdfast.client.sight import ServiceStatus, Sight, look, status_of
from holdfast.client.waiting import Wait, deadline_of
from holdfast.wire.errors import TerminalError, TimedOut

if TYPE_CHECKING:
    from holdfast.client.opening import Opened
from typing import Final

# How often they look.
SERVE_LOOK_S: Final = 0.1


def until_noted(
    found: Opened, name: str, timeout_s: float, progress: Progress | None = None
) -> Wait[Sight]:
    """A conductor has seen what was changed, and every gateway sends by its course."""

    def noted(sight: Sight) -> bool:
        course = sight.course
        if course is None or course.asked < sight.service.asked:
            return False
        applied = [one.applied.get(name, 0) for one in sight.gateways.values()]
        return min(applied, default=0) >= course.number

    what = f"the change of {name} is written, and not followed"
    return _until(found, name, noted, what, timeout_s, progress)


def until_settled(
    found: Opened, name: str, timeout_s: float, progress: Progress | None = None
) -> Wait[Sight]:
    """It serves what is wanted. `TerminalError`: that version has failed; `Unavailable`: whoever
    would do it is not there, and does not come."""

    def settled(sight: Sight) -> bool:
        if sight.settled():
            return True
        if why := sight.failed():
            served = sight.course.stable if sight.course else None
            still = f"; version {served} is served" if served is not None else ""
            raise TerminalError(
                f"version {sight.wanted} of {sight.service.model} was taken back{still}",
                why=why,
                fix=f"holdfast why {name}, then mend it and: holdfast rollout {name}",
            )
        return False

    what = f"{name} does not serve what is wanted"
    return _until(found, name, settled, what, timeout_s, progress)


def _until(
    found: Opened,
    name: str,
    ready: Callable[[Sight], bool],
    what: str,
    timeout_s: float,
    progress: Progress | None,
) -> Wait[Sight]:
    deadline_s = deadline_of(timeout_s)
    waiting = Waiting(found, CONDUCTOR, COORDINATOR, progress=progress)

    def seen() -> Sight | None:
        sight = look(found, name)
        if ready(sight):
            return sight
        if time.monotonic() >= deadline_s:
            raise TimedOut(
                f"{what} within {texts.span(timeout_s)}",
                why=sight.progress(),
                fix=f"it goes on; see: holdfast why {name}",
            )
        waiting.look(sight.progress())
        return None

    return Wait(seen, SERVE_LOOK_S)


def until_answered(address: str, name: str, timeout_s: float) -> Wait[bool]:
    """A gateway answers for the service: 200, or 401 where a key is asked for."""
    deadline_s = deadline_of(timeout_s)

    def answered() -> bool | None:
        said = predicting.readiness(address, name)
        if not said:
            return True
        if time.monotonic() >= deadline_s:
            raise TimedOut(
                f"the gateway at {address} does not answer for {name}",
                why=f"it said {said}",
                fix="see its log: holdfast status shows where",
            )
        return None

    return Wait(answered, SERVE_LOOK_S)


def until_stopped(
    found: Opened, name: str, timeout_s: float, progress: Progress | None = None
) -> Wait[bool]:
    """Its replicas have left, and it is forgotten."""
    deadline_s = deadline_of(timeout_s)
    waiting = Waiting(found, COORDINATOR, progress=progress)
    services = found.services()

    def stopped() -> bool | None:
        if services.stop(name):
            services.remove(name)
            return True
        waiting.look("its replicas leave")
        if time.monotonic() >= deadline_s:
            raise TimedOut(
                f"replicas of {name} are still there",
                why=look(found, name).doing,
                fix=f"run it again: holdfast unserve {name}",
            )
        return None

    return Wait(stopped, SERVE_LOOK_S)


class ServiceChanges:
    """The service's status, each time that it is another one."""

    every_s = SERVE_LOOK_S

    def __init__(self, found: Opened, name: str) -> None:
        self._found = found
        self._name = name
        self._last: ServiceStatus | None = None

    def look(self) -> ServiceStatus | None:
        """The status, if it has changed since the last look."""
        status = status_of(look(self._found, self._name))
        if status == self._last:
            return None
        self._last = status
        return status
