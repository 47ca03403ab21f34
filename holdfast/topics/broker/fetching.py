"""Fetches: what is read for each, and those that wait until there is something to read.

A fetch is answered when it has the bytes that it asks for, when something is wrong, or when its
time is over. What is read at a time is bounded for each answer, and for all answers that their
clients have not read yet.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from typing import Final

from holdfast.system.clock import Clock
from holdfast.topics.broker.connection import KafkaConnection
from holdfast.topics.broker.core.acls import Operation, ResourceKind
from holdfast.topics.broker.core.batch import LEADER_EPOCH
from holdfast.topics.broker.core.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSession,
    Key,
    SentOffsets,
    Sessions,
    WantedPartition,
)
from holdfast.topics.broker.core.state import Topic
from holdfast.topics.broker.disk.segment import DamagedSegment
from holdfast.topics.broker.disk.store import BrokerStore
from holdfast.topics.broker.protocol.codec import NO_UUID
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError
from holdfast.topics.broker.protocol.data import (
    AbortedTransaction,
    FetchedPartition,
    FetchedTopic,
    FetchRequest,
    FetchResponse,
)
from holdfast.topics.broker.request import ClientRequest

# Whether whoever asks may do this with the resource of that name.
MayRead = Callable[[ClientRequest, Operation, ResourceKind, str], bool]

# One answer, beside its first batch, which goes whole: more would keep the others waiting.
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
# Answers that clients have not read yet, all together.
UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
WAIT_S_MAX: Final = 60.0
# The isolation level of who reads committed records only.
COMMITTED: Final = 1
# The first version that names topics by their ids alone.
_BY_ID: Final = 13


class Fetch:
    """One fetch on its way."""

    __slots__ = ("appended_bytes", "keys", "request", "session", "timer", "wanted")

    def __init__(
        self,
        request: ClientRequest,
        session: FetchSession | None,
        wanted: dict[Key, WantedPartition],
    ) -> None:
        self.request = request
        self.session = session
        self.wanted = wanted
        self.timer: asyncio.TimerHandle | None = None
        self.appended_bytes = 0
        self.keys: list[tuple[bytes, int]] = []

    @property
    def asked(self) -> FetchRequest:
        body = self.request.body
        assert isinstance(body, FetchRequest)
        return body


class Fetches:
    """The fetches of all connections."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, store: BrokerStore, may: MayRead
    ) -> None:
        self._loop, self._clock, self._store, self._may = loop, clock, store, may
        self.sessions = Sessions()
        self._waiting: dict[ClientRequest, Fetch] = {}
        self._by_partition: dict[tuple[bytes, int], dict[ClientRequest, Fetch]] = {}
        self._slow: set[KafkaConnection] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    # --- from asked to answered ---------------------------------------------------------------

    def begin(self, request: ClientRequest) -> None:
        """A consumer asks for records."""
        asked = request.body
        assert isinstance(asked, FetchRequest)
        now_s = self._clock.now_s()
        try:
            session, wanted = self._session(request, asked, now_s)
        except KafkaError as error:
            request.answer(FetchResponse(error_code=error.code, topics=[]))
            return
        wait_s = min(max(asked.max_wait_ms, 0) / 1000, WAIT_S_MAX)
        fetch = Fetch(request, session, wanted)
        if not self._try(fetch, final=wait_s == 0):
            self._park(fetch)
            fetch.timer = self._loop.call_later(wait_s, self._finish, [fetch])

    def _session(
        self, request: ClientRequest, asked: FetchRequest, now_s: float
    ) -> tuple[FetchSession | None, dict[Key, WantedPartition]]:
        wanted = self._wanted(request, asked)
        if asked.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if asked.session_id:
                self.sessions.end(asked.session_id)
            if asked.session_epoch == FINAL_EPOCH:
                return None, wanted
            return self.sessions.begin(1 + secrets.randbelow(2**31 - 1), wanted, now_s), wanted
        forgotten = [
            (self._name_of(one.topic, one.topic_id), one.topic_id, number)
            for one in asked.forgotten
            for number in one.partitions
        ]
        session = self.sessions.resume(
            asked.session_id, asked.session_epoch, wanted, forgotten, now_s
        )
        return session, session.wanted

    def _wanted(self, request: ClientRequest, asked: FetchRequest) -> dict[Key, WantedPartition]:
        return {
            (
                self._name_of(topic.topic, topic.topic_id),
                topic.topic_id,
                one.partition,
            ): WantedPartition(one.fetch_offset, one.partition_max_bytes, one.current_leader_epoch)
            for topic in asked.topics
            for one in topic.partitions
        }

    def _name_of(self, name: str, topic_id: bytes) -> str:
        if name or topic_id == NO_UUID:
            return name
        topic = self._store.state.by_id.get(topic_id)
        return topic.name if topic else ""

    def _try(self, fetch: Fetch, *, final: bool) -> bool:
        """Answer if there is enough, or something is wrong, or it is the last time."""
        asked = fetch.asked
        most = min(max(asked.max_bytes, 0), ANSWER_BYTES_MAX, self._memory_left())
        parts: list[tuple[Key, FetchedPartition]] = []
        size, wrong = 0, False
        for key, wanted in list(fetch.wanted.items()):
            part = self._read(fetch, key, wanted, most - size, whole=size == 0)
            size += len(part.records)
            wrong = wrong or part.error_code != 0
            parts.append((key, part))
        if size < asked.min_bytes and not wrong and not final:
            return False
        self._answer(fetch, parts)
        return True

    def _memory_left(self) -> int:
        self._slow = {link for link in self._slow if link.unsent_bytes}
        return max(UNSENT_BYTES_MAX - sum(link.unsent_bytes for link in self._slow), 0)

    def _read(
        self, fetch: Fetch, key: Key, wanted: WantedPartition, left: int, *, whole: bool
    ) -> FetchedPartition:
        name, topic_id, number = key
        try:
            topic = self._find(fetch.request, name, topic_id, number)
            check_epoch(wanted.leader_epoch)
        except KafkaError as error:
            return FetchedPartition(partition=number, error_code=error.code, aborted=[])
        partition = topic.partitions[number]
        committed = fetch.asked.isolation_level == COMMITTED
        stable = partition.last_stable_offset
        end = stable if committed else partition.high_watermark
        part = FetchedPartition(
            partition=number,
            high_watermark=partition.high_watermark,
            last_stable_offset=stable,
            log_start_offset=partition.log_start,
            aborted=[] if committed else None,
        )
        offset = wanted.fetch_offset
        if not partition.log_start <= offset <= partition.high_watermark:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
            return FetchedPartition(partition=number, error_code=code, aborted=[])
        if offset == end and self._store.damage((topic.topic_id, number)) is not None:
            return _damaged(number)  # nothing will follow
        most = min(wanted.bytes_max, left)
        if offset < end and (most > 0 or whole):
            log = self._store.log((topic.topic_id, number))
            limit = end if end < partition.high_watermark else None
            try:
                part.records = log.read(offset, most, limit, whole=whole)
                bound = None
                if committed and partition.aborted:
                    bound = log.bound_after(offset, len(part.records))
            except DamagedSegment:
                return _damaged(number)
            if committed and partition.aborted:
                part.aborted = [
                    AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
                    for one in partition.aborted_between(offset, end if bound is None else bound)
                ]
        return part

    def _find(self, request: ClientRequest, name: str, topic_id: bytes, number: int) -> Topic:
        by_id = request.version >= _BY_ID
        topic = self._store.state.topics.get(name)
        if by_id and (topic is None or topic.topic_id != topic_id):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        # Before it is said whether there is one: who may not read it learns nothing.
        if not self._may(request, Operation.READ, ResourceKind.TOPIC, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not 0 <= number < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    def _answer(self, fetch: Fetch, parts: list[tuple[Key, FetchedPartition]]) -> None:
        session = fetch.session
        topics: dict[tuple[str, bytes], FetchedTopic] = {}
        is_first = fetch.asked.session_epoch == INITIAL_EPOCH
        for key, part in parts:
            if session is not None and not self._is_news(session, key, part) and not is_first:
                continue
            topic = topics.get(key[:2])
            if topic is None:
                topic = topics[key[:2]] = FetchedTopic(topic=key[0], topic_id=key[1], partitions=[])
            topic.partitions.append(part)
        session_id = session.session_id if session is not None else 0
        fetch.request.answer(FetchResponse(session_id=session_id, topics=list(topics.values())))
        link = fetch.request.link
        if link.unsent_bytes:
            self._slow.add(link)

    @staticmethod
    def _is_news(session: FetchSession, key: Key, part: FetchedPartition) -> bool:
        told = SentOffsets(part.high_watermark, part.last_stable_offset, part.log_start_offset)
        news = bool(part.records) or part.error_code != 0 or session.told.get(key) != told
        session.told[key] = told
        if part.records:
            session.served(key)
        return news

    # --- waiting ------------------------------------------------------------------------------

    def _park(self, fetch: Fetch) -> None:
        state = self._store.state
        self._waiting[fetch.request] = fetch
        for name, _, number in fetch.wanted:
            topic = state.topics.get(name)
            if topic is not None:
                key = topic.topic_id, number
                fetch.keys.append(key)
                self._by_partition.setdefault(key, {})[fetch.request] = fetch

    def _unpark(self, fetch: Fetch) -> None:
        if fetch.timer is not None:
            fetch.timer.cancel()
        self._waiting.pop(fetch.request, None)
        for key in fetch.keys:
            held = self._by_partition.get(key)
            if held is not None:
                held.pop(fetch.request, None)
                if not held:
                    del self._by_partition[key]
        fetch.keys.clear()

    def wake(self, written: dict[tuple[bytes, int], int]) -> None:
        """Records were appended: who waits for them is answered."""
        woken: dict[ClientRequest, Fetch] = {}
        for key, size in written.items():
            for request, fetch in self._by_partition.get(key, {}).items():
                fetch.appended_bytes += size
                woken[request] = fetch
        for fetch in woken.values():
            enough = fetch.appended_bytes >= fetch.asked.min_bytes
            if (enough or fetch.asked.isolation_level == COMMITTED) and self._try(
                fetch, final=False
            ):
                self._unpark(fetch)

    def topics_changed(self) -> None:
        """A topic came or went: who waits for one that is gone is told."""
        for fetch in list(self._waiting.values()):
            if self._try(fetch, final=False):
                self._unpark(fetch)

    def _finish(self, fetches: Iterable[Fetch]) -> None:
        for fetch in fetches:
            self._unpark(fetch)
            self._try(fetch, final=True)

    def drop(self, link: KafkaConnection) -> None:
        """A connection is gone, and what it waited for."""
        self._slow.discard(link)
        for fetch in [one for one in self._waiting.values() if one.request.link is link]:
            self._unpark(fetch)

    def release_all(self) -> None:
        """Answer everybody: the broker ends."""
        self._finish(list(self._waiting.values()))


def _damaged(number: int) -> FetchedPartition:
    """What is answered from where a partition's log is damaged."""
    code = ErrorCode.KAFKA_STORAGE_ERROR
    return FetchedPartition(partition=number, error_code=code, aborted=[])


def check_epoch(epoch: int) -> None:
    """Refuse a client that knows another leader."""
    if epoch < 0:
        return
    if epoch < LEADER_EPOCH:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    if epoch > LEADER_EPOCH:
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
