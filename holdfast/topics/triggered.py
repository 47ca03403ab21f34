"""What a job reads that a trigger has started: its range of a topic, all of it, and nothing else.

    given = topics.triggered()
    for record in topics.read_range(given, codec=topics.JSON):
        ...

A worker that is started again gets the same range, and reads the same records. Each call reads the
range from its beginning: how far a job has come is for the job to keep.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from typing import Any, Final

from holdfast.system import logs
from holdfast.topics.address import TopicsAddress
from holdfast.topics.codecs import BYTES, RecordCodec
from holdfast.topics.connection import Connection, connect
from holdfast.topics.failures import is_named, translate
from holdfast.topics.kafka import ANSWER_S, WAIT_S, ForkGuard, common_settings, confluent
from holdfast.topics.records import Record
from holdfast.wire.errors import Unavailable
from holdfast.wire.record_filter import ParsedRecord, RecordFilter, json_or_none, parse_filter
from holdfast.wire.triggers import OffsetRange, TriggeredRange, ranges_text, triggered_in

# Records that are taken from librdkafka at a time.
_BATCH: Final = 500
# What librdkafka reads ahead.
_AHEAD_KBYTES: Final = 16 * 1024
# Brokers that do not answer for so long are told to whoever reads.
_AWAY_S: Final = 60.0

log = logs.get(__name__)


def triggered() -> TriggeredRange | None:
    """The range that the trigger has started this job for; None: no trigger has."""
    return triggered_in(os.environ)


def read_range(
    given: TriggeredRange,
    address: str | TopicsAddress | Connection | None = None,
    codec: RecordCodec = BYTES,
) -> Iterator[Record]:
    """The committed records of the range that meet its filter, of each partition in its order. It
    ends with the range. What retention has removed meanwhile is missing, and the log says so."""
    where = address if isinstance(address, Connection) else connect(address)
    reader = _RangeReader(where.address, given, codec)
    condition = parse_filter(given.filter) if given.filter else None
    try:
        for record in reader.records():
            if condition is None or meets(condition, record):
                yield record
    finally:
        reader.close()


def meets(condition: RecordFilter, record: Record) -> bool:
    """Whether the condition is true of the record; its value is read as JSON, not by its codec."""
    key = record.key
    return condition.matches(
        ParsedRecord(
            json_or_none(record.raw) if condition.reads_value else None,
            None if key is None else key.decode(errors="replace"),
            {
                name: "" if value is None else value.decode(errors="replace")
                for name, value in record.headers.items()
            },
            record.partition,
            record.offset,
            record.at,
        )
    )


class _RangeReader:
    """One consumer without a group that is at the range's partitions until each has passed its end.
    The end is passed by a record behind it, or by the end of the partition: the last offsets of a
    range may have no record (a transaction's mark, a compacted one)."""

    def __init__(self, address: TopicsAddress, given: TriggeredRange, codec: RecordCodec) -> None:
        self._given = given
        self._codec = codec
        self._topic = address.full_name(given.topic)
        self._left = {each.partition: each for each in given.ranges if each.count > 0}
        self._answered_s = time.monotonic()
        settings: dict[str, Any] = {
            **address.client_settings(),
            "group.id": f"range-{uuid.uuid4().hex}",  # librdkafka wants one; nothing is committed
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": _AHEAD_KBYTES,
        }
        self._kafka: Any = confluent().Consumer(common_settings(settings))
        self._guard = ForkGuard("reader of a range", self._kafka)

    def records(self) -> Iterator[Record]:
        self._note_removed()
        place = confluent().TopicPartition
        starts = [place(self._topic, each.partition, each.first) for each in self._left.values()]
        if starts:
            self._kafka.assign(starts)
        while self._left:
            self._guard.check()
            messages = self._kafka.consume(_BATCH, WAIT_S)
            for message in messages:
                record = self._taken(message)
                if record is not None:
                    yield record
            self._check_reach(bool(messages))

    def close(self) -> None:
        if self._guard.is_ours():
            self._kafka.close()
        self._guard.release()

    def _taken(self, message: Any) -> Record | None:
        """The record, if it is one of the range."""
        error = message.error()
        partition, offset = message.partition(), message.offset()
        if error is not None and not is_named(error, "PARTITION_EOF"):
            if error.fatal() or not error.retriable():
                raise translate(error, f"the range of topic {self._given.topic!r} cannot be read")
            return None
        wanted = self._left.get(partition)
        if wanted is None:
            return None
        if offset >= wanted.end - (error is None):
            self._end(partition)
        if error is not None or not wanted.first <= offset < wanted.end:
            return None
        _, at = message.timestamp()
        return Record(
            self._given.topic,
            partition,
            offset,
            key=message.key(),
            raw=message.value(),
            headers=dict(message.headers() or ()),
            at=at,
            leader_epoch=message.leader_epoch(),
            codec=self._codec,
        )

    def _end(self, partition: int) -> None:
        """This partition is read: nothing behind the range is fetched any more."""
        del self._left[partition]
        place = confluent().TopicPartition
        self._kafka.incremental_unassign([place(self._topic, partition)])

    def _note_removed(self) -> None:
        """Say what retention has removed before it was read, and pass over it."""
        gone = []
        for each in list(self._left.values()):
            place = confluent().TopicPartition(self._topic, each.partition)
            try:
                begins, _ = self._kafka.get_watermark_offsets(place, timeout=ANSWER_S)
            except confluent().KafkaException as error:
                raise translate(error, f"topic {self._given.topic!r} cannot be read") from error
            if begins <= each.first:
                continue
            gone.append(OffsetRange(each.partition, each.first, min(begins, each.end)))
            if begins >= each.end:
                del self._left[each.partition]
        if gone:
            log.warning(
                "retention has removed records before they were read",
                topic=self._given.topic,
                records=sum(each.count for each in gone),
                offsets=ranges_text(tuple(gone)),
            )

    def _check_reach(self, answered: bool) -> None:
        now_s = time.monotonic()
        if answered:
            self._answered_s = now_s
        elif now_s - self._answered_s > _AWAY_S:
            raise Unavailable(
                f"topic {self._given.topic!r} has given nothing for {_AWAY_S:g} s",
                why=f"partitions {sorted(self._left)} are not read to the end of the range",
                fix="look whether the brokers run: holdfast topics describe; then try again",
            )
