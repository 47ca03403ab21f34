"""The prediction topic: what was asked and answered, as records of `predictions.SERVICE`.

A request puts itself into a bounded queue; a thread makes the records and gives them over, many at
once, and another one writes what is large to the blob store. Nobody waits for either: when the
queue or the producer's buffer is full, or no broker takes a record in time, it is dropped and
counted. What is in a record is decided in `prediction_record`.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from holdfast.serve.prediction_record import (
    BlobReference,
    RecordWriter,
    blobs_of,
    id_of,
    is_sampled,
    size_of,
)
from holdfast.serve.predictions import (
    PREDICTIONS_CLOSE_S,
    PREDICTIONS_WAITING_BYTES_MAX,
    PREDICTIONS_WAITING_MAX,
)
from holdfast.serve.records import PredictionCounts, PredictionPolicy
from holdfast.storage.lapsing import put_lapsing
from holdfast.system import logs
from holdfast.system.backoff import Backoff
from holdfast.system.retries import Retries
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.wire.errors import HoldfastError, RetryError

if TYPE_CHECKING:
    from holdfast.serve.protocol.tensors import InferAnswer, InferRequest
    from holdfast.storage import Blobs
    from holdfast.storage.keys import BytesLike
    from holdfast.topics.connection import Connection
    from holdfast.topics.lossy import LossyProducer, LossyRecord

# Predictions gather for so long before the thread looks at them: it wakes up less often.
PREDICTIONS_GATHER_S: Final = 0.05
# So many are made into records without a pause, and then there is one: Python's lock is the event
# loop's for the rest of the time. A record takes some microseconds.
PREDICTIONS_AT_ONCE: Final = 32
PREDICTIONS_PAUSE_S: Final = 0.000_05
# Of a topic that is made for them. Each has batches of its own, and one carries more than a service
# answers; a topic that is there is left as it is.
PREDICTIONS_PARTITIONS: Final = 1
# Batches gather for so long in the producer: each costs the broker a millisecond and a write.
PREDICTIONS_LINGER_MS: Final = 500
# What waits in the producer for a broker that is away.
PREDICTIONS_BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024
# How often it is heard what became of records while there are no new ones.
PREDICTIONS_LOOK_S: Final = 0.5
# A cluster without topics is asked again so late, at first and at last.
PREDICTIONS_RETRY_S: Final = (0.5, 10.0)

log = logs.get(__name__)


# A request, its answer, its id, when and how long, and the bytes of its tensors.
_Noted = tuple["InferRequest", "InferAnswer", str, float, float, int]


def topic_of(service: str) -> str:
    return f"predictions.{service}"


class PredictionTopic:
    """Tells the topic of one service what a replica has answered. `note` and `configure` are for
    the event loop. `connect` gives the cluster's topics, `blobs` its store; both may raise."""

    def __init__(
        self,
        service: str,
        replica: int,
        policy: PredictionPolicy,
        connect: Callable[[], Connection],
        blobs: Callable[[], Blobs],
        *,
        waiting_max: int = PREDICTIONS_WAITING_MAX,
    ) -> None:
        self.topic = topic_of(service)
        self._service = service
        self._replica = replica
        self._policy = policy
        self._writer = RecordWriter(service, replica, policy)
        self._connect = connect
        self._blobs = blobs
        self._waiting_max = waiting_max
        self._names = (f"{secrets.token_hex(8)}-{number:x}" for number in count())
        # Counted by the loop; what the threads count is below.
        self._noted_bytes = 0
        self._not_taken = 0
        self._queue: deque[_Noted] = deque()
        self._wake = threading.Event()
        self._resting = False
        self._ended = False
        # The thread that makes records.
        self._done_bytes = 0
        self._sent = 0
        self._lost = 0
        self._kept_s = 0.0  # what the topic's retention was set to
        self._trouble = ""
        self._producer: LossyProducer | None = None
        self._backoff = Backoff(*PREDICTIONS_RETRY_S)
        self._retries = Retries("telling predictions to their topic", sys.maxsize)
        # The thread that writes blobs.
        self._large: deque[_Noted] = deque()
        self._large_wake = threading.Event()
        self._ready: deque[LossyRecord] = deque()
        self._blobs_done_bytes = 0
        self._blobs_lost = 0
        self._blobs_thread: OwnedThread | None = None
        self._thread = start_thread(self._run, "predictions-topic")

    # --- the loop --------------------------------------------------------------------------------

    def note(self, request: InferRequest, answer: InferAnswer, ms: float) -> None:
        """Tell this, soon, if it is one of those that are told. The arrays must not change."""
        request_id = id_of(request) or next(self._names)
        share = self._policy.sample
        if share < 1.0 and not is_sampled(request_id, share):
            return
        size = size_of(request, answer)
        waiting = self._noted_bytes - self._done_bytes - self._blobs_done_bytes
        if (
            len(self._queue) + len(self._large) >= self._waiting_max
            or waiting + size > PREDICTIONS_WAITING_BYTES_MAX
        ):
            self._not_taken += 1
            return
        self._noted_bytes += size
        self._queue.append((request, answer, request_id, time.time(), ms, size))
        if self._resting:
            self._resting = False
            self._wake.set()

    def configure(self, policy: PredictionPolicy) -> None:
        """From now on tell what this says."""
        self._policy = policy
        self._writer = RecordWriter(self._service, self._replica, policy)
        self._wake.set()

    def counts(self) -> PredictionCounts:
        producer = self._producer
        failed = producer.failed if producer is not None else 0
        buffered = producer.waiting if producer is not None else 0
        return PredictionCounts(
            sent=max(0, self._sent - failed - buffered),
            dropped=self._not_taken + self._lost + self._blobs_lost + failed,
            waiting=len(self._queue) + len(self._large) + len(self._ready) + buffered,
            why=self._trouble,
        )

    def close(self) -> None:
        """Tell what waits, and end. Topics and stores that are away are not waited for long."""
        self._ended = True
        self._wake.set()
        self._large_wake.set()
        self._thread.join(2 * PREDICTIONS_CLOSE_S)

    # --- the thread that makes records -----------------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            try:
                self._step()
            except Exception as error:  # a bug of ours: it costs records, and no answer
                self._trouble = f"{type(error).__name__}: {error}"
                self._wake.wait(self._retries.failed(error))
            else:
                self._retries.well()
            self._rest()
        try:
            self._finish()
        except Exception as error:
            self._retries.failed(error)

    def _rest(self) -> None:
        """Until there is something to tell, or something may be heard."""
        if not self._queue and not self._ready:
            self._resting = True
            if not self._queue and not self._ended:
                hears = self._trouble or (self._producer is not None and self._producer.waiting)
                self._wake.wait(PREDICTIONS_LOOK_S if hears else None)
            self._resting = False
            self._wake.clear()
        if not self._ended:
            time.sleep(PREDICTIONS_GATHER_S)

    def _step(self) -> None:
        if not self._open():
            return
        while self._queue:
            self._send([self._queue.popleft() for _ in range(self._at_once())])
            if self._queue:
                time.sleep(PREDICTIONS_PAUSE_S)
        while self._ready:
            self._give([self._ready.popleft()])
        assert self._producer is not None
        self._producer.serve()
        if self._producer.fatal:
            self._close_producer(0.0)
        elif self._producer.why is None:
            self._trouble = ""
        else:
            self._trouble = self._producer.why.sentence

    def _at_once(self) -> int:
        return min(PREDICTIONS_AT_ONCE, len(self._queue))

    def _send(self, noted: list[_Noted]) -> None:
        policy, writer = self._policy, self._writer
        records: list[LossyRecord] = []
        for one in noted:
            request, answer, request_id, at_s, ms, size = one
            # Nothing is large where all of it is not.
            if size > policy.blob_bytes and any(blobs_of(request, answer, policy)):
                self._set_aside(one)
                continue
            self._done_bytes += size
            try:
                value = writer.write(request, answer, request_id, at_s, ms)
            except Exception as error:  # a bug of ours: it costs this record
                self._lost += 1
                self._retries.failed(error)
            else:
                records.append(_keyed(request_id, value))
        self._give(records)

    def _give(self, records: list[LossyRecord]) -> None:
        assert self._producer is not None
        taken = self._producer.send_all(records)
        self._sent += taken
        self._lost += len(records) - taken

    # --- where it goes ---------------------------------------------------------------------------

    def _open(self) -> bool:
        """Whether there is a producer. The queue waits for one, as far as it may grow."""
        if self._producer is not None and self._kept_s == self._policy.keep_s:
            return True
        from holdfast.topics.lossy import LossyProducer  # noqa: PLC0415  # it loads librdkafka

        try:
            connection = self._connect()
            try:
                self._keep(connection)
            finally:
                address = connection.address
                connection.close()
            if self._producer is None:
                self._producer = LossyProducer(
                    address,
                    self.topic,
                    linger_ms=PREDICTIONS_LINGER_MS,
                    buffer_bytes=PREDICTIONS_BUFFER_BYTES_MAX,
                )
        except HoldfastError as error:
            if error.sentence != self._trouble:
                log.warning("predictions do not reach their topic", reason=str(error))
            self._trouble = error.sentence
            self._pause(self._backoff.failed())
            return self._producer is not None
        self._backoff.succeeded()
        self._trouble = ""
        return True

    def _keep(self, connection: Connection) -> None:
        """Have the topic, and its retention. Who may not change it still writes to it."""
        keep_s = self._policy.keep_s
        configs = {"retention.ms": str(int(1_000 * keep_s))}
        try:
            if not connection.admin.ensure(self.topic, PREDICTIONS_PARTITIONS, configs=configs):
                found = connection.admin.describe(self.topic).configs
                if any(found.get(name) != value for name, value in configs.items()):
                    connection.admin.alter(self.topic, configs=configs)
        except RetryError:
            raise
        except HoldfastError as error:
            log.warning("the topic of predictions stays as it is", reason=str(error))
        self._kept_s = keep_s

    def _pause(self, seconds: float) -> None:
        """Before the next try; the end is not waited for."""
        if not self._ended:
            self._wake.wait(seconds)
            self._wake.clear()

    def _finish(self) -> None:
        """What waits has a little time, if there is somebody to take it."""
        until_s = time.monotonic() + PREDICTIONS_CLOSE_S
        if self._producer is None:
            self._lost += len(self._queue)
            return
        self._step()
        while self._blobs_thread is not None and self._blobs_thread.is_alive():
            if time.monotonic() > until_s:
                break
            self._blobs_thread.join(PREDICTIONS_GATHER_S)
            self._step()
        self._close_producer(max(0.1, until_s - time.monotonic()))

    def _close_producer(self, timeout_s: float) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(timeout_s)
            self._lost += producer.failed
            self._sent -= producer.failed

    # --- the thread that writes blobs ------------------------------------------------------------

    def _set_aside(self, noted: _Noted) -> None:
        self._large.append(noted)
        self._large_wake.set()
        if self._blobs_thread is None:
            self._blobs_thread = start_thread(self._write_blobs, "predictions-blobs")

    def _write_blobs(self) -> None:
        retries = Retries("writing what predictions refer to", sys.maxsize)
        store: Blobs | None = None
        while True:
            if not self._large:
                if self._ended:
                    return
                self._large_wake.wait()
                self._large_wake.clear()
                continue
            policy, writer = self._policy, self._writer
            request, answer, request_id, at_s, ms, size = self._large.popleft()
            try:
                store = store or self._blobs()
                put = partial(self._put, store, policy.keep_s)
                names = blobs_of(request, answer, policy)
                value = writer.write(request, answer, request_id, at_s, ms, names, put)
                self._ready.append(_keyed(request_id, value))
            except HoldfastError as error:
                self._blobs_lost += 1
                log.warning("a prediction is not told: its blob is not written", reason=str(error))
            except Exception as error:
                self._blobs_lost += 1
                retries.failed(error)
            self._blobs_done_bytes += size
            self._wake.set()

    def _put(self, store: Blobs, keep_s: float, data: BytesLike) -> BlobReference:
        blob = put_lapsing(store, self.topic.replace(".", "/", 1), data, keep_s)
        return BlobReference(blob.key, blob.digest.partition(":")[2], blob.size_bytes)


def _keyed(request_id: str, value: bytes) -> LossyRecord:
    """Both records of a request that was tried twice are in one partition."""
    return {"key": request_id.encode(errors="replace"), "value": value}
