"""Messages of idempotent producers and of transactions."""

from __future__ import annotations

from holdfast.topics.broker.protocol.codec import (
    boolean,
    i16,
    i32,
    i64,
    message,
    optional_string,
    since,
    string,
)
from holdfast.topics.broker.protocol.groups import CommittedTopic


@message
class InitProducerIdRequest:
    transactional_id: optional_string
    transaction_timeout_ms: i32
    producer_id: i64 = since(3, -1)
    producer_epoch: i16 = since(3, -1)


@message
class InitProducerIdResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    producer_id: i64 = -1
    producer_epoch: i16 = -1


@message
class TxnTopic:
    name: string
    partitions: list[i32]


@message
class AddPartitionsToTxnRequest:
    transactional_id: string
    producer_id: i64
    producer_epoch: i16
    topics: list[TxnTopic]


@message
class TxnPartitionResult:
    partition: i32
    error_code: i16 = 0


@message
class TxnTopicResult:
    name: string
    partitions: list[TxnPartitionResult]


@message
class AddPartitionsToTxnResponse:
    throttle_time_ms: i32 = 0
    topics: list[TxnTopicResult]


@message
class AddOffsetsToTxnRequest:
    transactional_id: string
    producer_id: i64
    producer_epoch: i16
    group_id: string


@message
class AddOffsetsToTxnResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0


@message
class EndTxnRequest:
    transactional_id: string
    producer_id: i64
    producer_epoch: i16
    committed: boolean


@message
class EndTxnResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0


@message
class TxnOffsetPartition:
    partition: i32
    committed_offset: i64
    committed_leader_epoch: i32 = since(2, -1)
    committed_metadata: optional_string


@message
class TxnOffsetTopic:
    name: string
    partitions: list[TxnOffsetPartition]


@message
class TxnOffsetCommitRequest:
    transactional_id: string
    group_id: string
    producer_id: i64
    producer_epoch: i16
    generation_id: i32 = since(3, -1)
    member_id: string = since(3, "")
    group_instance_id: optional_string = since(3, None)
    topics: list[TxnOffsetTopic]


@message
class TxnOffsetCommitResponse:
    throttle_time_ms: i32 = 0
    topics: list[CommittedTopic]
