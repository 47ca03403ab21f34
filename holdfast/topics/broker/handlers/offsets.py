"""The offsets that groups keep."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from holdfast.topics.broker.core import commands
from holdfast.topics.broker.core.acls import Operation, ResourceKind
from holdfast.topics.broker.core.commands import CommittedOffset, Offsets
from holdfast.topics.broker.core.state import CommandOutcome
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError
from holdfast.topics.broker.protocol.groups import (
    CommitPartition,
    CommittedPartition,
    CommittedTopic,
    FetchedGroup,
    FetchedOffset,
    FetchedOffsets,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetsOfTopic,
)
from holdfast.topics.broker.protocol.transactions import TxnOffsetPartition
from holdfast.topics.broker.request import ClientRequest

if TYPE_CHECKING:
    from holdfast.topics.broker.broker import Broker

# `offset.metadata.max.bytes` of Kafka.
METADATA_BYTES_MAX: Final = 4096
_MANY_GROUPS_FROM: Final = 8
_GROUP_NOT_FOUND_FROM: Final = 9


def take(
    broker: Broker,
    request: ClientRequest,
    topic: str,
    one: CommitPartition | TxnOffsetPartition,
    taken: Offsets,
) -> CommittedPartition:
    """Check an offset that is to be kept; the good ones are put into `taken`."""
    answer = CommittedPartition(partition=one.partition)
    metadata = one.committed_metadata or ""
    if not broker.may(request, Operation.READ, ResourceKind.TOPIC, topic):
        answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif broker.state.partition(topic, one.partition) is None:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif len(metadata.encode()) > METADATA_BYTES_MAX:
        answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
    else:
        kept = CommittedOffset(
            one.committed_offset, one.committed_leader_epoch, metadata, broker.clock.wall_ms()
        )
        taken.setdefault(topic, {})[one.partition] = kept
    return answer


def settle(answers: list[CommittedTopic], code: ErrorCode) -> None:
    """Those that were good so far end with this."""
    for topic in answers:
        for one in topic.partitions:
            one.error_code = one.error_code or code


# --- OffsetCommit ---------------------------------------------------------------------------------


def offset_commit(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, OffsetCommitRequest)
    taken: Offsets = {}
    answers = [
        CommittedTopic(
            name=topic.name,
            partitions=[take(broker, request, topic.name, one, taken) for one in topic.partitions],
        )
        for topic in asked.topics
    ]
    try:
        if not broker.may(request, Operation.READ, ResourceKind.GROUP, asked.group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        broker.groups.check_commit(
            asked.group_id,
            asked.member_id,
            asked.group_instance_id,
            asked.generation_id,
            broker.now_ms(),
            keeps_offsets=asked.group_id in broker.state.offsets,
        )
    except KafkaError as error:
        code = error.code
        is_new = request.version >= _GROUP_NOT_FOUND_FROM
        if (
            code is ErrorCode.ILLEGAL_GENERATION
            and is_new
            and (asked.group_id not in broker.groups.by_name)
        ):
            code = ErrorCode.GROUP_ID_NOT_FOUND
        for topic in answers:
            for one in topic.partitions:
                one.error_code = code
        request.answer(OffsetCommitResponse(topics=answers))
        return

    def done(outcomes: list[CommandOutcome]) -> None:
        for outcome in outcomes:
            settle(answers, _for_commit(outcome.error))
        request.answer(OffsetCommitResponse(topics=answers))

    broker.write([commands.CommitOffsets(asked.group_id, taken)] if taken else [], done)


def _for_commit(error: ErrorCode) -> ErrorCode:
    """A full disk, in a word that clients of groups know: they try again."""
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if error is ErrorCode.KAFKA_STORAGE_ERROR else error


# --- OffsetFetch ----------------------------------------------------------------------------------


def offset_fetch(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, OffsetFetchRequest)
    if request.version >= _MANY_GROUPS_FROM:
        groups = [
            _fetched(broker, request, one.group_id, one.topics, asked.require_stable)
            for one in asked.groups
        ]
        request.answer(OffsetFetchResponse(groups=groups))
        return
    group = _fetched(broker, request, asked.group_id, asked.topics, asked.require_stable)
    if group.error_code and request.version < 2:
        # Which has no place for an error of the whole.
        for wanted in asked.topics or ():
            parts = [
                FetchedOffset(partition=number, error_code=group.error_code)
                for number in wanted.partitions
            ]
            group.topics.append(FetchedOffsets(name=wanted.name, partitions=parts))
    request.answer(OffsetFetchResponse(topics=group.topics, error_code=group.error_code))


def _fetched(
    broker: Broker,
    request: ClientRequest,
    group: str,
    topics: list[OffsetsOfTopic] | None,
    stable: bool,
) -> FetchedGroup:
    if not broker.may(request, Operation.DESCRIBE, ResourceKind.GROUP, group):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return FetchedGroup(group_id=group, topics=[], error_code=code)
    held = broker.state.offsets.get(group, {})
    if topics is None:
        topics = [
            OffsetsOfTopic(name=name, partitions=sorted(partitions))
            for name, partitions in sorted(held.items())
            if partitions and broker.may(request, Operation.DESCRIBE, ResourceKind.TOPIC, name)
        ]
    found = []
    for topic in topics:
        may = broker.may(request, Operation.DESCRIBE, ResourceKind.TOPIC, topic.name)
        parts = []
        for number in topic.partitions:
            part = FetchedOffset(partition=number)
            kept = held.get(topic.name, {}).get(number)
            if not may:
                part.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif stable and broker.state.is_pending(group, topic.name, number):
                part.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
            elif kept is not None:
                part.committed_offset = kept.offset
                part.committed_leader_epoch = kept.leader_epoch
                part.metadata = kept.metadata
            parts.append(part)
        found.append(FetchedOffsets(name=topic.name, partitions=parts))
    return FetchedGroup(group_id=group, topics=found)


# --- OffsetDelete ---------------------------------------------------------------------------------


def offset_delete(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, OffsetDeleteRequest)
    group = asked.group_id
    if not broker.may(request, Operation.DELETE, ResourceKind.GROUP, group):
        request.answer(OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return
    live = broker.groups.by_name.get(group)
    if live is None and group not in broker.state.offsets:
        request.answer(OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))
        return
    if live is not None and live.members and live.protocol_type != "consumer":
        request.answer(OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP))
        return
    answers, gone = [], []
    for topic in asked.topics:
        code = ErrorCode.NONE
        if not broker.may(request, Operation.READ, ResourceKind.TOPIC, topic.name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif broker.groups.subscribes(group, topic.name, subscribed_topics):
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        parts = []
        for one in topic.partitions:
            part = CommittedPartition(partition=one.partition, error_code=code)
            if not code and broker.state.partition(topic.name, one.partition) is None:
                part.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not part.error_code:
                gone.append((topic.name, one.partition))
            parts.append(part)
        answers.append(CommittedTopic(name=topic.name, partitions=parts))

    def done(outcomes: list[CommandOutcome]) -> None:
        for outcome in outcomes:
            settle(answers, _for_commit(outcome.error))
        request.answer(OffsetDeleteResponse(topics=answers))

    broker.write([commands.DeleteOffsets(group, gone)] if gone else [], done)


def subscribed_topics(metadata: bytes) -> set[str]:
    """The topics in what a consumer says when it joins: version, then a list of names."""
    try:
        _, count = struct.unpack_from("!hi", metadata)
        at, names = 6, set()
        for _ in range(count):
            (length,) = struct.unpack_from("!h", metadata, at)
            names.add(metadata[at + 2 : at + 2 + length].decode())
            at += 2 + length
    except (struct.error, UnicodeDecodeError):
        return set()
    return names
