"""`metrics.<job>`: the numbers of each step (the loss, what `run.log` was given), for readers.

A step adds them to a short list and goes on. A thread gives the list to the topic a few times a
second. While topics are away, or slower than the steps, the oldest numbers are dropped and counted;
each record says how many were by then.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.system import logs
from holdfast.system.tasks import start_thread
from holdfast.wire.errors import HoldfastError, MissingExtra

if TYPE_CHECKING:
    from holdfast.topics import Connection, Producer

TOPIC: Final = "metrics."
# Steps whose numbers wait for the topic: a minute of fast ones.
METRICS_WAITING_MAX: Final = 10_000
METRICS_EVERY_S: Final = 0.25
# What is left when the script ends has so long.
METRICS_END_S: Final = 3.0
# Topics that are away are tried again after this.
METRICS_AWAY_S: Final = 5.0

log = logs.get(__name__)


class StepMetrics(msgspec.Struct, frozen=True):
    """One record. A number that is none (NaN) is null."""

    job: str
    worker: int
    step: int
    at_s: float
    metrics: dict[str, float]
    dropped: int = 0


class MetricTopic:
    """For the thread of the steps; `close` it at the end. Nothing that goes wrong here is an error
    of the training."""

    def __init__(self, job: str, worker: int, connect: Callable[[], Connection]) -> None:
        self._job, self._worker = job, worker
        self._connect = connect
        self._waiting: deque[StepMetrics] = deque(maxlen=METRICS_WAITING_MAX)
        self._dropped = 0
        self._ended = threading.Event()
        self._over = False  # nobody reads the list any more
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._thread = start_thread(self._run, "metrics", self._failed)

    @property
    def dropped(self) -> int:
        """Steps whose numbers nobody got, as far as is known."""
        return self._dropped + (self._producer.failed if self._producer is not None else 0)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """This step is complete. Never waits."""
        if self._over:
            return
        self._dropped += len(self._waiting) == METRICS_WAITING_MAX
        values = {name: float(value) for name, value in metrics.items()}
        record = StepMetrics(self._job, self._worker, step, time.time(), values, self._dropped)
        self._waiting.append(record)

    def close(self) -> None:
        """Give the topic what is left, for a moment."""
        self._ended.set()
        self._thread.join(2 * METRICS_END_S)
        if self.dropped:
            log.warning("numbers of steps were not told", topic=self._topic, steps=self.dropped)

    # --- in its thread ----------------------------------------------------------------------------

    @property
    def _topic(self) -> str:
        return f"{TOPIC}{self._job}"

    def _run(self) -> None:
        while not self._ended.wait(METRICS_EVERY_S):
            if not self._waiting:
                continue
            try:
                self._send()
            except MissingExtra:
                raise
            except HoldfastError as error:
                log.warning("metrics wait for topics", reason=str(error))
                self._ended.wait(METRICS_AWAY_S)
        try:
            if self._waiting:
                self._send()
            if self._producer is not None:
                self._producer.close(METRICS_END_S)
        finally:
            self._over = True
            self._dropped += len(self._waiting)
            if self._connection is not None:
                self._connection.close()

    def _send(self) -> None:
        producer = self._producer or self._open()
        while self._waiting:
            record = self._waiting.popleft()
            key = str(record.worker)
            if not producer.try_send(self._topic, msgspec.json.encode(record), key=key):
                self._waiting.appendleft(record)
                return

    def _open(self) -> Producer:
        if self._connection is None:
            self._connection = self._connect()
        self._connection.admin.ensure(self._topic)
        self._producer = self._connection.producer()
        return self._producer

    def _failed(self, error: BaseException) -> None:
        self._over = True
        reason = error.sentence if isinstance(error, HoldfastError) else repr(error)
        log.warning("metrics are not told", topic=self._topic, reason=reason)
