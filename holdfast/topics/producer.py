"""Writing to topics: futures, a bounded buffer with back-pressure, and an end that says what was
not written.

One owned thread serves librdkafka: deliveries, flushes and transactions. So callbacks never run in
a thread that Ctrl-C may interrupt, and whoever waits can be interrupted at any time.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from holdfast.system.tasks import start_thread
from holdfast.topics.address import TopicsAddress
from holdfast.topics.codecs import BYTES, RecordCodec
from holdfast.topics.failures import translate
from holdfast.topics.kafka import ANSWER_S, TOPIC_KNOWN_S, ForkGuard, confluent, opened
from holdfast.topics.records import TopicPosition
from holdfast.wire.errors import Full, HoldfastError, TimedOut, Usage

T = TypeVar("T")
Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]

LINGER_MS: Final = 5.0
# What waits for the broker, at most: more would only be lost with the process.
BUFFER_BYTES_MAX: Final = 32 << 20
BUFFER_RECORDS_MAX: Final = 100_000
# What this side lets through in one record; the topic's max.message.bytes says what is taken.
RECORD_BYTES_MAX: Final = 64 << 20
# A record that no broker has taken for so long has failed.
DELIVERY_S: Final = 120.0
# How long `send` waits for space in the buffer.
SEND_S: Final = 60.0
CLOSE_S: Final = 30.0
# What is left when a program ends that has closed nothing has so long.
EXIT_S: Final = 5.0
# So many failures whose futures nobody has read are kept for the next flush.
FAILURES_KEPT: Final = 1_000
_SERVE_S: Final = 0.02  # while something is under way: a job waits for this at most
_IDLE_S: Final = 5.0  # librdkafka's log is emptied so often
_ENDED_S: Final = 10.0
_FATAL: Final = "the producer cannot go on"

_log = logging.getLogger(__name__)


class DeliveryFuture(Future[TopicPosition]):
    """A future that knows whether somebody has read how it ended."""

    was_read = False

    def result(self, timeout: float | None = None) -> TopicPosition:
        self.was_read = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.was_read = True
        return super().exception(timeout)


class Producer:
    """Writes records, each once and in the order in which they were sent (idempotent, `acks=all`).
    Any thread may use it. Records with the same key go to the same partition, the one that Kafka's
    own clients choose."""

    def __init__(
        self,
        address: TopicsAddress,
        *,
        codec: RecordCodec = BYTES,
        transactional_id: str | None = None,
        linger_ms: float = LINGER_MS,
        compression: str = "none",
        buffer_bytes: int = BUFFER_BYTES_MAX,
        delivery_s: float = DELIVERY_S,
        send_s: float = SEND_S,
    ) -> None:
        asked: dict[str, Any] = {
            **address.client_settings(),
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": linger_ms,
            "compression.type": compression,
            "queue.buffering.max.kbytes": max(1, buffer_bytes >> 10),
            "queue.buffering.max.messages": BUFFER_RECORDS_MAX,
            "message.max.bytes": RECORD_BYTES_MAX,
            "message.timeout.ms": int(delivery_s * 1000),
            "topic.metadata.propagation.max.ms": int(TOPIC_KNOWN_S * 1000),
            "error_cb": self._fail,
        }
        if transactional_id is not None:
            asked["transactional.id"] = address.full_name(transactional_id)
            asked["transaction.timeout.ms"] = int(delivery_s * 1000)
        self.transactional_id = transactional_id
        self._address = address
        self._codec = codec
        self._send_s = send_s
        self._buffer_bytes = buffer_bytes
        self._failed = 0
        self._unseen: deque[DeliveryFuture] = deque(maxlen=FAILURES_KEPT)
        self._fatal: HoldfastError | None = None
        self._changed = threading.Condition()
        self._waiting = 0  # records without a delivery report
        self._flushing = 0  # how many wait for a flush
        self._jobs: deque[Callable[[], None]] = deque()
        self._closed = False
        self._ending = False
        self._served_by = 0
        self._kafka = opened("Producer", asked)
        self._guard = ForkGuard("producer", self._kafka)
        self._thread = start_thread(self._serve, "topics-producer")
        atexit.register(self._at_exit)

    # --- sending ----------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers = (),
        at: int | None = None,
        partition: int | None = None,
    ) -> Future[TopicPosition]:
        """Give a record to the buffer; the future has its place when it is on the broker's disk, or
        the error. While the buffer is full this waits, and raises `Full` when that takes too long.
        `at`: its time, in milliseconds since 1970, if it is not now."""
        future = DeliveryFuture()
        future.set_running_or_notify_cancel()  # what is under way cannot be called off
        report = partial(self._delivered, future)
        given = self._given(topic, value, key, headers, at, partition)
        deadline_s = time.monotonic() + self._send_s
        while not self._put(given, report):
            self._wait_for_space(topic, deadline_s)
        return future

    def try_send(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers = (),
        at: int | None = None,
        partition: int | None = None,
    ) -> bool:
        """`send` that never waits: whether the buffer took the record. One that it took and that is
        not written later counts in `failed`."""
        given = self._given(topic, value, key, headers, at, partition)
        return self._put(given, partial(self._delivered, None))

    @property
    def failed(self) -> int:
        """How many records were taken and could not be written."""
        return self._failed

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def waiting(self) -> int:
        """How many records wait for the broker's answer."""
        return self._waiting

    def flush(self, timeout_s: float = ANSWER_S) -> None:
        """Return when every record has its answer; `TimedOut` says how many have none. Raises also
        what could not be written since the last flush and whose future nobody has read."""
        self._guard.check()
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                done = self._changed.wait_for(lambda: not self._waiting, timeout_s)
            finally:
                self._flushing -= 1
            left = self._waiting
            unseen = [future for future in self._unseen if not future.was_read]
            self._unseen.clear()
        if unseen:
            first = unseen[0].exception()
            assert isinstance(first, HoldfastError)
            raise type(first)(
                f"{len(unseen)} records were not written", why=first.sentence, fix=first.fix
            ) from first
        if not done:
            raise TimedOut(
                f"{left} records have no answer after {timeout_s:g} s",
                why="the broker is away, or slower than what is sent",
                fix="wait longer, or send less; `flush` may be called again",
            )

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Flush and end. What could not be written in time is given up: its futures say so, and so
        does the error that is raised here."""
        self._guard.check()
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        atexit.unregister(self._at_exit)
        try:
            self.flush(timeout_s)
        finally:
            self._end()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- for transactions -------------------------------------------------------------------------

    def run(self, call: Callable[[Any], T]) -> T:
        """Do it in the thread that serves librdkafka, with its handle; what it returns or raises.
        For transactions: what reports deliveries must not run in the caller's thread."""
        self._guard.check()
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(call(self._kafka))
            except BaseException as error:  # it is the caller's
                future.set_exception(error)

        with self._changed:
            self._refuse_if_closed()
            self._jobs.append(job)
            self._changed.notify_all()
        return future.result()

    def abandon(self) -> None:
        """Close it without waiting: what has no answer is given up, and its futures say so."""
        self._guard.check()
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        atexit.unregister(self._at_exit)
        self._end()

    @property
    def fatal(self) -> HoldfastError | None:
        """Why the producer cannot go on; librdkafka does not take up such a one again."""
        return self._fatal

    # --- inside -----------------------------------------------------------------------------------

    def _given(
        self,
        topic: str,
        value: Any,
        key: bytes | str | None,
        headers: Headers,
        at: int | None,
        partition: int | None,
    ) -> dict[str, Any]:
        data = None if value is None else self._codec.encode(value)
        given: dict[str, Any] = {"topic": self._address.full_name(topic), "value": data, "key": key}
        if headers:
            pairs = headers.items() if isinstance(headers, Mapping) else headers
            given["headers"] = list(pairs)
        if at is not None:
            given["timestamp"] = at
        if partition is not None:
            given["partition"] = partition
        return given

    def _put(self, given: dict[str, Any], report: Callable[[Any, Any], None]) -> bool:
        """Whether the buffer took it."""
        self._guard.check()
        with self._changed:
            self._refuse_if_closed()
            if self._fatal is not None:
                raise type(self._fatal)(
                    _FATAL, why=self._fatal.sentence, fix=self._fatal.fix
                ) from self._fatal
            self._waiting += 1  # before the report may come
            if self._waiting == 1:
                self._changed.notify_all()
        try:
            self._kafka.produce(on_delivery=report, **given)
        except BaseException as error:
            self._forget()
            if isinstance(error, BufferError):
                return False
            if isinstance(
                error, confluent().KafkaException | TypeError | ValueError | OverflowError
            ):
                topic = self._address.own_name(given["topic"]) or ""
                raise translate(error, f"a record for {topic!r} cannot be sent") from error
            raise
        return True

    def _wait_for_space(self, topic: str, deadline_s: float) -> None:
        """Return when something was delivered."""
        left_s = deadline_s - time.monotonic()
        in_callback = threading.get_ident() == self._served_by
        if left_s <= 0 or in_callback:
            why = (
                "a callback of a delivery cannot wait for deliveries"
                if in_callback
                else f"{self._waiting} records wait for the broker for {self._send_s:g} s"
            )
            raise Full(
                f"a record for {topic!r} finds the producer's buffer full",
                why=f"{why}; it holds {self._buffer_bytes} bytes",
                fix="look whether the broker runs; send less, or give the producer buffer_bytes=",
            )
        with self._changed:
            before = self._waiting
            self._changed.wait_for(lambda: self._waiting < before or self._closed, min(left_s, 0.1))

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Usage("the producer is closed", fix="open another one with cluster.producer()")

    def _delivered(self, future: DeliveryFuture | None, error: Any, message: Any) -> None:
        """A report; in the thread that serves librdkafka."""
        topic = self._address.own_name(message.topic()) or ""
        failure = None
        if error is not None:
            failure = translate(error, f"a record for {topic!r} was not written")
        if future is not None and failure is not None:
            future.set_exception(failure)
        elif future is not None:
            place = topic, message.partition(), message.offset(), message.leader_epoch()
            future.set_result(TopicPosition(*place))
        self._forget(future, failure)

    def _forget(
        self, future: DeliveryFuture | None = None, failure: HoldfastError | None = None
    ) -> None:
        """One record less is waited for."""
        with self._changed:
            self._waiting -= 1
            if failure is not None:
                self._failed += 1
                # A transaction that lost a record is not committed, and says so itself.
                if future is not None and self.transactional_id is None:
                    self._unseen.append(future)
            self._changed.notify_all()

    def _fail(self, error: Any) -> None:
        """librdkafka has something to say that belongs to no record."""
        if error.fatal():
            with self._changed:
                self._fatal = self._fatal or translate(error, _FATAL)
                self._changed.notify_all()

    def _serve(self) -> None:
        self._served_by = threading.get_ident()
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, _IDLE_S)
                if self._ending and not self._waiting and not self._jobs:
                    return
                job = self._jobs.popleft() if self._jobs else None
                flushing, waiting, ending = self._flushing, self._waiting, self._ending
            if ending:
                self._kafka.purge()
            if job is not None:
                job()
            elif flushing:
                self._kafka.flush(_SERVE_S)
            else:
                self._kafka.poll(_SERVE_S if waiting else 0)

    def _has_work(self) -> bool:
        return bool(self._waiting or self._jobs or self._ending)

    def _end(self) -> None:
        """What has no answer yet is given up; then the thread ends."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join(_ENDED_S)
        self._guard.release()
        self._kafka = None

    def _at_exit(self) -> None:
        """The program ends and has not closed it: nothing is dropped without a word."""
        if not self._guard.is_ours():
            return
        try:
            self.close(EXIT_S)
        except HoldfastError as error:
            _log.error("at the end of the program: %s", error.sentence)
