"""The ends of topics that triggers wait for: asked now and then by the leader, on a thread.

What is learnt is a level (`TopicOffsets`), never a decision: a trigger's place is in the plane, and
what was asked too early shows less than there is. While topics are away the last answer stays, and
people are told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from holdfast.control.decide.facts import DesiredState, TopicOffsets
from holdfast.system import logs
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.wire.errors import HoldfastError, Missing
from holdfast.wire.limits import THREAD_END_S

if TYPE_CHECKING:
    from holdfast.topics import Connection
    from holdfast.topics.admin import TopicAdmin

# Between two looks. Each asks three small questions of each topic.
TOPIC_LOOK_S: Final = 1.0
# Looks that fail in a row before people are told: a broker that has died has another at its place.
_FAILURES: Final = 3

log = logs.get(__name__)


class TopicWatch:
    """`offsets`: of each topic that a trigger names. `wake` is called when they are others. A
    `with` around the coordinator's run; nothing is connected while no trigger is there."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        wake: Callable[[], None],
        *,
        every_s: float = TOPIC_LOOK_S,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.offsets: Mapping[str, TopicOffsets] = {}
        self._connect = connect
        self._wake = wake
        self._every_s = every_s
        self._wall_s = wall_s
        self._wanted: frozenset[str] | None = None
        self._failures: dict[str, tuple[int, float]] = {}  # in a row, and since when
        self._connection: Connection | None = None
        self._term = 0
        self._ended = threading.Event()
        self._asked = threading.Event()
        self._thread: OwnedThread | None = None

    def begin(self, term: int) -> None:
        """Another term: what was learnt before it may be older than what the plane says."""
        self._term, self.offsets = term, {}

    def expects(self, desired: DesiredState) -> None:
        """Which triggers there are, as the leader sees it now. One that does not lead does not
        look."""
        wanted = frozenset(
            job.spec.on.topic
            for job in desired.jobs.values()
            if job.spec.on is not None and not job.status.phase.final
        )
        if wanted - self.offsets.keys():
            self._asked.set()  # a new one does not wait for its turn
        self._wanted = wanted

    def __enter__(self) -> Self:
        self._thread = start_thread(self._run, "topic watch")
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._asked.set()
        if self._thread is not None:
            self._thread.join(THREAD_END_S)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self.look()
                if self._asked.wait(self._every_s):
                    self._asked.clear()
                    self._ended.wait(self._every_s / 10)
        finally:
            self._disconnect()

    def look(self) -> None:
        """Ask once for each topic."""
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return
        if not wanted:
            self._disconnect()
        term = self._term
        found = {topic: self._read(topic) for topic in sorted(wanted) if not self._ended.is_set()}
        self._failures = {topic: each for topic, each in self._failures.items() if topic in found}
        if term == self._term and found != self.offsets and not self._ended.is_set():
            self.offsets = found
            self._wake()

    def _read(self, topic: str) -> TopicOffsets:
        try:
            if self._connection is None:
                self._connection = self._connect()
            found = read_offsets(self._connection.admin, topic)
        except HoldfastError as error:
            return self._away(topic, error)
        if self._failures.pop(topic, (0, 0.0))[0] >= _FAILURES:
            log.info("a topic answers again", topic=topic)
        return found

    def _away(self, topic: str, error: HoldfastError) -> TopicOffsets:
        """What is known of a topic that did not answer."""
        count, since_s = self._failures.get(topic, (0, self._wall_s()))
        self._failures[topic] = (count + 1, since_s)
        last = self.offsets.get(topic)
        if count + 1 < _FAILURES and last is not None:
            return last
        if count + 1 == _FAILURES:
            log.warning("a topic does not answer", topic=topic, error=str(error))
        since = time.strftime("%H:%M:%S UTC", time.gmtime(since_s))
        trouble = f"it cannot be asked since {since} ({error.what})"
        return replace(last or TopicOffsets(), trouble=trouble)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def read_offsets(admin: TopicAdmin, topic: str) -> TopicOffsets:
    """Where its partitions begin and end. Its id is asked before and after: what lies between is of
    one and the same topic."""
    try:
        before = admin.incarnation(topic)
        begins = admin.offsets(topic, "earliest")
        ends = admin.offsets(topic, "latest", committed=True)
        if admin.incarnation(topic) != before or begins.keys() != ends.keys():
            return read_offsets(admin, topic)
    except Missing:
        return TopicOffsets()
    parts = range(len(begins))
    return TopicOffsets(
        before, tuple(begins[part] for part in parts), tuple(ends[part] for part in parts)
    )
