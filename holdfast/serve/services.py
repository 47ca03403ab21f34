"""What users do with services, as verbs over the coordination plane.

    services = Services(session)
    services.create(ServiceSpec("digits", model="digits", target="prod"))
    services.rollout("digits", "4")
    services.rollback("digits")

Nothing here is fenced: users are not leaders. Each verb is one compare-and-set on the service's
node, together with its words for people (`asked`); two users at once are put in order, and a lost
reply is found out. What comes of it the controller decides (`RolloutPlan`).

The processes of a service are the workers of a job of mode `serve`. `create` submits it, and
`ensure_job` does so again if it has gone. How many workers it has the controller says.
"""

from __future__ import annotations

import hashlib
import heapq
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from holdfast.cluster import topics
from holdfast.control.decide.facts import Intent
from holdfast.control.decide.spec import CheckpointPolicy, JobSpec, Mode, RestartPolicy
from holdfast.control.store.layout import check_name
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Fact, Facts, Membership, Session
from holdfast.events.records import SERVICE
from holdfast.events.removals import last_zxid, note_removed
from holdfast.models.records import Version, alias_path, version_path, versions_path
from holdfast.serve import checked
from holdfast.serve.guard import new_secret
from holdfast.serve.records import (
    GATEWAYS,
    SERVICES,
    Gateway,
    Replica,
    RolloutPlan,
    ServiceSpec,
    history_path,
    job_name,
    plan_path,
    replica_turns_path,
    replicas_path,
    service_path,
)
from holdfast.wire import documents
from holdfast.wire.errors import Conflict, Missing, Refused
from holdfast.wire.history import (
    ASKED,
    HistoryEntry,
    HistoryPage,
    entries_from,
    page_from,
    page_to,
)
from holdfast.wire.limits import (
    ASKED_CHARACTERS_MAX,
    ASKED_KEPT,
    REPLICA_AWAY_S,
    SERVICE_REPLICAS_MAX,
    UPDATE_TRIES_MAX,
)
from holdfast.wire.names import AUDIT_NAME
from holdfast.wire.worker_messages import REPLICA_MODULE

# Random bytes of an API key: nobody guesses it, so a plain SHA-256 keeps it.
SERVICE_KEY_BYTES: Final = 24
# Nodes of a removed service that go in one transaction.
SERVICE_NODES_REMOVED: Final = 200

T = TypeVar("T")
Change = Callable[[ServiceSpec], ServiceSpec]
Words = Callable[[ServiceSpec], str]


def audit_path(service: str) -> str:
    """What its users asked, in words."""
    return f"{service_path(service)}/{AUDIT_NAME}"


class Services:
    """The services of a cluster. `who`: what their users are called in the history."""

    def __init__(self, session: Session, who: str = "its user") -> None:
        self._session = session
        self._facts = Facts(session)
        self._who = who
        self._plane = ControlPlane(session, who)

    # --- what there is --------------------------------------------------------------------------

    def services(self) -> dict[str, ServiceSpec]:
        """All of them, by name."""
        found = {}
        for name in self._facts.names(SERVICES, fresh=True):
            fact = self._facts.read(service_path(name))
            if fact is not None and fact.data:
                found[name] = documents.from_bytes(service_path(name), ServiceSpec, fact.data)
        return found

    def service(self, name: str) -> ServiceSpec:
        """`Missing` if there is none of that name."""
        return self._read(name)[0]

    def plan(self, name: str) -> RolloutPlan | None:
        """What the controller has decided; None: nothing yet."""
        path = plan_path(name)
        fact = self._facts.read(path, fresh=True)
        return documents.from_bytes(path, RolloutPlan, fact.data) if fact is not None else None

    def replicas(self, name: str) -> dict[int, Replica]:
        """Those that have a session now, by worker."""
        found = self._members(replicas_path(name), Replica)
        return {each.worker: each for each in found.values()}

    def gateways(self) -> dict[str, Gateway]:
        return self._members(GATEWAYS, Gateway)

    def history(self, name: str) -> list[HistoryEntry]:
        """What was asked and decided, and why, oldest first; only the newest is kept."""
        self._read(name)
        pages = [f"{history_path(name)}/{page}" for page in self._facts.names(history_path(name))]
        found = self._facts.read_all(pages)
        decided = [
            entry for path in sorted(found) for entry in entries_from(path, found[path].data)
        ]
        # Each in its own order: the clocks of controllers and users may differ.
        asked = _asked(audit_path(name), self._facts.read(audit_path(name))).entries
        return list(heapq.merge(decided, asked, key=lambda entry: entry.at_s))

    # --- what users want ------------------------------------------------------------------------

    def create(self, service: ServiceSpec) -> ServiceSpec:
        """A new service, and the job of its replicas. `Conflict` if there is one of that name."""
        name = check_name("service", service.name)
        check_name("job", job_name(name))
        checked.check(service)
        self._check_target(service.model, service.target, fresh=True)
        made = replace(service, revision=1, created_s=self._now_s(), secret=new_secret())
        words = self._words(f"serve {service.model}@{service.target}")
        transaction = self._facts.transaction(lambda: self._is(made))
        path = service_path(name)
        left = self._facts.read(path, fresh=True)
        if left is not None and not left.data:
            # A late replica of a removed service has left an empty node, and perhaps more.
            self._remove(name)
        transaction.create(path, documents.to_bytes(made))
        transaction.create(audit_path(name), page_to(HistoryPage((words,))))
        # Replicas may write below these, and make nothing beside them.
        transaction.create(replicas_path(name), b"")
        transaction.create(replica_turns_path(name), b"")
        try:
            transaction.commit()
        except Conflict as error:
            raise Conflict(
                f"there is a service {name} already",
                fix=f"change it: holdfast rollout {name}, or remove it: holdfast unserve {name}",
            ) from error
        self._want_topics(made)
        self.ensure_job(name)
        return made

    def update(self, name: str, change: Change, words: str) -> ServiceSpec:
        """Change what is wanted, in one compare-and-set; `words` say what, for the history. What
        never changes (model, room, queue, priority) is `Refused`."""

        def kept(service: ServiceSpec) -> ServiceSpec:
            after = change(service)
            checked.check(after)
            checked.check_same(service, after)
            return after

        changed = self._change(name, kept, lambda _: words)
        self._want_topics(changed)
        return changed

    def rollout(self, name: str, target: str | None = None) -> ServiceSpec:
        """Serve what `target` (an alias or a version's number) names, step by step. None: the
        same target again, also if it failed before. Ends a rollback and a split."""

        def change(before: ServiceSpec) -> ServiceSpec:
            wanted = before.target if target is None else target.removeprefix("@")
            self._check_target(before.model, wanted)
            return _revised(replace(before, target=wanted, pinned=None, split={}))

        return self._change(name, change, lambda after: f"roll out {after.model}@{after.target}")

    def rollback(self, name: str) -> ServiceSpec:
        """Serve the version before, at once: of a rollout under way the one that is stable, else
        the one before that. `Refused` if there is none."""
        plan = self.plan(name)
        back = None
        if plan is None:
            self.service(name)  # there is none?
        else:
            under_way = plan.next is not None or len(plan.variants) > 1
            back = plan.stable if under_way else plan.previous
        if back is None:
            raise Refused(
                f"{name} has no version to go back to",
                why="it has served one version only" if plan else "it serves nothing yet",
                fix=f"name one: holdfast rollout {name} VERSION",
            )
        return self.pin(name, back, f"roll back to version {back}")

    def pin(self, name: str, version: int, words: str = "") -> ServiceSpec:
        """Serve exactly this version until `rollout`."""

        def change(before: ServiceSpec) -> ServiceSpec:
            self._check_target(before.model, str(version))
            return _revised(replace(before, pinned=version, split={}))

        said = words or f"serve version {version} and no other"
        return self._change(name, change, lambda _: said)

    def split(self, name: str, weights: Mapping[int, float]) -> ServiceSpec:
        """Serve several versions side by side, by these weights (of their sum); none: the target
        alone again."""

        def change(before: ServiceSpec) -> ServiceSpec:
            for version in weights:
                self._check_target(before.model, str(version))
            return _revised(replace(before, split=checked.weights(weights), pinned=None))

        def words(after: ServiceSpec) -> str:
            parts = [f"version {one}: {part / 100:g} %" for one, part in after.split.items()]
            return f"split: {', '.join(parts)}" if parts else "no split any more"

        return self._change(name, change, words)

    def scale(self, name: str, replicas: int | None) -> ServiceSpec:
        """Have so many replicas; None: as many as are needed between the least and the most."""

        def change(before: ServiceSpec) -> ServiceSpec:
            after = replace(before, replicas_wanted=replicas)
            checked.check(after)
            return after

        most = "as its load asks" if replicas is None else str(replicas)
        return self._change(name, change, lambda _: f"scale to {most}")

    def add_key(self, name: str, *, operator: bool = False) -> str:
        """A new API key. It is told once: only its SHA-256 is kept. `operator`: it opens load and
        unload, and nothing else."""
        key = f"hf_{secrets.token_urlsafe(SERVICE_KEY_BYTES)}"

        def change(before: ServiceSpec) -> ServiceSpec:
            digest = key_digest(key)
            after = (
                replace(before, operator_keys=(*before.operator_keys, digest))
                if operator
                else replace(before, keys=(*before.keys, digest))
            )
            checked.check(after)
            return after

        kind = "another operator's key" if operator else "another API key"
        self._change(name, change, lambda _: kind)
        return key

    def remove_key(self, name: str, key: str) -> ServiceSpec:
        """Forget an API key, given as it is or by the first letters of its SHA-256."""
        digest = key_digest(key)

        def change(before: ServiceSpec) -> ServiceSpec:
            there = (*before.keys, *before.operator_keys)
            gone = [one for one in there if one == digest or one.startswith(key.lower())]
            if len(gone) != 1 or not key:
                raise Missing(
                    f"{name} has no such key" if not gone else f"{key} begins several keys",
                    fix=f"holdfast services {name} shows the first letters of each",
                )
            return replace(
                before,
                keys=tuple(one for one in before.keys if one not in gone),
                operator_keys=tuple(one for one in before.operator_keys if one not in gone),
            )

        return self._change(name, change, lambda _: "one API key fewer")

    # --- the job and the end --------------------------------------------------------------------

    def ensure_job(self, name: str) -> None:
        """Submit the job of the replicas, unless it is there. One that was stopped by hand is
        removed and submitted anew."""
        ensure(self._plane, self.service(name))

    def stop(self, name: str) -> bool:
        """End a service: its replicas drain and leave. Whether all have; if not, ask again."""
        self._read(name)
        return stop(self._plane, job_name(name))

    def remove(self, name: str) -> None:
        """Forget a service whose replicas have left (`stop`), with its history."""
        if not self.stop(name):
            raise Refused(
                f"{name} still has replicas",
                why="they answer what they have begun",
                fix=f"holdfast unserve {name} waits for them",
            )
        forget(self._plane, job_name(name))
        last = last_zxid(self._facts, history_path(name), audit_path(name))
        for _ in range(UPDATE_TRIES_MAX):
            if self._remove(name, last):
                return
        raise Conflict(f"service {name} changes all the time", fix=f"holdfast unserve {name}")

    # --- private --------------------------------------------------------------------------------

    def _want_topics(self, service: ServiceSpec) -> None:
        """A service that tells its predictions has topics. It does not wait for them: requests are
        answered without."""
        if service.predictions.topic:
            topics.wanted(self._session, timeout_s=0)

    def _now_s(self) -> float:
        return self._session.clock.wall_ms() / 1000

    def _read(self, name: str) -> tuple[ServiceSpec, int]:
        path = service_path(check_name("service", name))
        fact = self._facts.read(path, fresh=True)
        if fact is None or not fact.data:
            raise Missing(f"there is no service {name}", fix="holdfast services")
        return documents.from_bytes(path, ServiceSpec, fact.data), fact.version

    def _is(self, service: ServiceSpec) -> bool:
        try:
            return self.service(service.name) == service
        except Missing:
            return False

    def _change(self, name: str, change: Change, words: Words) -> ServiceSpec:
        """One compare-and-set with its words. What is so already is asked again all the same: the
        controller then tries again what had failed. What `change` reads is no older than its call:
        the service is read before, as all servers know it."""
        for _ in range(UPDATE_TRIES_MAX):
            before, version = self._read(name)
            after = replace(change(before), revision=before.revision + 1)
            transaction = self._facts.transaction(lambda after=after: self._is(after))  # type: ignore[misc]
            transaction.replace(service_path(name), documents.to_bytes(after), version)
            path = audit_path(name)
            fact = self._facts.read(path)
            asked = _asked(path, fact).with_entry(self._words(words(after))).last_kept(ASKED_KEPT)
            if fact is None:
                transaction.create(path, page_to(asked))
            else:
                transaction.replace(path, page_to(asked), fact.version)
            try:
                transaction.commit()
            except Conflict:
                continue  # somebody was first: look again
            return after
        raise Conflict(
            f"service {name} was changed by others {UPDATE_TRIES_MAX} times in a row",
            fix="let fewer change it, or less often",
        )

    def _words(self, text: str) -> HistoryEntry:
        said = f"{self._who} asked: {text}"[:ASKED_CHARACTERS_MAX]
        return HistoryEntry(self._now_s(), 0, ASKED, said)

    def _members(self, path: str, kind: type[T]) -> dict[str, T]:
        members = Membership(self._session, path).members()
        return {
            name: documents.from_document(f"{path}/{name}", kind, member.data)
            for name, member in members.items()
        }

    def _check_target(self, model: str, target: str, *, fresh: bool = False) -> None:
        """`Missing` if the model has no such version or alias, `Refused` if it is retired."""
        show, named = f"holdfast models show {model}", not target.isdecimal()
        if named:
            path = alias_path(model, check_name("alias", target))
        else:
            path = version_path(model, int(target))
        fact = self._facts.read(path, fresh=fresh)
        if fact is None:
            if not self._facts.names(versions_path(model)):
                raise Missing(f"there is no model {model}", fix="holdfast models")
            what = "alias" if named else "version"
            raise Missing(f"model {model} has no {what} {target}", fix=show)
        if named:
            return
        retired = documents.from_bytes(path, Version, fact.data).retired
        if retired:
            raise Refused(f"version {target} of {model} is retired", why=retired, fix=show)

    def _remove(self, name: str, last: int | None = None) -> bool:
        """Its nodes, the lowest first; whether none is left. `last`: of its history, if it was a
        service and no more than what was left of one."""
        top = service_path(name)
        paths = [*self._below(top), top]
        for start in range(0, len(paths), SERVICE_NODES_REMOVED):
            some = paths[start : start + SERVICE_NODES_REMOVED]
            gone = self._facts.transaction(lambda: self._facts.read(top, fresh=True) is None)
            for path in some:
                gone.remove(path)
            if last is not None and some[-1] == top:
                note_removed(self._facts, gone, SERVICE, name, last, self._now_s())
            try:
                gone.commit()
            except (Conflict, Missing):
                return False  # somebody wrote or removed one meanwhile: look again
        return True

    def _below(self, path: str) -> list[str]:
        found: list[str] = []
        for name in self._facts.names(path, fresh=True):
            child = f"{path}/{name}"
            found += [*self._below(child), child]
        return found


def key_digest(key: str) -> str:
    """What is kept of an API key."""
    return hashlib.sha256(key.encode()).hexdigest()


def _asked(path: str, fact: Fact | None) -> HistoryPage:
    return HistoryPage() if fact is None else page_from(path, fact.data, fact.zxid)


def _revised(service: ServiceSpec) -> ServiceSpec:
    """Users said which version to serve: one that had failed is tried again."""
    return replace(service, version_revision=service.version_revision + 1)


# --- jobs -----------------------------------------------------------------------------------------
# The job whose workers are a service's replicas.


# A replica that fails is started again after the first, then ever later up to the second. A service
# that is down for want of a store or a model should be back soon after they are.
REPLICA_BACKOFF_S: Final = 0.5
REPLICA_BACKOFF_S_MAX: Final = 30.0
# A replica that ran so long has earned a fresh start.
REPLICA_FORGIVEN_S: Final = 300.0


def spec_of(service: ServiceSpec) -> JobSpec:
    """One replica is what the job cannot do without: it goes before all of lower priority, also
    before whole jobs. Those above it take from what other jobs have above their own minimum."""
    return JobSpec(
        name=job_name(service.name),
        command=("python", "-m", REPLICA_MODULE, service.name),
        queue=service.queue,
        priority=service.priority,
        workers_min=1,
        # How many it has is told apart (`workers_wanted`), and changes; a spec never does.
        workers_max=SERVICE_REPLICAS_MAX,
        resources=service.resources,
        mode=Mode.SERVE,
        checkpoint=CheckpointPolicy(every_s=None),
        restart=RestartPolicy(
            backoff_s=REPLICA_BACKOFF_S,
            backoff_s_max=REPLICA_BACKOFF_S_MAX,
            forgiven_after_s=REPLICA_FORGIVEN_S,
        ),
        # It waits as long as there is no version that it could serve; that is not hanging.
        silence_s=REPLICA_AWAY_S,
    )


def ensure(plane: ControlPlane, service: ServiceSpec) -> None:
    """Submit it, unless it is there. One that has ended is removed first."""
    name, spec = job_name(service.name), spec_of(service)
    replicas = service.replicas_wanted or service.replicas_min
    for _ in range(UPDATE_TRIES_MAX):
        try:
            job = plane.job(name)
        except Missing:
            try:
                plane.submit(spec, replicas)
            except Conflict:
                continue  # somebody was first: see whether it is ours
            return
        if not job.status.phase.final and not job.intent.stops:
            if job.spec != spec:
                raise Conflict(
                    f"there is a job {name} already, and it is not the one of this service",
                    fix=f"holdfast stop {name}, then holdfast serve again",
                )
            return
        if not job.status.phase.final:
            raise Conflict(
                f"the replicas of {service.name} are being stopped",
                fix="try again in a moment",
            )
        forget(plane, name)


def stop(plane: ControlPlane, job: str) -> bool:
    """Ask its replicas to leave; whether all have."""
    try:
        found = plane.job(job)
    except Missing:
        return True
    if found.status.phase.final:
        return True
    if not found.intent.stops:
        plane.set_intent(job, Intent.STOP)
    return False


def forget(plane: ControlPlane, job: str) -> None:
    """Remove it if it has ended; twice is once."""
    try:
        plane.remove(job)
    except Missing:
        return
