"""Asking replicas for their counts: several at a time, each bounded in time and size.

On threads of its own: a replica that does not answer holds up no decision. What came back is taken
by `collect`, on the thread that decides.
"""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from holdfast.serve.autoscale import is_automatic
from holdfast.serve.protocol.marks import SECRET
from holdfast.serve.records import Arm, Course, Replica, ReplicaStats, Service, Stage
from holdfast.wire import documents, logs
from holdfast.wire.clock import Clock
from holdfast.wire.errors import HoldfastError
from holdfast.wire.limits import CONDUCTOR_LOOK_S, CONDUCTOR_LOOK_S_MAX, STATS_POLL_S
from holdfast.wire.tasks import ends_process, owned

# How often replicas are asked for their counts during a rollout, and for autoscaling.
STATS_POLL_CALM_S: Final = 1.0
# A replica that does not answer by then is counted next time; it may be dead already.
STATS_TIMEOUT_S: Final = 1.0
# Replicas that are asked at the same time, and the largest answer.
STATS_POLLERS: Final = 16
STATS_BYTES_MAX: Final = 1024 * 1024

_log = logs.get(__name__)


def pauses_s(course: Course | None, service: Service) -> tuple[float | None, float]:
    """How often replicas are asked for their counts (None: they do not matter now), and when the
    service is looked at again at the latest."""
    if course is not None and course.stage is Stage.SHIFTING:
        every_s = min(STATS_POLL_S, max(service.policy.hold_s, CONDUCTOR_LOOK_S) / 4)
        return every_s, min(every_s, CONDUCTOR_LOOK_S)
    if course is not None and is_automatic(service):
        return STATS_POLL_CALM_S, STATS_POLL_CALM_S
    return None, CONDUCTOR_LOOK_S_MAX


@dataclass(slots=True)
class Round:
    """One question to all replicas of a service, and the answers that have come."""

    service: str
    replicas: tuple[int, ...]
    arms: tuple[Arm, ...]
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
        arms: tuple[Arm, ...],
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
            round_ = Round(service, tuple(sorted(replicas)), arms, waiting=len(replicas))
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
