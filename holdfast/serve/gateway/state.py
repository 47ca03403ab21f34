"""What a gateway knows, as values. `resources` makes Envoy's configuration of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from holdfast.serve.records import Course, Load, Loaded, Replica, Service


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a certificate chain and its key; Envoy reads them again when they are replaced."""

    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class Front:
    """Where and how a gateway listens. It does not change while its Envoy runs.

    `regions`: the other regions, the nearest first; one that is not named comes after them.
    """

    host: str
    port: int
    region: str = ""
    regions: tuple[str, ...] = ()
    tls: Tls | None = None
    access_log: bool = True
    release: str = ""  # of Holdfast

    @property
    def address(self) -> str:
        """Where clients connect, as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.tls is None else 'https'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Seen:
    """A replica. `lost_s`: since when its registration is gone (None: it is there); its process
    may be well, and its own health says whether it is."""

    replica: Replica
    lost_s: float | None = None

    @property
    def address(self) -> tuple[str, int]:
        return self.replica.host, self.replica.http_port

    def ready(self, version: int) -> bool:
        loaded = self.replica.versions.get(version)
        return loaded is not None and loaded.state is Load.READY

    @property
    def draining(self) -> bool:
        return self.replica.draining


@dataclass(frozen=True, slots=True)
class Known:
    """A service with its course and its replicas. `lost_s`: since when its node is gone."""

    service: Service
    course: Course | None = None
    replicas: tuple[Seen, ...] = ()
    lost_s: float | None = None

    @property
    def name(self) -> str:
        return self.service.name

    def capacity(self, version: int) -> int:
        """How many replicas can take requests for that version."""
        return sum(one.ready(version) and not one.draining for one in self.replicas)

    def versions(self) -> tuple[int, ...]:
        """Every version that somebody may be asked for: routed to, or loaded somewhere. One that
        nobody has yet comes when somebody has it: an empty cluster would be warm too soon."""
        found: set[int] = set()
        if self.course is not None:
            found.update(arm.version for arm in self.course.arms)
        for one in self.replicas:
            found.update(version for version in one.replica.versions if one.ready(version))
        return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class State:
    """All that a gateway knows. `stale_s`: so many seconds old; None: it is the present."""

    front: Front
    services: tuple[Known, ...] = ()
    stale_s: int | None = None


def pressing(state: State) -> State:
    """The state without what no request waits for: which replicas have versions that no arm names,
    and what they are loading. In a rollout each replica says such things several times."""
    return replace(state, services=tuple(_pressing(known) for known in state.services))


def _pressing(known: Known) -> Known:
    arms = known.course.arms if known.course is not None else ()

    def reduced(one: Seen) -> Seen:
        ready = {arm.version: Loaded(Load.READY) for arm in arms if one.ready(arm.version)}
        return replace(one, replica=replace(one.replica, versions=ready, course=0))

    return replace(known, replicas=tuple(reduced(one) for one in known.replicas))


def by_name(services: Iterable[Known]) -> dict[str, Known]:
    return {one.name: one for one in services}
