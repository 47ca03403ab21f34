"""One partition's log as the core sees it: offsets, producers, open and aborted transactions.

Records are the disk's business. A batch that is applied is durable already, so the high watermark
is the end of the log; the last stable offset is the first record of the oldest open transaction.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.topics.broker.core.batch import ABORT, Header
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError

# Kafka remembers so many of a producer's batches; clients have at most five in flight.
BATCHES_REMEMBERED: Final = 5
# Producers that one partition remembers; beyond it the one that was silent longest is forgotten.
PRODUCERS_MAX: Final = 10_000
_SEQUENCE_MAX: Final = 2**31 - 1


class SentBatch(msgspec.Struct, array_like=True):
    """A batch that is in the log: what a duplicate of it is recognized by."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp: int


class ProducerState(msgspec.Struct, array_like=True):
    """What a partition knows of a producer. No batches: nothing since its epoch began."""

    epoch: int
    batches: list[SentBatch]
    last_ms: int


class Aborted(msgspec.Struct, array_like=True, frozen=True):
    """A transaction that was aborted: from its first record to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class Partition(msgspec.Struct, array_like=True):
    """The state of one partition."""

    log_start: int = 0
    next_offset: int = 0
    producers: dict[int, ProducerState] = {}
    open_from: dict[int, int] = {}  # by producer: where its transaction here begins
    aborted: list[Aborted] = []

    @property
    def high_watermark(self) -> int:
        return self.next_offset

    @property
    def last_stable_offset(self) -> int:
        if not self.open_from:
            return self.next_offset
        return max(min(self.open_from.values()), self.log_start)

    def duplicate_of(self, header: Header) -> SentBatch | None:
        """The same batch, if it is in the log already and still remembered."""
        producer = self.producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return None
        wanted = header.base_sequence, header.last_sequence
        for sent in producer.batches:
            if (sent.first_sequence, sent.last_sequence) == wanted:
                return sent
        return None

    def check_sequence(self, header: Header) -> None:
        """Refuse a batch of a fenced producer, and one that leaves a gap."""
        producer = self.producers.get(header.producer_id)
        if producer is None:
            return  # expired, or never seen: any sequence is taken
        if header.producer_epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {producer.epoch}, not"
                f" {header.producer_epoch}",
            )
        last = producer.batches[-1].last_sequence if producer.batches else -1
        if header.producer_epoch > producer.epoch:
            last = -1
        expected = 0 if last == _SEQUENCE_MAX else last + 1
        if header.base_sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence} where"
                f" {expected} follows",
            )

    def append(self, header: Header, now_ms: int) -> int:
        """Take a batch; its offset. Its sequence has been checked."""
        base_offset = self.next_offset
        self.next_offset += header.last_offset_delta + 1
        if header.producer_id >= 0:
            producer = self._producer(header.producer_id, header.producer_epoch)
            producer.last_ms = now_ms
            sent = SentBatch(
                header.base_sequence, header.last_sequence, base_offset, header.max_timestamp
            )
            producer.batches.append(sent)
            del producer.batches[:-BATCHES_REMEMBERED]
            if header.is_transactional:
                self.open_from.setdefault(header.producer_id, base_offset)
        return base_offset

    def append_marker(self, kind: int, producer_id: int, epoch: int, now_ms: int) -> int:
        """Take a transaction's end; its offset."""
        offset = self.next_offset
        self.next_offset += 1
        producer = self._producer(producer_id, epoch)
        producer.last_ms = now_ms
        first = self.open_from.pop(producer_id, None)
        if first is not None and kind == ABORT:
            self.aborted.append(Aborted(producer_id, first, offset))
        return offset

    def _producer(self, producer_id: int, epoch: int) -> ProducerState:
        producer = self.producers.get(producer_id)
        if producer is None:
            if len(self.producers) >= PRODUCERS_MAX:
                self._forget_oldest()
            producer = self.producers[producer_id] = ProducerState(epoch, [], 0)
        elif producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
        return producer

    def _forget_oldest(self) -> None:
        idle = (one for one in self.producers if one not in self.open_from)
        oldest = min(idle, key=lambda one: self.producers[one].last_ms, default=None)
        if oldest is not None:
            del self.producers[oldest]

    def aborted_between(self, first: int, end: int) -> list[Aborted]:
        """Aborted transactions that overlap these offsets, by their first offset."""
        found = [one for one in self.aborted if one.last_offset >= first and one.first_offset < end]
        return sorted(found, key=lambda one: one.first_offset)

    def trim(self, offset: int) -> None:
        """Begin here; what lay before is gone."""
        self.log_start = max(self.log_start, min(offset, self.next_offset))
        self.aborted = [one for one in self.aborted if one.last_offset >= self.log_start]

    def expire_producers(self, before_ms: int) -> None:
        """Forget who has not written since then and has no transaction open here."""
        gone = [
            one
            for one, producer in self.producers.items()
            if producer.last_ms < before_ms and one not in self.open_from
        ]
        for one in gone:
            del self.producers[one]
