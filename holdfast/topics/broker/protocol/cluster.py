"""Messages about the cluster: versions, metadata, coordinators."""

from __future__ import annotations

from typing import Final

from holdfast.topics.broker.protocol.codec import (
    NO_UUID,
    boolean,
    i8,
    i16,
    i32,
    message,
    optional_string,
    since,
    string,
    until,
    uuid,
)

# An answer that was not asked which operations are allowed.
NOT_ASKED: Final = -2_147_483_648

# --- ApiVersions ----------------------------------------------------------------------------------


@message
class ApiVersionsRequest:
    client_software_name: string = since(3, "")
    client_software_version: string = since(3, "")


@message
class ApiVersion:
    api_key: i16
    min_version: i16
    max_version: i16


@message
class ApiVersionsResponse:
    error_code: i16 = 0
    api_keys: list[ApiVersion]
    throttle_time_ms: i32 = since(1, 0)


# --- Metadata -------------------------------------------------------------------------------------


@message
class MetadataTopic:
    topic_id: uuid = since(10, NO_UUID)
    name: optional_string


@message
class MetadataRequest:
    topics: list[MetadataTopic] | None
    allow_auto_topic_creation: boolean = since(4, True)
    include_cluster_authorized_operations: boolean = since(8, False, until=10)
    include_topic_authorized_operations: boolean = since(8, False)


@message
class BrokerMetadata:
    node_id: i32
    host: string
    port: i32
    rack: optional_string = since(1, None)


@message
class PartitionMetadata:
    error_code: i16 = 0
    partition: i32
    leader_id: i32
    leader_epoch: i32 = since(7, -1)
    replica_nodes: list[i32]
    isr_nodes: list[i32]
    offline_replicas: list[i32] = since(5, [])


@message
class TopicMetadata:
    error_code: i16 = 0
    name: optional_string
    topic_id: uuid = since(10, NO_UUID)
    is_internal: boolean = since(1, False)
    partitions: list[PartitionMetadata]
    topic_authorized_operations: i32 = since(8, NOT_ASKED)


@message
class MetadataResponse:
    throttle_time_ms: i32 = since(3, 0)
    brokers: list[BrokerMetadata]
    cluster_id: optional_string = since(2, None)
    controller_id: i32 = since(1, -1)
    topics: list[TopicMetadata]
    cluster_authorized_operations: i32 = since(8, NOT_ASKED, until=10)
    error_code: i16 = since(13, 0)


# --- DescribeCluster ------------------------------------------------------------------------------


@message
class DescribeClusterRequest:
    include_cluster_authorized_operations: boolean
    endpoint_type: i8 = since(1, 1)
    include_fenced_brokers: boolean = since(2, False)


@message
class DescribedBroker:
    broker_id: i32
    host: string
    port: i32
    rack: optional_string = None
    is_fenced: boolean = since(2, False)


@message
class DescribeClusterResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: optional_string = None
    endpoint_type: i8 = since(1, 1)
    cluster_id: string
    controller_id: i32
    brokers: list[DescribedBroker]
    cluster_authorized_operations: i32 = NOT_ASKED


# --- DescribeTopicPartitions ----------------------------------------------------------------------


@message
class DescribeTopic:
    name: string


@message
class Cursor:
    topic_name: string
    partition: i32


@message
class DescribeTopicPartitionsRequest:
    topics: list[DescribeTopic]
    response_partition_limit: i32
    cursor: Cursor | None


@message
class DescribedPartition:
    error_code: i16 = 0
    partition: i32
    leader_id: i32
    leader_epoch: i32
    replica_nodes: list[i32]
    isr_nodes: list[i32]
    eligible_leader_replicas: list[i32] | None
    last_known_elr: list[i32] | None
    offline_replicas: list[i32]


@message
class DescribedTopic:
    error_code: i16 = 0
    name: optional_string
    topic_id: uuid
    is_internal: boolean = False
    partitions: list[DescribedPartition]
    topic_authorized_operations: i32 = NOT_ASKED


@message
class DescribeTopicPartitionsResponse:
    throttle_time_ms: i32 = 0
    topics: list[DescribedTopic]
    next_cursor: Cursor | None = None


# --- FindCoordinator ------------------------------------------------------------------------------


@message
class FindCoordinatorRequest:
    key: string = until(3, "")
    key_type: i8 = since(1, 0)
    keys: list[string] = since(4, [])


@message
class FoundCoordinator:
    key: string
    node_id: i32
    host: string
    port: i32
    error_code: i16 = 0
    error_message: optional_string = None


@message
class FindCoordinatorResponse:
    throttle_time_ms: i32 = since(1, 0)
    error_code: i16 = until(3, 0)
    error_message: optional_string = since(1, None, until=3)
    node_id: i32 = until(3, -1)
    host: string = until(3, "")
    port: i32 = until(3, -1)
    coordinators: list[FoundCoordinator] = since(4, [])
