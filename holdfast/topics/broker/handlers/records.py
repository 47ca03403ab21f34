"""Produce, Fetch, and where records lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.topics.broker.core import batch, commands
from holdfast.topics.broker.core.acls import CLUSTER_NAME, Operation, ResourceKind
from holdfast.topics.broker.core.batch import LEADER_EPOCH
from holdfast.topics.broker.core.commands import AnyCommand
from holdfast.topics.broker.core.records import read_records, why_refused
from holdfast.topics.broker.core.state import Appended, CommandOutcome, Topic
from holdfast.topics.broker.disk.segment import DamagedSegment
from holdfast.topics.broker.fetching import COMMITTED, check_epoch
from holdfast.topics.broker.protocol.codec import NO_UUID, MalformedMessage
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError
from holdfast.topics.broker.protocol.data import (
    DeletedPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    EpochEnd,
    EpochEndTopic,
    ListedPartition,
    ListedTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    TrimmedTopic,
)
from holdfast.topics.broker.request import ClientRequest

if TYPE_CHECKING:
    from holdfast.topics.broker.broker import Broker

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
_WITH_START: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
)
ACKS: Final = (-1, 0, 1)
_ZSTD_FROM: Final = 7
NO_TIME: Final = -1
_BY_ID: Final = 13
_SEES_ABORTABLE: Final = 11


def find(
    broker: Broker, request: ClientRequest, name: str, number: int, operation: Operation
) -> Topic:
    """The topic, if it has this partition and whoever asks may do this to it."""
    if not broker.may(request, operation, ResourceKind.TOPIC, name):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = broker.state.topics.get(name)
    if topic is None or not 0 <= number < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


# --- Produce --------------------------------------------------------------------------------------


def produce(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, ProduceRequest)
    answers: list[ProducedTopic] = []
    accepted: list[tuple[ProducedPartition, commands.Append]] = []
    size = 0
    for topic in asked.topics:
        name = topic.name
        if request.version >= _BY_ID:
            known = broker.state.by_id.get(topic.topic_id)
            name = known.name if known else ""
        parts = []
        for one in topic.partitions:
            part = ProducedPartition(index=one.index)
            try:
                accepted.append((part, _accept(broker, request, asked, name, one)))
                size += len(one.records)
            except KafkaError as error:
                part.error_code, part.error_message = _shown(request, error.code), error.text
                part.log_start_offset = _start_beside(broker, error.code, name, one.index)
            parts.append(part)
        answers.append(ProducedTopic(name=topic.name, topic_id=topic.topic_id, partitions=parts))

    def done(outcomes: list[CommandOutcome]) -> None:
        for (part, command), outcome in zip(accepted, outcomes, strict=True):
            if outcome.error:
                part.error_code = _shown(request, outcome.error)
                part.error_message = outcome.text or None
                held = broker.state.by_id.get(command.topic_id)
                if held is not None and asked.transactional_id is None:
                    start = _start_beside(broker, outcome.error, held.name, part.index)
                    part.log_start_offset = start
            else:
                appended = outcome.value
                assert isinstance(appended, Appended)
                part.base_offset = appended.base_offset
                part.log_append_time_ms = appended.append_time_ms
                part.log_start_offset = appended.log_start
        _answer_produce(request, asked, answers)

    if accepted:
        broker.write([command for _, command in accepted], done, size)
    else:
        _answer_produce(request, asked, answers)


def _start_beside(broker: Broker, error: ErrorCode, name: str, number: int) -> int:
    """Where the log begins, with those errors to which Kafka adds it."""
    partition = broker.state.partition(name, number) if error in _WITH_START else None
    return -1 if partition is None else partition.log_start


def _answer_produce(
    request: ClientRequest, asked: ProduceRequest, answers: list[ProducedTopic]
) -> None:
    if asked.acks != 0:
        request.answer(ProduceResponse(topics=answers))
        return
    request.no_answer()
    if any(part.error_code for topic in answers for part in topic.partitions):
        request.link.close()  # nobody listens: this is how Kafka says that something is wrong


def _shown(request: ClientRequest, code: ErrorCode) -> int:
    """The error as this version of the request knows it."""
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and request.version >= _BY_ID:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if code is ErrorCode.INVALID_TXN_STATE and request.version >= _SEES_ABORTABLE:
        return ErrorCode.TRANSACTION_ABORTABLE
    return code


def _accept(
    broker: Broker, request: ClientRequest, asked: ProduceRequest, name: str, one: ProducePartition
) -> commands.Append:
    """The command for a batch that may be appended."""
    if asked.acks not in ACKS:
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    topic = find(broker, request, name, one.index, Operation.WRITE)
    settings = topic.settings
    if asked.acks == -1 and settings.insync_min > 1:
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    header = batch.check(one.records, settings.bytes_max)
    if header.codec == batch.ZSTD and request.version < _ZSTD_FROM:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if header.is_transactional and not broker.may(
        request, Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, asked.transactional_id or ""
    ):
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    data = bytes(one.records)
    if why := why_refused(data, header):
        raise KafkaError(ErrorCode.INVALID_RECORD, why)
    if (damage := broker.store.damage((topic.topic_id, one.index))) is not None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, damage.sentence)
    if not settings.append_time:
        _check_times(broker, header, settings.before_max_ms, settings.after_max_ms)
    if settings.compacts:
        _check_keys(data, header)
    return commands.Append(topic.topic_id, one.index, asked.transactional_id, data)


def _check_times(broker: Broker, header: batch.Header, before_ms: int, after_ms: int) -> None:
    now_ms = broker.clock.wall_ms()
    known = (one for one in (header.base_timestamp, header.max_timestamp) if one != NO_TIME)
    too_old = any(now_ms - one > before_ms for one in known)
    if too_old or header.max_timestamp - now_ms > after_ms:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "the time of a record is out of range")


def _check_keys(data: bytes, header: batch.Header) -> None:
    try:
        keyless = any(record.key is None for record in read_records(data, header))
    except MalformedMessage as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if keyless:
        raise KafkaError(ErrorCode.INVALID_RECORD, "records of a compacted topic have keys")


# --- Fetch ----------------------------------------------------------------------------------------


def fetch(broker: Broker, request: ClientRequest) -> None:
    broker.fetches.begin(request)


# --- offsets of the log ---------------------------------------------------------------------------


def list_offsets(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, ListOffsetsRequest)
    topics = []
    for topic in asked.topics:
        parts = []
        for one in topic.partitions:
            part = ListedPartition(partition=one.partition)
            try:
                _list(broker, request, asked.isolation_level, topic.name, one, part)
            except KafkaError as error:
                part.error_code = error.code
            parts.append(part)
        topics.append(ListedTopic(name=topic.name, partitions=parts))
    request.answer(ListOffsetsResponse(topics=topics))


def _list(
    broker: Broker,
    request: ClientRequest,
    isolation: int,
    name: str,
    one: ListOffsetsPartition,
    part: ListedPartition,
) -> None:
    topic = find(broker, request, name, one.partition, Operation.DESCRIBE)
    check_epoch(one.current_leader_epoch)
    partition = topic.partitions[one.partition]
    stable = partition.last_stable_offset
    end = stable if isolation == COMMITTED else partition.high_watermark
    if one.timestamp == LATEST:
        part.offset, part.leader_epoch = end, LEADER_EPOCH
    elif one.timestamp in (EARLIEST, EARLIEST_LOCAL):
        part.offset, part.leader_epoch = partition.log_start, LEADER_EPOCH
    elif one.timestamp == LATEST_TIERED:
        return  # nothing is tiered
    elif one.timestamp < MAX_TIMESTAMP:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    else:
        log = broker.store.log((topic.topic_id, one.partition))
        try:
            if one.timestamp == MAX_TIMESTAMP:
                found = log.latest(partition.log_start, partition.high_watermark)
                if found is not None and found.offset >= end:
                    found = None  # it is not to be read yet
            else:
                found = log.first_after(one.timestamp, partition.log_start, end)
        except DamagedSegment as damage:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage)) from damage
        if found is not None:
            part.offset, part.timestamp = found
            part.leader_epoch = LEADER_EPOCH


def offset_for_leader_epoch(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, OffsetForLeaderEpochRequest)
    topics = []
    for topic in asked.topics:
        parts = []
        for one in topic.partitions:
            part = EpochEnd(partition=one.partition)
            try:
                found = find(broker, request, topic.topic, one.partition, Operation.DESCRIBE)
                check_epoch(one.current_leader_epoch)
                if one.leader_epoch == LEADER_EPOCH:
                    part.leader_epoch = LEADER_EPOCH
                    part.end_offset = found.partitions[one.partition].high_watermark
            except KafkaError as error:
                part.error_code = error.code
            parts.append(part)
        topics.append(EpochEndTopic(topic=topic.topic, partitions=parts))
    request.answer(OffsetForLeaderEpochResponse(topics=topics))


def delete_records(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, DeleteRecordsRequest)
    topics: list[TrimmedTopic] = []
    accepted: list[tuple[DeletedPartition, AnyCommand]] = []
    for topic in asked.topics:
        parts = []
        for one in topic.partitions:
            part = DeletedPartition(partition=one.partition)
            try:
                found = find(broker, request, topic.name, one.partition, Operation.DELETE)
                partition = found.partitions[one.partition]
                offset = partition.high_watermark if one.offset == LATEST else one.offset
                if not 0 <= offset <= partition.high_watermark:
                    raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
                command = commands.Trim(found.topic_id, one.partition, offset)
                accepted.append((part, command))
            except KafkaError as error:
                part.error_code = error.code
            parts.append(part)
        topics.append(TrimmedTopic(name=topic.name, partitions=parts))

    def done(outcomes: list[CommandOutcome]) -> None:
        for (part, _), outcome in zip(accepted, outcomes, strict=True):
            part.error_code = outcome.error
            if not outcome.error:
                part.low_watermark = outcome.value
        request.answer(DeleteRecordsResponse(topics=topics))

    broker.write([command for _, command in accepted], done)


def may_write_idempotently(broker: Broker, request: ClientRequest) -> bool:
    """Whether it may have a producer's id: who may write anywhere may."""
    return broker.may(request, Operation.IDEMPOTENT_WRITE, ResourceKind.CLUSTER, CLUSTER_NAME)


def name_of(broker: Broker, name: str | None, topic_id: bytes) -> str:
    """A topic's name, from its name or its id; "": it has none."""
    if name or topic_id == NO_UUID:
        return name or ""
    topic = broker.state.by_id.get(topic_id)
    return topic.name if topic else ""
