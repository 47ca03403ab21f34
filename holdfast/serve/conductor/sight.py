"""What the coordination plane says of services, kept fresh by watches: one snapshot to decide upon.

Watches only wake. A wake marks what to read again, and carries no news. The courses are exact:
nobody but the leader writes them, so after one `read` within the term they are what this leader
wrote last; after a write in doubt they are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from holdfast.control import codec
from holdfast.control.facts import Failure
from holdfast.control.filing import JOBS, job_path, state_path
from holdfast.coordination import Doubts, Facts, Session, stamps
from holdfast.coordination.waits import Wake
from holdfast.models.records import MODELS, Alias, Version, alias_path, model_path, version_path
from holdfast.serve.conduct import Desired
from holdfast.serve.records import (
    GATEWAYS,
    SERVICES,
    Course,
    Gateway,
    Replica,
    Service,
    course_path,
    job_name,
    member_of,
    replica_path,
    replicas_path,
    service_path,
)
from holdfast.wire import logs
from holdfast.wire.documents import from_bytes
from holdfast.wire.errors import Corrupt, HoldfastError

_log = logs.get(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen:
    """One service. `course_version`: of the course's node, -1 if there is none. `job_replicas`:
    what its job is told, None without a job that runs. `job_version`: of what is known of it."""

    desired: Desired
    course: Course | None = None
    course_version: int = -1
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    job_replicas: int | None = None
    failures: tuple[Failure, ...] = ()
    job_version: int = -1


class Sight:
    """One term's view of all services. For one thread; `wake` is called on others."""

    def __init__(self, session: Session, wake: Wake) -> None:
        self._facts = Facts(session)
        self._doubts = Doubts(self._facts, wake)
        self._unreadable: dict[str, str] = {}
        self.services: dict[str, Seen] = {}
        self.gateways: dict[str, Gateway] = {}

    # --- reading ----------------------------------------------------------------------------

    def read(self) -> None:
        """Everything anew."""
        self.services.clear()
        self.gateways.clear()
        self._doubts.begin((SERVICES, GATEWAYS))
        self.refresh()

    def refresh(self) -> set[str]:
        """Read what watches have told of; the services that may have changed."""
        dirty = self._doubts.take()
        touched: set[str] = set()
        left = set(dirty)
        try:
            # Parents first: a service is known before its parts are.
            for path in sorted(dirty, key=lambda path: (path.count("/"), path)):
                touched |= self._reread(path)
                left.discard(path)
        except BaseException:
            self._doubts.add(*left)
            raise
        return touched

    def close(self) -> None:
        """Nobody is woken any more."""
        self._doubts.close()

    def doubt(self, service: str) -> None:
        """Read its course again before anything else is decided about it."""
        self._doubts.mark(course_path(service))

    def wrote(self, service: str, course: Course) -> None:
        """This leader wrote it, in the next version of its node."""
        seen = self.services[service]
        self.services[service] = replace(
            seen, course=course, course_version=seen.course_version + 1
        )

    def rescaled(self, service: str, replicas: int) -> None:
        """Its job was told so; the watch will say the same."""
        self.services[service] = replace(self.services[service], job_replicas=replicas)

    # --- private ----------------------------------------------------------------------------

    def _reread(self, path: str) -> set[str]:
        parts = path.split("/")[2:]  # "", "holdfast", ...
        if path == SERVICES:
            return self._reread_services()
        if path == GATEWAYS:
            return self._reread_gateways()
        if path.startswith(f"{GATEWAYS}/"):
            return self._reread_gateway(parts[1])
        if path.startswith(f"{MODELS}/"):
            mine = [n for n, s in self.services.items() if s.desired.service.model == parts[1]]
            return self._each(mine, self._reread_target)
        if path.startswith(f"{JOBS}/"):
            mine = [name for name in self.services if job_name(name) == parts[1]]
            return self._each(mine, self._reread_job)
        name = parts[1]
        if name not in self.services and len(parts) > 2:
            return set()
        reader: Callable[[str], None] = self._reread_service
        if path == course_path(name):
            reader = self._reread_course
        elif path == replicas_path(name):
            reader = self._reread_replicas
        elif len(parts) == 4:
            reader = partial(self._reread_replica, worker=parts[3])
        return self._each([name], reader)

    def _each(self, names: list[str], read: Callable[[str], None]) -> set[str]:
        """Read each; one that cannot be understood does not keep the others from theirs."""
        for name in names:
            try:
                read(name)
            except Corrupt as error:
                self._unread(name, error)
                self.services.pop(name, None)
        return set(names)

    def _unread(self, name: str, error: HoldfastError) -> None:
        if self._unreadable.get(name) != str(error):
            self._unreadable[name] = str(error)
            _log.error("it cannot be read, and is left as it is", name=name, error=str(error))

    def _reread_services(self) -> set[str]:
        names = self._facts.names(SERVICES, self._doubts.watch(SERVICES), fresh=True)
        for gone in set(self.services) - set(names):
            del self.services[gone]
            self._doubts.forget_below(service_path(gone))
            self._doubts.forget(job_path(job_name(gone)), state_path(job_name(gone)))
        new = [name for name in names if name not in self.services]
        return self._each(new, self._reread_service)

    def _reread_service(self, name: str) -> None:
        path = service_path(name)
        fact = self._facts.read(path, self._doubts.watch(path), fresh=True)
        if fact is None or not fact.data:
            self.services.pop(name, None)  # removed, or only parts of it are left
            return
        service = from_bytes(path, Service, fact.data)
        known = self.services.get(name)
        if known is not None:
            self.services[name] = replace(known, desired=replace(known.desired, service=service))
            if _versions_named(service) == _versions_named(known.desired.service):
                return
        else:
            self.services[name] = Seen(Desired(service, None))
            self._reread_course(name)
            self._reread_replicas(name)
            self._reread_job(name)
        self._reread_target(name)

    def _reread_course(self, name: str) -> None:
        path = course_path(name)
        fact = self._facts.read(path, fresh=True)
        course = from_bytes(path, Course, fact.data) if fact is not None else None
        version = fact.version if fact is not None else -1
        self.services[name] = replace(self.services[name], course=course, course_version=version)

    def _reread_target(self, name: str) -> None:
        """What the target names now, and which versions must not be served."""
        seen = self.services[name]
        service = seen.desired.service
        # The model's own node changes with each of its aliases and versions.
        self._facts.read(
            model_path(service.model), self._doubts.watch(model_path(service.model)), fresh=True
        )
        version, trouble = self._resolved(service)
        course = seen.course
        held = set(course.hold) if course is not None else set()
        named = held | {*service.split, service.pinned, version} - {None}
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
        desired = Desired(service, version, trouble, unusable)
        self.services[name] = replace(seen, desired=desired)

    def _resolved(self, service: Service) -> tuple[int | None, str]:
        if service.target.isdecimal():
            return int(service.target), ""
        path = alias_path(service.model, service.target)
        fact = self._facts.read(path)
        if fact is None:
            return None, f"model {service.model} has no alias {service.target}"
        return from_bytes(path, Alias, fact.data).version, ""

    def _reread_job(self, name: str) -> None:
        """How many replicas its job is told to have, and which ended by their own fault."""
        job = job_name(name)
        path, state = job_path(job), state_path(job)
        fact = self._facts.read(path, self._doubts.watch(path))
        ended = self._facts.read(state, self._doubts.watch(state)) if fact is not None else None
        replicas: int | None = None
        failures: tuple[Failure, ...] = ()
        if fact is not None and ended is not None:
            wish = codec.wish_from(path, stamps.decoded(path, fact.data).value)
            read = codec.state_from(state, ended.data)
            failures = read.failures
            if not wish.intent.stops and not read.status.phase.final:
                most = wish.spec.workers_max
                replicas = most if wish.workers_wanted is None else wish.workers_wanted
        version = ended.version if ended is not None else -1
        self.services[name] = replace(
            self.services[name], job_replicas=replicas, failures=failures, job_version=version
        )

    def _reread_replicas(self, name: str) -> None:
        path = replicas_path(name)
        workers = self._facts.names(path, self._doubts.watch(path), fresh=True)
        known = self.services[name].replicas
        for gone in known.keys() - {int(worker) for worker in workers if worker.isdecimal()}:
            self._gone(name, gone)
        for worker in workers:
            if worker.isdecimal() and int(worker) not in known:
                self._reread_replica(name, worker)

    def _reread_replica(self, name: str, worker: str) -> None:
        path = replica_path(name, int(worker))
        fact = self._facts.read_all([path], {path: self._doubts.watch(path)}).get(path)
        if fact is None:
            self._gone(name, int(worker))
            return
        try:
            replica = member_of(path, Replica, fact.data)
        except Corrupt as error:  # of one replica: it counts as not there
            self._unread(path, error)
            self._gone(name, int(worker))
            return
        seen = self.services[name]
        self.services[name] = replace(seen, replicas={**seen.replicas, replica.worker: replica})

    def _gone(self, name: str, worker: int) -> None:
        self._doubts.forget(replica_path(name, worker))
        seen = self.services[name]
        left = {each: replica for each, replica in seen.replicas.items() if each != worker}
        self.services[name] = replace(seen, replicas=left)

    def _reread_gateways(self) -> set[str]:
        names = self._facts.names(GATEWAYS, self._doubts.watch(GATEWAYS), fresh=True)
        for gone in set(self.gateways) - set(names):
            del self.gateways[gone]
            self._doubts.forget(f"{GATEWAYS}/{gone}")
        for name in names:
            if name not in self.gateways:
                self._reread_gateway(name)
        return set(self.services)

    def _reread_gateway(self, name: str) -> set[str]:
        path = f"{GATEWAYS}/{name}"
        fact = self._facts.read_all([path], {path: self._doubts.watch(path)}).get(path)
        if fact is None:
            self.gateways.pop(name, None)
        else:
            try:
                self.gateways[name] = member_of(path, Gateway, fact.data)
            except Corrupt as error:
                # It may send anywhere: as one that has applied nothing it keeps all versions held.
                self._unread(path, error)
                self.gateways[name] = Gateway(name, "", "")
        return set(self.services)


def _versions_named(service: Service) -> tuple[object, ...]:
    return service.model, service.target, service.pinned, tuple(service.split.items())
