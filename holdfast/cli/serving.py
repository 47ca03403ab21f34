"""What the commands about services share: finding one, waiting for it, saying how it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rich.markup import escape

from holdfast.cli import absence, listing, output, times
from holdfast.cli.opening import Opened, missing
from holdfast.wire.errors import Missing, TerminalError, TimedOut
from holdfast.wire.limits import SERVE_LOOK_S

if TYPE_CHECKING:
    import http.client

    from holdfast.serve.records import Course, Gateway, Replica, Service
    from holdfast.serve.services import Services


def services_of(found: Opened) -> Services:
    from holdfast.serve.services import Services

    return Services(found.session)


def service_in(found: Opened, name: str) -> Service:
    """The service; `Missing` names the nearest one."""
    services = services_of(found)
    try:
        return services.service(name)
    except Missing as error:
        raise missing("service", name, services.services(), "holdfast services") from error


@dataclass(frozen=True, slots=True)
class Sight:
    """A service as it is now. `wanted`: the version that it should serve, as far as it is known;
    `doing`: what its job says, for people."""

    service: Service
    course: Course | None
    replicas: Mapping[int, Replica]
    gateways: Mapping[str, Gateway]
    wanted: int | None
    doing: str

    @property
    def name(self) -> str:
        return self.service.name

    def ready(self, version: int | None) -> int:
        """How many replicas have that version."""
        return sum(
            version in one.versions and one.versions[version].state.value == "ready"
            for one in self.replicas.values()
            if version is not None
        )

    def failed(self) -> str:
        """Why the wanted version is not served, and will not be until users ask anew."""
        if self.course is None or self.wanted is None or self.course.asked < self.service.asked:
            return ""
        return self.course.failed.get(self.wanted, "")

    def settled(self) -> bool:
        """Whether what users want is what every gateway sends requests to."""
        course = self.course
        if course is None or course.asked < self.service.asked or not course.arms:
            return False
        applied = [one.applied.get(self.name, 0) for one in self.gateways.values()]
        if not applied or min(applied) < course.number:
            return False
        if self.service.split:
            return course.stage.value == "split"
        one = len(course.arms) == 1 and course.stage.value == "steady"
        return one and course.arms[0].version == self.wanted

    def progress(self) -> str:
        """What is being waited for, in a line."""
        if not self.replicas:
            return f"no replica yet: {self.doing}"
        told = f"{self.ready(self.wanted)} of {times.many(len(self.replicas), 'replica')} ready"
        if self.wanted is not None:
            told += f" with version {self.wanted}"
        if not self.gateways:
            return f"{told}; no gateway yet"
        return f"{told}; {listing.one_line(self.course.reason)}" if self.course else told

    def outlook(self) -> str:
        """Why its rollout is where it is, and what would let it go on."""
        from holdfast.serve.conduct import Desired, Observed
        from holdfast.serve.outlook import outlook

        trouble = f"{self.service.model} has no {self.service.target}"
        desired = Desired(self.service, self.wanted, trouble)
        return outlook(desired, Observed(self.course, self.replicas, self.gateways))


def look(found: Opened, name: str) -> Sight:
    """All that is known of it now."""
    from holdfast.models.catalogue import Catalogue
    from holdfast.serve.records import job_name

    services = services_of(found)
    service = services.service(name)
    wanted: int | None = service.pinned
    if wanted is None:
        try:
            resolved = Catalogue(found.session).resolve(f"{service.model}@{service.target}")
            wanted = resolved.version.number
        except Missing:
            wanted = None
    try:
        status = found.plane.job(job_name(name)).status
        doing = f"{status.phase.value}: {listing.one_line(status.reason)}"
    except Missing:
        doing = "its job is gone; holdfast serve submits it again"
    return Sight(
        service,
        services.course(name),
        services.replicas(name),
        services.gateways(),
        wanted,
        doing,
    )


def until_noted(found: Opened, name: str, timeout_s: float, show: Callable[[str], None]) -> Sight:
    """Wait until a conductor has seen what was changed, and every gateway sends by its course."""
    deadline_s = time.monotonic() + timeout_s
    waiting = absence.Waiting(found, absence.CONDUCTOR, absence.COORDINATOR)
    while True:
        sight = look(found, name)
        course = sight.course
        if course is not None and course.asked >= sight.service.asked:
            applied = [one.applied.get(name, 0) for one in sight.gateways.values()]
            if min(applied, default=0) >= course.number:
                return sight
        show(waiting.look(sight.progress()))
        if time.monotonic() >= deadline_s:
            raise TimedOut(
                f"the change of {name} is written, and not followed within {times.span(timeout_s)}",
                why=sight.progress(),
                fix=f"it goes on; see: holdfast why {name}",
            )
        time.sleep(SERVE_LOOK_S)


def until_settled(found: Opened, name: str, timeout_s: float, show: Callable[[str], None]) -> Sight:
    """Wait until it serves what is wanted. `TerminalError`: that version has failed; `Unavailable`:
    whoever would do it is not there, and does not come."""
    deadline_s = time.monotonic() + timeout_s
    waiting = absence.Waiting(found, absence.CONDUCTOR, absence.COORDINATOR)
    while True:
        sight = look(found, name)
        if sight.settled():
            return sight
        if why := sight.failed():
            served = sight.course.stable if sight.course else None
            still = f"; version {served} is served" if served is not None else ""
            raise TerminalError(
                f"version {sight.wanted} of {sight.service.model} was taken back{still}",
                why=why,
                fix=f"holdfast why {name}, then mend it and: holdfast rollout {name}",
            )
        if time.monotonic() >= deadline_s:
            raise TimedOut(
                f"{name} does not serve what is wanted within {times.span(timeout_s)}",
                why=sight.progress(),
                fix=f"it goes on; see: holdfast why {name}",
            )
        show(waiting.look(sight.progress()))
        time.sleep(SERVE_LOOK_S)


@contextmanager
def progress(name: str) -> Iterator[Callable[[str], None]]:
    """A line that is written again, on a terminal; nothing elsewhere."""
    with output.err().status(name) as shown:
        yield lambda what: shown.update(escape(f"{name}: {what}"))


def connection_to(url: str, timeout_s: float) -> http.client.HTTPConnection:
    """A connection to a gateway, as it says where it is. Its certificate is not checked: whoever
    uses this knows the address from the coordination plane."""
    import http.client
    import ssl

    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


def arms_of(course: Course | None) -> str:
    """`3`, or `3 95 %, 4 5 %`."""
    if course is None or not course.arms:
        return "-"
    if len(course.arms) == 1:
        return str(course.arms[0].version)
    return ", ".join(f"{arm.version} {arm.weight / 100:g} %" for arm in course.arms)


def done(what: str, next_: str = "") -> None:
    output.out().print(what, markup=False)
    if next_:
        listing.note(f"next: {next_}")
