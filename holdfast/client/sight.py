"""A service as it is now: what is wanted of it, what was decided, who serves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.client import texts
from holdfast.wire.errors import Missing

if TYPE_CHECKING:
    from holdfast.client.opening import Opened
    from holdfast.serve.records import Course, Gateway, Replica, Service


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
        told = f"{self.ready(self.wanted)} of {texts.many(len(self.replicas), 'replica')} ready"
        if self.wanted is not None:
            told += f" with version {self.wanted}"
        if not self.gateways:
            return f"{told}; no gateway yet"
        return f"{told}; {texts.one_line(self.course.reason)}" if self.course else told

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

    services = found.services()
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
        doing = f"{status.phase.value}: {texts.one_line(status.reason)}"
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


def arms_of(course: Course | None) -> str:
    """`3`, or `3 95 %, 4 5 %`."""
    if course is None or not course.arms:
        return "-"
    if len(course.arms) == 1:
        return str(course.arms[0].version)
    return ", ".join(f"{arm.version} {arm.weight / 100:g} %" for arm in course.arms)


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """A service at one moment, in short.

    `target` is what its users asked for, `wanted` the version that this names now, `version` the
    one that serves, `previous` the one that `rollback` goes to. `weights`: the share of each
    version that gets requests, in percent. `ready` of `replicas` replicas have `version`,
    `replicas_wanted` are to be there. `stage`: starting, loading, shifting, steady or
    split; empty: nothing is decided yet. `failed`: why the wanted version was taken back.
    `settled`: it serves what is wanted, behind every gateway. `urls`: of the gateways.
    """

    name: str
    model: str
    target: str
    wanted: int | None
    version: int | None
    previous: int | None
    weights: Mapping[int, float]
    ready: int
    replicas: int
    replicas_wanted: int
    stage: str
    why: str
    failed: str
    settled: bool
    urls: tuple[str, ...]


def status_of(sight: Sight) -> ServiceStatus:
    """The service in short."""
    service, course = sight.service, sight.course
    version = course.stable if course else None
    return ServiceStatus(
        service.name,
        service.model,
        service.target,
        sight.wanted,
        version,
        course.previous if course else None,
        {arm.version: arm.weight / 100 for arm in course.arms} if course else {},
        sight.ready(version),
        len(sight.replicas),
        course.replicas if course else service.replicas_min,
        course.stage.value if course else "",
        course.reason if course and sight.replicas else sight.doing,
        sight.failed(),
        sight.settled(),
        tuple(one.address for _, one in sorted(sight.gateways.items())),
    )
