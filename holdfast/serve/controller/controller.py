"""The controller's life: it stands for election, and while it leads it looks, decides and writes.

Every plan is written in a transaction that is fenced by the term: a deposed controller changes
nothing. Levels: a watch only wakes it, and it decides from what is there. A user's rollback goes
through without any pause: watch, look, decide, write.
"""

from __future__ import annotations

import http.client
import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.control.store import codec, history
from holdfast.control.store.history import HistoryPages
from holdfast.control.store.layout import NODES, page_path, placements_path
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import (
    Election,
    ElectionLoop,
    Facts,
    Leadership,
    Membership,
    Session,
    Transaction,
)
from holdfast.serve.controller.memory import ServiceHistory
from holdfast.serve.controller.mirror import MirroredService, ServicesMirror
from holdfast.serve.guard import new_secret
from holdfast.serve.protocol.marks import SECRET
from holdfast.serve.records import (
    ROLLOUT_CONTROLLER,
    Replica,
    ReplicaStats,
    RolloutPlan,
    RolloutStage,
    ServiceSpec,
    Variant,
    history_path,
    job_name,
    plan_path,
    replicas_path,
    service_path,
)
from holdfast.serve.rollout.advance import advance
from holdfast.serve.rollout.autoscale import is_automatic
from holdfast.serve.rollout.facts import RolloutDecision, ScaleJob, ServiceObservation, SetPlan
from holdfast.system import logs
from holdfast.system.clock import Clock
from holdfast.system.tasks import ends_process, owned
from holdfast.wire import documents
from holdfast.wire.documents import from_bytes, to_bytes
from holdfast.wire.errors import (
    Conflict,
    Corrupt,
    Fenced,
    HoldfastError,
    Missing,
    RetryError,
    SessionLost,
)
from holdfast.wire.history import HistoryEntry
from holdfast.wire.limits import (
    REASON_CHARACTERS_MAX,
    ROLLOUT_LOOK_S,
    ROLLOUT_LOOK_S_MAX,
    STATS_POLL_S,
    TROUBLE_S,
)

_log = logs.get(__name__)


class RolloutController:
    """A candidate, and at times the leader. `tell`: called with the term that it leads, 0: none."""

    def __init__(
        self, session: Session, name: str | None = None, tell: Callable[[int], None] | None = None
    ) -> None:
        self._session = session
        self._tell = tell or (lambda term: None)
        self._wakeup = threading.Event()
        self._election_loop = ElectionLoop(
            session, Election(session, ROLLOUT_CONTROLLER, name), self._wakeup.set
        )

    def run(self, stop: threading.Event) -> None:
        """Stand, lead, and stand again, until `stop` is set. Then the next one may lead at once."""

        def lead(leadership: Leadership) -> None:
            self._tell(leadership.term)
            try:
                self._lead(leadership, stop)
            finally:
                self._tell(0)

        self._election_loop.run(stop, lead)

    def _lead(self, leadership: Leadership, stop: threading.Event) -> None:
        mirror = ServicesMirror(self._session, self._wakeup.set)
        poller = Poller(self._wakeup.set, self._session.clock)
        with closing(mirror), closing(poller):
            term = RolloutTerm(self._session, leadership, mirror, poller)
            fresh = False
            while not stop.is_set() and not leadership.lost:
                self._wakeup.clear()
                if not leadership.acting:
                    self._wakeup.wait(ROLLOUT_LOOK_S)
                    continue
                try:
                    if not fresh:
                        mirror.read()
                        fresh = True
                    pause_s = term.tick()
                except (Fenced, SessionLost):
                    raise
                except RetryError as error:
                    _log.warning("the coordination plane does not answer", error=str(error))
                    stop.wait(ROLLOUT_LOOK_S)
                    continue
                except HoldfastError as error:
                    _log.error("nothing can be decided for now", error=str(error))
                    stop.wait(TROUBLE_S)
                    fresh = False
                    continue
                self._wakeup.wait(pause_s)


class RolloutTerm:
    """What a leader does in its term. For one thread."""

    def __init__(
        self, session: Session, leadership: Leadership, mirror: ServicesMirror, poller: Poller
    ) -> None:
        self._clock = session.clock
        self._leadership = leadership
        self._mirror = mirror
        self._poller = poller
        self._writer = PlanWriter(session, leadership)
        self._cleanup = ReplicaCleanup(session)
        self._plane = ControlPlane(session, "the controller")
        self._memories: dict[str, ServiceHistory] = {}
        self._troubled: dict[str, tuple[float, str]] = {}  # service -> until when, and what
        self._unscaled: dict[str, tuple[float, str]] = {}  # the same, of its job

    def tick(self) -> float:
        """Look, decide and write once; how long it may wait for the next time.

        `Fenced` and `SessionLost`: the term is over. `RetryError`: the plane did not answer.
        """
        mirror = self._mirror
        mirror.refresh()
        for gone in self._memories.keys() - mirror.services.keys():
            del self._memories[gone]
            self._poller.forget(gone)
            self._writer.forget(gone)
            self._cleanup.forget(gone)
            self._troubled.pop(gone, None)
            self._unscaled.pop(gone, None)
        self._take_stats()
        pause_s = ROLLOUT_LOOK_S_MAX
        for name in sorted(mirror.services):
            pause_s = min(pause_s, self._conduct(name))
        return pause_s

    def _now_s(self) -> float:
        return self._clock.wall_ms() / 1000

    def _take_stats(self) -> None:
        for done in self._poller.collect():
            memory = self._memories.get(done.service)
            if memory is not None:
                memory.see_stats(done.answers, done.asked, done.variants, self._now_s())

    def _conduct(self, name: str) -> float:
        """One service; in how many seconds it has to be looked at again."""
        seen = self._mirror.services[name]
        until_s, _ = self._troubled.get(name, (0.0, ""))
        if self._clock.now_s() < until_s:
            return ROLLOUT_LOOK_S_MAX
        try:
            self._cleanup.run(name, seen)
            if not seen.desired.service.secret:
                self._writer.secure(name)
            if self._carry_out(advance(seen.desired, self._observed(name, seen), self._now_s())):
                return 0.0
        except (Conflict, Missing) as error:
            _log.info("decided upon an old snapshot; looking again", service=name, why=error.what)
            self._mirror.mark_dirty(name)
            return ROLLOUT_LOOK_S
        except (Fenced, SessionLost):
            raise
        except RetryError:
            self._mirror.mark_dirty(name)
            raise
        except HoldfastError as error:
            self._mirror.mark_dirty(name)
            self._trouble(name, error)
            return ROLLOUT_LOOK_S_MAX
        return self._poll(name, seen)

    def _observed(self, name: str, seen: MirroredService) -> ServiceObservation:
        memory = self._memories.setdefault(name, ServiceHistory())
        gateways = dict(self._mirror.gateways)
        now = ServiceObservation(seen.plan, seen.replicas, gateways, job_replicas=seen.job_replicas)
        return memory.look(name, now, seen.failures, self._now_s())

    def _poll(self, name: str, seen: MirroredService) -> float:
        """Ask its replicas for their counts, if they matter now; when to look again."""
        plan = seen.plan
        every_s, look_s = pauses_s(plan, seen.desired.service)
        if plan is not None and every_s is not None:
            secret = seen.desired.service.secret
            self._poller.ask(name, seen.replicas, plan.variants, every_s, secret)
        return look_s

    # --- carrying out -----------------------------------------------------------------------------

    def _carry_out(self, decisions: list[RolloutDecision]) -> bool:
        """Whether anything was done, so that there is something new to see."""
        done = False
        for decision in decisions:
            if isinstance(decision.command, SetPlan):
                self._set_plan(decision.command, decision.reason)
                done = True
            else:
                done = self._scale(decision.command, decision.reason) or done
        return done

    def _set_plan(self, command: SetPlan, reason: str) -> None:
        seen = self._mirror.services[command.service]
        self._writer.set_plan(command, reason, seen.plan_version)
        self._mirror.wrote(command.service, command.plan)
        plan = command.plan
        _log.info(
            "plan",
            term=self._leadership.term,
            service=command.service,
            number=plan.number,
            stage=plan.stage.value,
            variants={variant.version: variant.weight for variant in plan.variants},
            hold=list(plan.hold),
            reason=reason,
        )

    def _scale(self, command: ScaleJob, reason: str) -> bool:
        """Whether it was done. A job that cannot be scaled does not hold up the rollout."""
        name = command.service
        until_s, known = self._unscaled.get(name, (0.0, ""))
        # It is no write of ours, so nothing fences it but this.
        if self._clock.now_s() < until_s or not self._leadership.acting:
            return False
        try:
            self._plane.scale(job_name(name), command.replicas)
        except (Fenced, SessionLost, RetryError):
            raise
        except HoldfastError as error:
            self._unscaled[name] = (self._clock.now_s() + TROUBLE_S, str(error))
            if str(error) != known:
                _log.error("the job cannot be scaled", service=name, error=str(error))
                self._writer.note(name, "Trouble", str(error))
            return False
        self._unscaled.pop(name, None)
        self._mirror.rescaled(name, command.replicas)
        self._writer.note(name, "Scale", reason)
        _log.info("scale", service=name, replicas=command.replicas, reason=reason)
        return True

    def _trouble(self, name: str, error: HoldfastError) -> None:
        """A service's own trouble does not hold up the others. It is told once, and tried again."""
        _, known = self._troubled.get(name, (0.0, ""))
        self._troubled[name] = (self._clock.now_s() + TROUBLE_S, str(error))
        if str(error) != known:
            _log.error("a decision cannot be carried out", service=name, error=str(error))


# --- plans and their history ----------------------------------------------------------------------
# Plans and their history, written together, fenced by the leader's term.


class PlanWriter:
    """What a leader writes in its term. For one thread."""

    def __init__(self, session: Session, leadership: Leadership) -> None:
        self._facts = Facts(session)
        self._clock: Clock = session.clock
        self._leadership = leadership
        self._rings: dict[str, HistoryPages] = {}

    def set_plan(self, command: SetPlan, reason: str, version: int) -> None:
        """Write the plan upon this version of its node (-1: there is none), with its reason.

        `Conflict`, `Fenced`, `Missing` (the service was removed): nothing was written.
        `Unavailable`: nobody knows.
        """
        path, data = plan_path(command.service), to_bytes(command.plan)
        transaction = self._leadership.transaction()
        # Without this, the plan of a service that was just removed would bring half of it back.
        transaction.check(service_path(command.service))
        if version < 0:
            transaction.create(path, data)
        else:
            transaction.replace(path, data, version)
        plan = command.plan
        said: dict[str, str | int] = {"plan": plan.number, "stage": plan.stage.value}
        named = {"stable": plan.stable, "next": plan.next}
        said |= {name: version for name, version in named.items() if version is not None}
        self._commit(transaction, command.service, plan.stage.value.title(), reason, said)

    def secure(self, service: str) -> None:
        """Give a service of an earlier version the secret that replicas ask for. Twice is once."""
        path = service_path(service)
        fact = self._facts.read(path, fresh=True)
        before = (
            from_bytes(path, ServiceSpec, fact.data) if fact is not None and fact.data else None
        )
        if fact is None or before is None or before.secret:
            return
        transaction = self._leadership.transaction()
        transaction.replace(path, to_bytes(replace(before, secret=new_secret())), fact.version)
        transaction.commit()

    def note(self, service: str, what: str, reason: str) -> None:
        """A line in the history, without a plan."""
        transaction = self._leadership.transaction()
        transaction.check(service_path(service))
        self._commit(transaction, service, what, reason)

    def _commit(
        self,
        transaction: Transaction,
        service: str,
        what: str,
        reason: str,
        data: Mapping[str, str | int] | None = None,
    ) -> None:
        """With a line in the history."""
        now_s, term = self._clock.wall_ms() / 1000, self._leadership.term
        entry = HistoryEntry(now_s, term, what, reason[-REASON_CHARACTERS_MAX:], data=data or {})
        try:
            ring = history.add(transaction, service, self._ring(service), [entry], history_path)
            ring = ring.committed(transaction.commit())
        except HoldfastError:
            self.forget(service)
            raise
        self._rings[service] = ring

    def forget(self, service: str) -> None:
        """Its history is read again before it is written."""
        self._rings.pop(service, None)

    def _ring(self, service: str) -> HistoryPages:
        if service not in self._rings:
            self._rings[service] = history.read_pages(self._facts, service, history_path)
        return self._rings[service]


# --- dead replicas --------------------------------------------------------------------------------
# Replicas that have ended, and that the plane still shows: their sessions last for some seconds.
#
# The control plane knows better. A worker has a placement, written before it was started, until its
# agent has reported its end. So a replica that is shown, of a worker without a placement, on a node
# whose agent is there, has ended. Its node is removed, and everybody sees it at once: the gateways,
# whoever lists the services, and this controller, for whom it would count as ready.


# Replicas whose nodes a controller has removed, and does not remove again: far more than can live
# on without a placement at once.
DISMISSED_KEPT: Final = 1_024


class ReplicaCleanup:
    """For one thread. It asks the plane only when a job's state or the replicas have changed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._facts = Facts(session)
        self._judged: dict[str, tuple[int, frozenset[int]]] = {}
        # Once for each: one that lives after all joins again, and stays.
        self._dismissed: deque[tuple[str, int]] = deque(maxlen=DISMISSED_KEPT)

    def run(self, service: str, seen: MirroredService) -> None:
        """Remove those of its replicas that have ended. `RetryError`: the plane did not answer."""
        judged = seen.job_version, frozenset(seen.replicas)
        if seen.job_replicas is None or self._judged.get(service) == judged:
            return
        try:
            self._remove_dead(service, seen)
        except Corrupt as error:  # then they are there until their sessions end
            _log.error("nobody knows which replicas have ended", service=service, error=str(error))
        self._judged[service] = judged

    def forget(self, service: str) -> None:
        """It is removed. Another one of its name counts its workers from 1 again."""
        self._judged.pop(service, None)
        others = [one for one in self._dismissed if one[0] != service]
        self._dismissed = deque(others, maxlen=DISMISSED_KEPT)

    def _remove_dead(self, service: str, seen: MirroredService) -> None:
        known = {worker for name, worker in self._dismissed if name == service}
        there = {
            worker: replica.node
            for worker, replica in seen.replicas.items()
            if replica.node and worker not in known  # one without a node was started by hand
        }
        unplaced = there.keys() - self._placed(service)
        nodes = self._facts.names(NODES) if unplaced else []
        for worker in sorted(unplaced):
            if there[worker] in nodes:  # else nobody may have reported anything
                self._dismiss(service, worker)

    def _dismiss(self, service: str, worker: int) -> None:
        members = Membership(self._session, replicas_path(service))
        if members.dismiss(str(worker), lambda: worker not in self._placed(service)):
            self._dismissed.append((service, worker))
            _log.info("a replica has ended, by its agent's word", service=service, worker=worker)

    def _placed(self, service: str) -> set[int]:
        """Workers that have a placement. Read after the replicas: those who are shown had one."""
        job = job_name(service)
        numbers = [int(page) for page in self._facts.names(placements_path(job))]
        found = self._facts.read_all([page_path(job, number) for number in numbers])
        return {
            placement.worker
            for path, fact in found.items()
            for placement in codec.placements_from(path, fact.data)
        }


# --- polling --------------------------------------------------------------------------------------
# Asking replicas for their counts: several at a time, each bounded in time and size.
#
# On threads of its own: a replica that does not answer holds up no decision. What came back is
# taken by `collect`, on the thread that decides.


# How often replicas are asked for their counts during a rollout, and for autoscaling.
STATS_POLL_CALM_S: Final = 1.0
# A replica that does not answer by then is counted next time; it may be dead already.
STATS_TIMEOUT_S: Final = 1.0
# Replicas that are asked at the same time, and the largest answer.
STATS_POLLERS: Final = 16
STATS_BYTES_MAX: Final = 1024 * 1024


def pauses_s(plan: RolloutPlan | None, service: ServiceSpec) -> tuple[float | None, float]:
    """How often replicas are asked for their counts (None: they do not matter now), and when the
    service is looked at again at the latest."""
    if plan is not None and plan.stage is RolloutStage.SHIFTING:
        every_s = min(STATS_POLL_S, max(service.policy.hold_s, ROLLOUT_LOOK_S) / 4)
        return every_s, min(every_s, ROLLOUT_LOOK_S)
    if plan is not None and is_automatic(service):
        return STATS_POLL_CALM_S, STATS_POLL_CALM_S
    return None, ROLLOUT_LOOK_S_MAX


@dataclass(slots=True)
class Round:
    """One question to all replicas of a service, and the answers that have come."""

    service: str
    replicas: tuple[int, ...]
    variants: tuple[Variant, ...]
    answers: dict[int, ReplicaStats] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)  # nobody listens there any more
    waiting: int = 0

    @property
    def asked(self) -> tuple[int, ...]:
        """Those that live, or may live: a dead one's node stays until its session is over."""
        return tuple(worker for worker in self.replicas if worker not in self.gone)


class Poller:
    """Asks when told to; one round at a time for each service."""

    def __init__(self, wake: Callable[[], None], clock: Clock) -> None:
        self._wake = wake
        self._clock = clock
        self._lock = threading.Lock()
        self._rounds: dict[str, Round] = {}
        self._asked_s: dict[str, float] = {}
        self._done: list[Round] = []
        self._closed = False
        self._threads = ThreadPoolExecutor(STATS_POLLERS, thread_name_prefix="stats")

    def ask(
        self,
        service: str,
        replicas: Mapping[int, Replica],
        variants: tuple[Variant, ...],
        every_s: float,
        secret: str = "",
    ) -> None:
        """Ask them all, unless that was done less than `every_s` ago or is still under way."""
        now_s = self._clock.now_s()
        with self._lock:
            under_way = service in self._rounds
            if self._closed or under_way or not replicas:
                return
            if now_s < self._asked_s.get(service, -every_s) + every_s:
                return
            self._asked_s[service] = now_s
            round_ = Round(service, tuple(sorted(replicas)), variants, waiting=len(replicas))
            self._rounds[service] = round_
        for replica in replicas.values():
            asked = self._threads.submit(self._ask, round_, replica, secret)
            owned(asked, ends_process("asking replicas"))

    def collect(self) -> list[Round]:
        """The rounds that are over since the last call."""
        with self._lock:
            done, self._done = self._done, []
        return done

    def forget(self, service: str) -> None:
        """There is no such service any more."""
        with self._lock:
            self._asked_s.pop(service, None)

    def close(self) -> None:
        """Ask nobody any more; what is under way ends by its own time-out."""
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self, round_: Round, replica: Replica, secret: str) -> None:
        stats, gone = None, False
        try:
            stats = ask(replica, secret)
        except ConnectionRefusedError:
            gone = True
        except (OSError, http.client.HTTPException, HoldfastError) as error:
            # A dead one is noticed by its session; one that cannot be asked counts as silent.
            _log.debug("a replica is silent", worker=replica.worker, error=repr(error))
        except Exception:  # a bug of ours: the round ends all the same, and the log has it
            _log.exception("a replica could not be asked", worker=replica.worker)
        with self._lock:
            if gone:
                round_.gone.add(replica.worker)
            if stats is not None:
                round_.answers[replica.worker] = stats
            round_.waiting -= 1
            over = round_.waiting == 0
            if over:
                self._rounds.pop(round_.service, None)
                self._done.append(round_)
        if over:
            self._wake()


def _connection(replica: Replica) -> http.client.HTTPConnection:
    where = (replica.host, replica.http_port)
    if not replica.trust:
        return http.client.HTTPConnection(*where, timeout=STATS_TIMEOUT_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the authority is the job's own, and signs for nobody else
    context.load_verify_locations(cadata=replica.trust)
    return http.client.HTTPSConnection(*where, timeout=STATS_TIMEOUT_S, context=context)


def ask(replica: Replica, secret: str = "") -> ReplicaStats:
    """`GET /holdfast/stats`. Raises if it does not answer in time, or with something else."""
    path = "/holdfast/stats"
    connection = _connection(replica)
    try:
        connection.request("GET", path, headers={SECRET: secret} if secret else {})
        answer = connection.getresponse()
        body = answer.read(STATS_BYTES_MAX)
        if answer.status != 200:
            raise http.client.HTTPException(f"{path} answered {answer.status}")
    finally:
        connection.close()
    return documents.from_bytes(path, ReplicaStats, body)
