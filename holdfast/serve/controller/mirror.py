"""What the coordination plane says of services, kept fresh by watches: one snapshot to decide upon.

Watches only wake. A wake marks what to read again, and carries no news. The plans are exact:
nobody but the leader writes them, so after one `read` within the term they are what this leader
wrote last; after a write in mark_dirty they are read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from holdfast.control.decide.facts import Failure
from holdfast.control.store import codec
from holdfast.control.store.layout import job_path
from holdfast.coordination import Fact, Facts, Mirror, Mirrored, Session, single, stamps
from holdfast.coordination.waits import Wake
from holdfast.models.records import Alias, Version, alias_path, model_path, version_path
from holdfast.serve.records import (
    GATEWAYS,
    Gateway,
    Replica,
    RolloutPlan,
    ServiceSpec,
    job_name,
    member_of,
    plan_path,
    replicas_path,
    service_path,
)
from holdfast.serve.rollout.facts import DesiredService
from holdfast.system import logs
from holdfast.wire.documents import from_bytes
from holdfast.wire.errors import Corrupt
from holdfast.wire.names import PLAN_NAME

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class MirroredService:
    """One service. `plan_version`: of the plan's node, -1 if there is none. `job_replicas`:
    what its job is told, None without a job that runs. `job_version`: of what is known of it."""

    desired: DesiredService
    plan: RolloutPlan | None = None
    plan_version: int = -1
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    job_replicas: int | None = None
    failures: tuple[Failure, ...] = ()
    job_version: int = -1


class _ServiceNodes(NamedTuple):
    service: ServiceSpec
    plan: RolloutPlan | None
    plan_version: int


class _JobNodes(NamedTuple):
    replicas: int | None = None
    failures: tuple[Failure, ...] = ()
    version: int = -1


class ServicesMirror:
    """One term's view of all services. For one thread; `wake` is called on others."""

    def __init__(self, session: Session, wake: Wake) -> None:
        self._facts = Facts(session)
        self._services = Mirrored(service_path("*"), _service_of, parts=(PLAN_NAME,))
        self._replicas = Mirrored(f"{replicas_path('*')}/*", single(_replica_of))
        self._gateways = Mirrored(
            f"{GATEWAYS}/*", single(lambda path, data: member_of(path, Gateway, data))
        )
        # The model's own node changes with each of its aliases and versions.
        self._models = Mirrored(None, lambda path, found: found[path].version)
        self._jobs = Mirrored(None, _job_of, watched=("state",))
        every = (self._services, self._replicas, self._gateways, self._models, self._jobs)
        self._mirror = Mirror(session, *every, wake=wake)
        self._changed: set[str] = set()
        self._targets: dict[str, DesiredService] = {}
        self._unreadable: dict[str, str] = {}
        self.services: dict[str, MirroredService] = {}
        self.gateways: dict[str, Gateway] = {}

    # --- reading ----------------------------------------------------------------------------

    def read(self) -> None:
        """Everything anew."""
        self._targets.clear()
        self._mirror.invalidate()
        self.refresh()

    def refresh(self) -> None:
        """Read what watches have told of."""
        held = self._services.values
        # What is followed below may be read together with news of the services themselves.
        while changed := self._mirror.refresh():
            self._changed |= changed
            self._mirror.follow(self._models, {model_path(s.service.model) for s in held.values()})
            self._mirror.follow(self._jobs, {job_path(job_name(_name(path))) for path in held})
        if not self._changed:
            return
        known = {_name(path): one for path, one in held.items()}
        for name in list(self._targets):
            if name not in known or model_path(known[name].service.model) in self._changed:
                del self._targets[name]
        replicas: dict[str, dict[int, Replica]] = {}
        for path, replica in self._replicas.values.items():
            replicas.setdefault(path.rpartition("/")[0], {})[replica.worker] = replica
        services = {
            name: self._seen(name, one, replicas.get(replicas_path(name), {}))
            for name, one in known.items()
        }
        self.services = {name: seen for name, seen in services.items() if seen is not None}
        self.gateways = {_name(path): one for path, one in self._gateways.values.items()}
        for name in map(_name, self._gateways.unreadable):
            # It may send anywhere: as one that has applied nothing it keeps all versions held.
            self.gateways[name] = Gateway(name, "", "")
        self._changed.clear()

    def close(self) -> None:
        """Nobody is woken any more."""
        self._mirror.close()

    def mark_dirty(self, service: str) -> None:
        """Read its plan again before anything else is decided about it."""
        self._mirror.invalidate(service_path(service))
        self._mirror.wake()

    def wrote(self, service: str, plan: RolloutPlan) -> None:
        """This leader wrote it, in the next version of its node."""
        seen, path = self.services[service], service_path(service)
        version = seen.plan_version + 1
        held = self._services.values[path]._replace(plan=plan, plan_version=version)
        self._mirror.put(self._services, path, held)
        self.services[service] = replace(seen, plan=plan, plan_version=version)

    def rescaled(self, service: str, replicas: int) -> None:
        """Its job was told so; the watch will say the same."""
        path = job_path(job_name(service))
        if path in self._jobs.values:
            self._mirror.put(self._jobs, path, self._jobs.values[path]._replace(replicas=replicas))
        self.services[service] = replace(self.services[service], job_replicas=replicas)

    # --- private ----------------------------------------------------------------------------

    def _seen(
        self, name: str, held: _ServiceNodes, replicas: Mapping[int, Replica]
    ) -> MirroredService | None:
        """None: a part of it cannot be understood. That does not keep the others from theirs."""
        path = job_path(job_name(name))
        try:
            if path in self._jobs.unreadable:
                raise self._jobs.unreadable[path]
            desired = self._targets.get(name)
            if desired is None or _versions_named(desired.service) != _versions_named(held.service):
                desired = self._resolved(held)
            desired = self._targets[name] = replace(desired, service=held.service)
        except Corrupt as error:
            if self._unreadable.get(name) != str(error):
                self._unreadable[name] = str(error)
                _log.error("it cannot be read, and is left as it is", name=name, error=str(error))
            return None
        job = self._jobs.values.get(path, _JobNodes())
        return MirroredService(desired, held.plan, held.plan_version, replicas, *job)

    def _resolved(self, held: _ServiceNodes) -> DesiredService:
        """What the target names now, and which versions must not be served."""
        service, plan = held.service, held.plan
        version, trouble = self._version_of(service)
        named = {*service.split, service.pinned, version} - {None}
        named |= set(plan.hold) if plan is not None else set()
        paths = {version_path(service.model, each): each for each in named if each is not None}
        found = self._facts.read_all(list(paths))
        unusable = {}
        for path, number in paths.items():
            if path not in found:
                unusable[number] = f"there is no version {number} of {service.model}"
                continue
            retired = from_bytes(path, Version, found[path].data).retired
            if retired:
                unusable[number] = f"it is retired: {retired}"
        return DesiredService(service, version, trouble, unusable)

    def _version_of(self, service: ServiceSpec) -> tuple[int | None, str]:
        if service.target.isdecimal():
            return int(service.target), ""
        path = alias_path(service.model, service.target)
        fact = self._facts.read(path)
        if fact is None:
            return None, f"model {service.model} has no alias {service.target}"
        return from_bytes(path, Alias, fact.data).version, ""


def _service_of(path: str, found: Mapping[str, Fact]) -> _ServiceNodes | None:
    if not found[path].data:
        return None  # only parts of it are left
    service = from_bytes(path, ServiceSpec, found[path].data)
    below = plan_path(_name(path))
    if below not in found:
        return _ServiceNodes(service, None, -1)
    return _ServiceNodes(
        service, from_bytes(below, RolloutPlan, found[below].data), found[below].version
    )


def _job_of(path: str, found: Mapping[str, Fact]) -> _JobNodes:
    """How many replicas its job is told to have, and which ended by their own fault."""
    state = f"{path}/state"
    if state not in found:
        return _JobNodes()
    desired = codec.desired_spec_from(path, stamps.decoded(path, found[path].data).value)
    read = codec.state_from(state, found[state].data)
    replicas: int | None = None
    if not desired.intent.stops and not read.status.phase.final:
        most = desired.spec.workers_max
        replicas = most if desired.workers_wanted is None else desired.workers_wanted
    return _JobNodes(replicas, read.failures, found[state].version)


def _replica_of(path: str, data: bytes) -> Replica | None:
    return member_of(path, Replica, data) if _name(path).isdecimal() else None


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _versions_named(service: ServiceSpec) -> tuple[object, ...]:
    return service.model, service.target, service.pinned, tuple(service.split.items())
