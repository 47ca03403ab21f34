"""Writing what may be lost, and costs little: lists of records, no future and no report for each.

For what a process tells beside its work. Nothing here waits: what finds the buffer full is not
taken, and what no broker takes in time is counted. `Producer` is for what must arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.topics.address import TopicsAddress
from holdfast.topics.failures import translate
from holdfast.topics.kafka import ForkGuard, common_settings, confluent
from holdfast.wire.errors import HoldfastError

# Records gather for so long: each batch costs the broker a write to its disk.
LOSSY_LINGER_MS: Final = 100
# What waits for a broker that is away, at most: more would be memory that nobody has planned for.
LOSSY_BUFFER_BYTES_MAX: Final = 32 << 20
LOSSY_BUFFER_RECORDS_MAX: Final = 100_000
# A record that no broker has taken for so long is lost.
LOSSY_DELIVERY_S: Final = 60.0

# What is given up is reported within this.
_PURGE_S: Final = 1.0

# What confluent-kafka takes: `key` and `value`.
LossyRecord = dict[str, bytes]


class LossyProducer:
    """Writes to one topic; for one thread, which calls `serve` now and then. Records with the same
    key go to the same partition, the one that Kafka's own clients choose."""

    def __init__(
        self,
        address: TopicsAddress,
        topic: str,
        *,
        linger_ms: int = LOSSY_LINGER_MS,
        buffer_bytes: int = LOSSY_BUFFER_BYTES_MAX,
        delivery_s: float = LOSSY_DELIVERY_S,
    ) -> None:
        self.failed = 0  # were taken, and could not be written
        self.why: HoldfastError | None = None  # what is in the way, while records wait
        self._topic = address.full_name(topic)
        self._shown = topic
        settings: dict[str, Any] = {
            **address.client_settings(),
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": linger_ms,
            "queue.buffering.max.kbytes": max(1, buffer_bytes >> 10),
            "queue.buffering.max.messages": LOSSY_BUFFER_RECORDS_MAX,
            "message.timeout.ms": int(1_000 * delivery_s),
            # Of each record that is written, nobody wants to hear.
            "delivery.report.only.error": True,
            "on_delivery": self._not_delivered,
            "error_cb": self._not_well,
        }
        try:
            self._kafka: Any = confluent().Producer(common_settings(settings))
        except Exception as error:  # what its settings are not, it says in its own words
            raise translate(error, "the producer cannot be opened") from error
        self._guard = ForkGuard("producer", self._kafka)
        self._fatal = False

    @property
    def fatal(self) -> bool:
        """Whether it cannot go on; another one can."""
        return self._fatal

    @property
    def waiting(self) -> int:
        """Records that were taken, and are neither written nor lost yet, as far as is known."""
        return len(self._kafka)

    def send_all(self, records: Sequence[LossyRecord]) -> int:
        """Give them to the buffer, in their order; how many it took. Never waits."""
        try:
            return int(self._kafka.produce_batch(self._topic, list(records)))
        except BufferError:
            return 0
        except confluent().KafkaException as error:
            self.why = translate(error, f"records for {self._shown!r} cannot be sent")
            return 0

    def serve(self) -> None:
        """Hear what became of records. Does not wait."""
        self._kafka.poll(0)
        if not len(self._kafka):
            self.why = None

    def close(self, timeout_s: float) -> None:
        """Write what waits, for so long at most; what is left counts in `failed`."""
        self._kafka.flush(timeout_s)
        if len(self._kafka):
            self._kafka.purge()
            self._kafka.flush(_PURGE_S)
        self._guard.release()

    def _not_delivered(self, error: Any, _message: Any) -> None:
        self.failed += 1
        self.why = translate(error, f"a record for {self._shown!r} was not written")

    def _not_well(self, error: Any) -> None:
        self.why = translate(error, f"records for {self._shown!r} wait")
        if error.fatal():
            self._fatal = True
