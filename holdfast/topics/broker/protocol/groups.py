"""Messages of consumer groups (the classic protocol) and of their offsets."""

from __future__ import annotations

from holdfast.topics.broker.protocol.cluster import NOT_ASKED
from holdfast.topics.broker.protocol.codec import (
    boolean,
    i16,
    i32,
    i64,
    message,
    octets,
    optional_string,
    since,
    string,
    until,
)

# --- members --------------------------------------------------------------------------------------


@message
class JoinProtocol:
    name: string
    metadata: octets


@message
class JoinGroupRequest:
    group_id: string
    session_timeout_ms: i32
    rebalance_timeout_ms: i32 = since(1, -1)
    member_id: string
    group_instance_id: optional_string = since(5, None)
    protocol_type: string
    protocols: list[JoinProtocol]
    reason: optional_string = since(8, None)


@message
class JoinedMember:
    member_id: string
    group_instance_id: optional_string = since(5, None)
    metadata: octets


@message
class JoinGroupResponse:
    throttle_time_ms: i32 = since(2, 0)
    error_code: i16 = 0
    generation_id: i32 = -1
    protocol_type: optional_string = since(7, None)
    protocol_name: optional_string = ""
    leader: string = ""
    skip_assignment: boolean = since(9, False)
    member_id: string = ""
    members: list[JoinedMember] = since(0, [])


@message
class Assignment:
    member_id: string
    assignment: octets


@message
class SyncGroupRequest:
    group_id: string
    generation_id: i32
    member_id: string
    group_instance_id: optional_string = since(3, None)
    protocol_type: optional_string = since(5, None)
    protocol_name: optional_string = since(5, None)
    assignments: list[Assignment]


@message
class SyncGroupResponse:
    throttle_time_ms: i32 = since(1, 0)
    error_code: i16 = 0
    protocol_type: optional_string = since(5, None)
    protocol_name: optional_string = since(5, None)
    assignment: octets = b""


@message
class HeartbeatRequest:
    group_id: string
    generation_id: i32
    member_id: string
    group_instance_id: optional_string = since(3, None)


@message
class HeartbeatResponse:
    throttle_time_ms: i32 = since(1, 0)
    error_code: i16 = 0


@message
class LeavingMember:
    member_id: string
    group_instance_id: optional_string
    reason: optional_string = since(5, None)


@message
class LeaveGroupRequest:
    group_id: string
    member_id: string = until(2, "")
    members: list[LeavingMember] = since(3, [])


@message
class LeftMember:
    member_id: string
    group_instance_id: optional_string
    error_code: i16 = 0


@message
class LeaveGroupResponse:
    throttle_time_ms: i32 = since(1, 0)
    error_code: i16 = 0
    members: list[LeftMember] = since(3, [])


# --- groups as a whole ----------------------------------------------------------------------------


@message
class DescribeGroupsRequest:
    groups: list[string]
    include_authorized_operations: boolean = since(3, False)


@message
class DescribedMember:
    member_id: string
    group_instance_id: optional_string = since(4, None)
    client_id: string
    client_host: string
    member_metadata: octets
    member_assignment: octets


@message
class DescribedGroup:
    error_code: i16 = 0
    error_message: optional_string = since(6, None)
    group_id: string
    group_state: string
    protocol_type: string = ""
    protocol_data: string = ""
    members: list[DescribedMember] = since(0, [])
    authorized_operations: i32 = since(3, NOT_ASKED)


@message
class DescribeGroupsResponse:
    throttle_time_ms: i32 = since(1, 0)
    groups: list[DescribedGroup]


@message
class ListGroupsRequest:
    states_filter: list[string] = since(4, [])
    types_filter: list[string] = since(5, [])


@message
class ListedGroup:
    group_id: string
    protocol_type: string
    group_state: string = since(4, "")
    group_type: string = since(5, "")


@message
class ListGroupsResponse:
    throttle_time_ms: i32 = since(1, 0)
    error_code: i16 = 0
    groups: list[ListedGroup]


@message
class DeleteGroupsRequest:
    groups: list[string]


@message
class DeletedGroup:
    group_id: string
    error_code: i16 = 0


@message
class DeleteGroupsResponse:
    throttle_time_ms: i32 = 0
    results: list[DeletedGroup]


# --- offsets --------------------------------------------------------------------------------------


@message
class CommitPartition:
    partition: i32
    committed_offset: i64
    committed_leader_epoch: i32 = since(6, -1)
    commit_timestamp: i64 = since(1, -1, until=1)
    committed_metadata: optional_string


@message
class CommitTopic:
    name: string
    partitions: list[CommitPartition]


@message
class OffsetCommitRequest:
    group_id: string
    generation_id: i32 = since(1, -1)
    member_id: string = since(1, "")
    group_instance_id: optional_string = since(7, None)
    retention_time_ms: i64 = since(2, -1, until=4)
    topics: list[CommitTopic]


@message
class CommittedPartition:
    partition: i32
    error_code: i16 = 0


@message
class CommittedTopic:
    name: string
    partitions: list[CommittedPartition]


@message
class OffsetCommitResponse:
    throttle_time_ms: i32 = since(3, 0)
    topics: list[CommittedTopic]


@message
class OffsetsOfTopic:
    name: string
    partitions: list[i32]


@message
class OffsetsOfGroup:
    group_id: string
    member_id: optional_string = since(9, None)
    member_epoch: i32 = since(9, -1)
    topics: list[OffsetsOfTopic] | None


@message
class OffsetFetchRequest:
    group_id: string = until(7, "")
    topics: list[OffsetsOfTopic] | None = until(7, None)
    groups: list[OffsetsOfGroup] = since(8, [])
    require_stable: boolean = since(7, False)


@message
class FetchedOffset:
    partition: i32
    committed_offset: i64 = -1
    committed_leader_epoch: i32 = since(5, -1)
    metadata: optional_string = ""
    error_code: i16 = 0


@message
class FetchedOffsets:
    name: string
    partitions: list[FetchedOffset]


@message
class FetchedGroup:
    group_id: string
    topics: list[FetchedOffsets]
    error_code: i16 = 0


@message
class OffsetFetchResponse:
    throttle_time_ms: i32 = since(3, 0)
    topics: list[FetchedOffsets] = until(7, [])
    error_code: i16 = since(2, 0, until=7)
    groups: list[FetchedGroup] = since(8, [])


@message
class OffsetDeletePartition:
    partition: i32


@message
class OffsetDeleteTopic:
    name: string
    partitions: list[OffsetDeletePartition]


@message
class OffsetDeleteRequest:
    group_id: string
    topics: list[OffsetDeleteTopic]


@message
class OffsetDeleteResponse:
    error_code: i16 = 0
    throttle_time_ms: i32 = 0
    topics: list[CommittedTopic] = since(0, [])
