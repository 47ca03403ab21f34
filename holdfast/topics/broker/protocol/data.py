"""Messages that carry records, and say where they lie: Produce, Fetch, ListOffsets and the like."""

from __future__ import annotations

from holdfast.topics.broker.protocol.codec import (
    NO_UUID,
    i8,
    i16,
    i32,
    i64,
    message,
    optional_string,
    records,
    since,
    string,
    tagged,
    until,
    uuid,
)

# --- Produce --------------------------------------------------------------------------------------


@message
class ProducePartition:
    index: i32
    records: records


@message
class ProduceTopic:
    name: string = until(12, "")
    topic_id: uuid = since(13, NO_UUID)
    partitions: list[ProducePartition]


@message
class ProduceRequest:
    transactional_id: optional_string = since(3, None)
    acks: i16
    timeout_ms: i32
    topics: list[ProduceTopic]


@message
class RecordError:
    batch_index: i32
    message: optional_string


@message
class ProducedPartition:
    index: i32
    error_code: i16 = 0
    base_offset: i64 = -1
    log_append_time_ms: i64 = since(2, -1)
    log_start_offset: i64 = since(5, -1)
    record_errors: list[RecordError] = since(8, [])
    error_message: optional_string = since(8, None)


@message
class ProducedTopic:
    name: string = until(12, "")
    topic_id: uuid = since(13, NO_UUID)
    partitions: list[ProducedPartition]


@message
class ProduceResponse:
    topics: list[ProducedTopic]
    throttle_time_ms: i32 = since(1, 0)


# --- Fetch ----------------------------------------------------------------------------------------


@message
class FetchPartition:
    partition: i32
    current_leader_epoch: i32 = since(9, -1)
    fetch_offset: i64
    last_fetched_epoch: i32 = since(12, -1)
    log_start_offset: i64 = since(5, -1)
    partition_max_bytes: i32


@message
class FetchTopic:
    topic: string = until(12, "")
    topic_id: uuid = since(13, NO_UUID)
    partitions: list[FetchPartition]


@message
class ForgottenTopic:
    topic: string = until(12, "")
    topic_id: uuid = since(13, NO_UUID)
    partitions: list[i32]


@message
class FetchRequest:
    cluster_id: optional_string = tagged(0, 12, None)
    replica_id: i32 = until(14, -1)
    max_wait_ms: i32
    min_bytes: i32
    max_bytes: i32 = since(3, 0x7FFFFFFF)
    isolation_level: i8 = since(4, 0)
    session_id: i32 = since(7, 0)
    session_epoch: i32 = since(7, -1)
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic] = since(7, [])
    rack_id: string = since(11, "")


@message
class AbortedTransaction:
    producer_id: i64
    first_offset: i64


@message
class FetchedPartition:
    partition: i32
    error_code: i16 = 0
    high_watermark: i64 = -1
    last_stable_offset: i64 = since(4, -1)
    log_start_offset: i64 = since(5, -1)
    aborted: list[AbortedTransaction] | None = since(4, None)
    preferred_read_replica: i32 = since(11, -1)
    records: records = b""


@message
class FetchedTopic:
    topic: string = until(12, "")
    topic_id: uuid = since(13, NO_UUID)
    partitions: list[FetchedPartition]


@message
class FetchResponse:
    throttle_time_ms: i32 = since(1, 0)
    error_code: i16 = since(7, 0)
    session_id: i32 = since(7, 0)
    topics: list[FetchedTopic]


# --- ListOffsets ----------------------------------------------------------------------------------


@message
class ListOffsetsPartition:
    partition: i32
    current_leader_epoch: i32 = since(4, -1)
    timestamp: i64


@message
class ListOffsetsTopic:
    name: string
    partitions: list[ListOffsetsPartition]


@message
class ListOffsetsRequest:
    replica_id: i32
    isolation_level: i8 = since(2, 0)
    topics: list[ListOffsetsTopic]
    timeout_ms: i32 = since(10, 0)


@message
class ListedPartition:
    partition: i32
    error_code: i16 = 0
    timestamp: i64 = -1
    offset: i64 = -1
    leader_epoch: i32 = since(4, -1)


@message
class ListedTopic:
    name: string
    partitions: list[ListedPartition]


@message
class ListOffsetsResponse:
    throttle_time_ms: i32 = since(2, 0)
    topics: list[ListedTopic]


# --- OffsetForLeaderEpoch -------------------------------------------------------------------------


@message
class EpochPartition:
    partition: i32
    current_leader_epoch: i32 = since(2, -1)
    leader_epoch: i32


@message
class EpochTopic:
    topic: string
    partitions: list[EpochPartition]


@message
class OffsetForLeaderEpochRequest:
    replica_id: i32 = since(3, -2)
    topics: list[EpochTopic]


@message
class EpochEnd:
    error_code: i16 = 0
    partition: i32
    leader_epoch: i32 = since(1, -1)
    end_offset: i64 = -1


@message
class EpochEndTopic:
    topic: string
    partitions: list[EpochEnd]


@message
class OffsetForLeaderEpochResponse:
    throttle_time_ms: i32 = since(2, 0)
    topics: list[EpochEndTopic]


# --- DeleteRecords --------------------------------------------------------------------------------


@message
class DeleteRecordsPartition:
    partition: i32
    offset: i64


@message
class DeleteRecordsTopic:
    name: string
    partitions: list[DeleteRecordsPartition]


@message
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic]
    timeout_ms: i32


@message
class DeletedPartition:
    partition: i32
    low_watermark: i64 = -1
    error_code: i16 = 0


@message
class TrimmedTopic:
    name: string
    partitions: list[DeletedPartition]


@message
class DeleteRecordsResponse:
    throttle_time_ms: i32 = 0
    topics: list[TrimmedTopic]
