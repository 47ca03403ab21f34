"""What is waited for of a service: a change that was noted, a version that serves, its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.client import predicting, texts
from holdfast.client.absence import COORDINATOR, ROLLOUT_CONTROLLER, Progress, WaitReporter
from holdfast.client.service_status import (
    ObservedService,
    ServiceStatus,
    observe_service,
    status_of,
)
from holdfast.client.waiting import Poll, deadline_of
from holdfast.wire.errors import TerminalError, TimedOut

if TYPE_CHECKING:
    from holdfast.client.opening import Opened
from typing import Final

# How often they look.
SERVE_LOOK_S: Final = 0.1


def until_noted(
    found: Opened, name: str, timeout_s: float, progress: Progress | None = None
) -> Poll[ObservedService]:
    """A controller has seen what was changed, and every gateway sends by its plan."""

    def noted(observed: ObservedService) -> bool:
        plan = observed.plan
        if plan is None or plan.revision < observed.service.revision:
            return False
        applied = [one.applied.get(name, 0) for one in observed.gateways.values()]
        return min(applied, default=0) >= plan.number

    what = f"the change of {name} is written, and not followed"
    return _until(found, name, noted, what, timeout_s, progress)


def until_settled(
    found: Opened, name: str, timeout_s: float, progress: Progress | None = None
) -> Poll[ObservedService]:
    """It serves what is wanted. `TerminalError`: that version has failed; `Unavailable`: whoever
    would do it is not there, and does not come."""

    def settled(observed: ObservedService) -> bool:
        if observed.settled():
            return True
        if why := observed.failed():
            served = observed.plan.stable if observed.plan else None
            still = f"; version {served} is served" if served is not None else ""
            raise TerminalError(
                f"version {observed.wanted} of {observed.service.model} was taken back{still}",
                why=why,
                fix=f"holdfast why {name}, then mend it and: holdfast rollout {name}",
            )
        return False

    what = f"{name} does not serve what is wanted"
    return _until(found, name, settled, what, timeout_s, progress)


def _until(
    found: Opened,
    name: str,
    ready: Callable[[ObservedService], bool],
    what: str,
    timeout_s: float,
    progress: Progress | None,
) -> Poll[ObservedService]:
    deadline_s = deadline_of(timeout_s)
    waiting = WaitReporter(found, ROLLOUT_CONTROLLER, COORDINATOR, progress=progress)

    def seen() -> ObservedService | None:
        observed = observe_service(found, name)
        if ready(observed):
            return observed
        if time.monotonic() >= deadline_s:
            raise TimedOut(
                f"{what} within {texts.span(timeout_s)}",
                why=observed.progress(),
                fix=f"it goes on; see: holdfast why {name}",
            )
        waiting.report(observed.progress())
        return None

    return Poll(seen, SERVE_LOOK_S)


def until_answered(address: str, name: str, timeout_s: float) -> Poll[bool]:
    """A gateway answers for the service: 200, or 401 where a key is asked for."""
    deadline_s = deadline_of(timeout_s)

    def answered() -> bool | None:
        trouble = predicting.readiness(address, name)
        if not trouble:
            return True
        if time.monotonic() >= deadline_s:
            raise TimedOut(
                f"the gateway at {address} does not answer for {name}",
                why=f"it said {trouble}",
                fix="see its log: holdfast status shows where",
            )
        return None

    return Poll(answered, SERVE_LOOK_S)


def until_stopped(
    found: Opened, name: str, timeout_s: float, progress: Progress | None = None
) -> Poll[bool]:
    """Its replicas have left, and it is forgotten."""
    deadline_s = deadline_of(timeout_s)
    waiting = WaitReporter(found, COORDINATOR, progress=progress)
    services = found.services()

    def stopped() -> bool | None:
        if services.stop(name):
            services.remove(name)
            return True
        waiting.report("its replicas leave")
        if time.monotonic() >= deadline_s:
            raise TimedOut(
                f"replicas of {name} are still there",
                why=observe_service(found, name).doing,
                fix=f"run it again: holdfast unserve {name}",
            )
        return None

    return Poll(stopped, SERVE_LOOK_S)


class ServiceChanges:
    """The service's status, each time that it is another one."""

    every_s = SERVE_LOOK_S

    def __init__(self, found: Opened, name: str) -> None:
        self._found = found
        self._name = name
        self._last: ServiceStatus | None = None

    def poll(self) -> ServiceStatus | None:
        """The status, if it has changed since the last look."""
        status = status_of(observe_service(self._found, self._name))
        if status == self._last:
            return None
        self._last = status
        return status
