"""Messages with which topics and their configs are made, changed and shown."""

from __future__ import annotations

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
    tagged,
    until,
    uuid,
)

# --- topics ---------------------------------------------------------------------------------------


@message
class ReplicaAssignment:
    partition: i32
    broker_ids: list[i32]


@message
class CreateConfig:
    name: string
    value: optional_string


@message
class TopicCreation:
    name: string
    num_partitions: i32
    replication_factor: i16
    assignments: list[ReplicaAssignment]
    configs: list[CreateConfig]


@message
class CreateTopicsRequest:
    topics: list[TopicCreation]
    timeout_ms: i32
    validate_only: boolean = since(1, False)


@message
class CreatedConfig:
    name: string
    value: optional_string
    read_only: boolean = False
    config_source: i8
    is_sensitive: boolean = False


@message
class CreatedTopic:
    name: string
    topic_id: uuid = since(7, NO_UUID)
    error_code: i16 = 0
    error_message: optional_string = since(1, None)
    topic_config_error_code: i16 = tagged(0, 5, 0)
    num_partitions: i32 = since(5, -1)
    replication_factor: i16 = since(5, -1)
    configs: list[CreatedConfig] | None = since(5, None)


@message
class CreateTopicsResponse:
    throttle_time_ms: i32 = since(2, 0)
    topics: list[CreatedTopic]


@message
class TopicDeletion:
    name: optional_string
    topic_id: uuid


@message
class DeleteTopicsRequest:
    topics: list[TopicDeletion] = since(6, [])
    topic_names: list[string] = until(5, [])
    timeout_ms: i32


@message
class DeletedTopic:
    name: optional_string
    topic_id: uuid = since(6, NO_UUID)
    error_code: i16 = 0
    error_message: optional_string = since(5, None)


@message
class DeleteTopicsResponse:
    throttle_time_ms: i32 = since(1, 0)
    responses: list[DeletedTopic]


@message
class NewAssignment:
    broker_ids: list[i32]


@message
class MorePartitions:
    name: string
    count: i32
    assignments: list[NewAssignment] | None


@message
class CreatePartitionsRequest:
    topics: list[MorePartitions]
    timeout_ms: i32
    validate_only: boolean


@message
class CreatedPartitions:
    name: string
    error_code: i16 = 0
    error_message: optional_string = None


@message
class CreatePartitionsResponse:
    throttle_time_ms: i32 = 0
    results: list[CreatedPartitions]


# --- configs --------------------------------------------------------------------------------------


@message
class ConfigResource:
    resource_type: i8
    resource_name: string
    configuration_keys: list[string] | None


@message
class DescribeConfigsRequest:
    resources: list[ConfigResource]
    include_synonyms: boolean = since(1, False)
    include_documentation: boolean = since(3, False)


@message
class ConfigSynonym:
    name: string
    value: optional_string
    source: i8


@message
class DescribedConfig:
    name: string
    value: optional_string
    read_only: boolean
    is_default: boolean = until(0, False)
    config_source: i8 = since(1, -1)
    is_sensitive: boolean = False
    synonyms: list[ConfigSynonym] = since(1, [])
    config_type: i8 = since(3, 0)
    documentation: optional_string = since(3, None)


@message
class DescribedResource:
    error_code: i16 = 0
    error_message: optional_string = None
    resource_type: i8
    resource_name: string
    configs: list[DescribedConfig]


@message
class DescribeConfigsResponse:
    throttle_time_ms: i32 = 0
    results: list[DescribedResource]


@message
class AlterableConfig:
    name: string
    value: optional_string


@message
class AlterResource:
    resource_type: i8
    resource_name: string
    configs: list[AlterableConfig]


@message
class AlterConfigsRequest:
    resources: list[AlterResource]
    validate_only: boolean


@message
class AlteredResource:
    error_code: i16 = 0
    error_message: optional_string = None
    resource_type: i8
    resource_name: string


@message
class AlterConfigsResponse:
    throttle_time_ms: i32 = 0
    responses: list[AlteredResource]


@message
class IncrementalConfig:
    name: string
    operation: i8
    value: optional_string


@message
class IncrementalResource:
    resource_type: i8
    resource_name: string
    configs: list[IncrementalConfig]


@message
class IncrementalAlterConfigsRequest:
    resources: list[IncrementalResource]
    validate_only: boolean


@message
class IncrementalAlterConfigsResponse:
    throttle_time_ms: i32 = 0
    responses: list[AlteredResource]
