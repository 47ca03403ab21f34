"""What the cluster is: versions, topics and their places, coordinators. There is one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.topics.broker.core.acls import CLUSTER_NAME, Operation, ResourceKind
from holdfast.topics.broker.core.batch import LEADER_EPOCH
from holdfast.topics.broker.core.state import CommandOutcome, Topic
from holdfast.topics.broker.handlers.records import name_of
from holdfast.topics.broker.handlers.topics import new_topic
from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.cluster import (
    NOT_ASKED,
    ApiVersion,
    ApiVersionsResponse,
    BrokerMetadata,
    Cursor,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedBroker,
    DescribedPartition,
    DescribedTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from holdfast.topics.broker.protocol.codec import NO_UUID
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError
from holdfast.topics.broker.request import ClientRequest

if TYPE_CHECKING:
    from holdfast.topics.broker.broker import Broker

NODE_ID: Final = 1
# Partitions in one answer to DescribeTopicPartitions, as Kafka's.
DESCRIBED_MAX: Final = 2_000
_GROUP_KEY, _TRANSACTION_KEY = 0, 1
_BROKERS: Final = 1

_OPERATIONS: Final = {
    ResourceKind.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceKind.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE),
    ResourceKind.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


def allowed_operations(
    broker: Broker, request: ClientRequest, kind: ResourceKind, name: str
) -> int:
    """What whoever asks may do to it, as Kafka's set of bits."""
    allowed = (one for one in _OPERATIONS[kind] if broker.may(request, one, kind, name))
    return sum(1 << one for one in allowed)


def api_versions(_broker: Broker, request: ClientRequest) -> None:
    keys = [
        ApiVersion(api_key=one.key, min_version=one.first, max_version=one.last)
        for one in apis.APIS.values()
    ]
    request.answer(ApiVersionsResponse(api_keys=keys))


# --- Metadata -------------------------------------------------------------------------------------


def metadata(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, MetadataRequest)
    wants_all = asked.topics is None or (request.version == 0 and not asked.topics)
    if wants_all:
        names = [(topic.name, NO_UUID) for topic in broker.state]
        _answer_metadata(broker, request, names, hide=True)
        return
    names = [(one.name or "", one.topic_id) for one in asked.topics or ()]
    missing = [
        name for name, topic_id in names if topic_id == NO_UUID and name not in broker.state.topics
    ]
    if not (missing and asked.allow_auto_topic_creation and broker.settings.auto_create):
        _answer_metadata(broker, request, names, hide=False)
        return
    made = []
    refused: dict[str, ErrorCode] = {}
    for name in dict.fromkeys(missing):
        try:
            if not broker.may(
                request, Operation.CREATE, ResourceKind.TOPIC, name
            ) and not broker.may(request, Operation.CREATE, ResourceKind.CLUSTER, CLUSTER_NAME):
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            made.append(new_topic(broker, name, broker.settings.default_partitions, {}))
        except KafkaError as error:
            refused[name] = error.code

    def done(_outcomes: list[CommandOutcome]) -> None:
        _answer_metadata(broker, request, names, hide=False, refused=refused)

    broker.write(made, done)


def _answer_metadata(
    broker: Broker,
    request: ClientRequest,
    names: list[tuple[str, bytes]],
    *,
    hide: bool,
    refused: dict[str, ErrorCode] | None = None,
) -> None:
    asked = request.body
    assert isinstance(asked, MetadataRequest)
    topics = []
    for asked_name, topic_id in names:
        name = name_of(broker, asked_name, topic_id)
        may = broker.may(request, Operation.DESCRIBE, ResourceKind.TOPIC, name)
        if not may and hide:
            continue
        one = _topic_metadata(broker, name, topic_id, may, (refused or {}).get(name))
        if asked.include_topic_authorized_operations and not one.error_code:
            one.topic_authorized_operations = allowed_operations(
                broker, request, ResourceKind.TOPIC, name
            )
        topics.append(one)
    operations = NOT_ASKED
    if asked.include_cluster_authorized_operations:
        operations = allowed_operations(broker, request, ResourceKind.CLUSTER, CLUSTER_NAME)
    host, port = broker.settings.address
    request.answer(
        MetadataResponse(
            brokers=[BrokerMetadata(node_id=NODE_ID, host=host, port=port)],
            cluster_id=broker.store.cluster_id,
            controller_id=NODE_ID,
            topics=topics,
            cluster_authorized_operations=operations,
        )
    )


def _topic_metadata(
    broker: Broker, name: str, topic_id: bytes, may: bool, refused: ErrorCode | None
) -> TopicMetadata:
    topic = broker.state.topics.get(name)
    if topic is not None and may:
        partitions = [
            _partition_metadata(number, _in_sync(broker, topic, number))
            for number in range(len(topic.partitions))
        ]
        return TopicMetadata(name=name, topic_id=topic.topic_id, partitions=partitions)
    code = refused or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic_id != NO_UUID:
        code = ErrorCode.UNKNOWN_TOPIC_ID
    elif not may:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return TopicMetadata(error_code=code, name=name or None, topic_id=topic_id, partitions=[])


def _in_sync(broker: Broker, topic: Topic, number: int) -> list[int]:
    """Nobody, if what we have of it is damaged: so others, and people, see that."""
    return [NODE_ID] if broker.store.damage((topic.topic_id, number)) is None else []


def _partition_metadata(number: int, in_sync: list[int]) -> PartitionMetadata:
    return PartitionMetadata(
        partition=number,
        leader_id=NODE_ID,
        leader_epoch=LEADER_EPOCH,
        replica_nodes=[NODE_ID],
        isr_nodes=in_sync,
        offline_replicas=[] if in_sync else [NODE_ID],
    )


# --- the others -----------------------------------------------------------------------------------


def describe_cluster(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, DescribeClusterRequest)
    host, port = broker.settings.address
    answer = DescribeClusterResponse(
        cluster_id=broker.store.cluster_id,
        controller_id=NODE_ID,
        brokers=[DescribedBroker(broker_id=NODE_ID, host=host, port=port)],
    )
    if asked.endpoint_type != _BROKERS:
        answer.error_code = ErrorCode.INVALID_REQUEST
        answer.error_message = "this is a broker, and not a controller"
        answer.brokers = []
    if asked.include_cluster_authorized_operations:
        operations = allowed_operations(broker, request, ResourceKind.CLUSTER, CLUSTER_NAME)
        answer.cluster_authorized_operations = operations
    request.answer(answer)


def describe_topic_partitions(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, DescribeTopicPartitionsRequest)
    left = min(max(asked.response_partition_limit, 1), DESCRIBED_MAX)
    known = broker.state.topics
    names = sorted({one.name for one in asked.topics} or known)
    cursor = asked.cursor
    answer = DescribeTopicPartitionsResponse(topics=[])
    for name in names:
        if cursor is not None and name < cursor.topic_name:
            continue
        first = cursor.partition if cursor is not None and name == cursor.topic_name else 0
        if not broker.may(request, Operation.DESCRIBE, ResourceKind.TOPIC, name):
            if asked.topics:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                answer.topics.append(_unknown_topic(name, code))
            continue
        if name not in known:
            answer.topics.append(_unknown_topic(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            continue
        if left <= 0:
            answer.next_cursor = Cursor(topic_name=name, partition=0)
            break
        described = _described(broker, known[name], first, left)
        described.topic_authorized_operations = allowed_operations(
            broker, request, ResourceKind.TOPIC, name
        )
        answer.topics.append(described)
        left -= len(described.partitions)
        following = first + len(described.partitions)
        if following < len(known[name].partitions):
            answer.next_cursor = Cursor(topic_name=name, partition=following)
            break
    request.answer(answer)


def _unknown_topic(name: str, code: ErrorCode) -> DescribedTopic:
    return DescribedTopic(error_code=code, name=name, topic_id=NO_UUID, partitions=[])


def _described(broker: Broker, topic: Topic, first: int, most: int) -> DescribedTopic:
    partitions = [
        DescribedPartition(
            partition=number,
            leader_id=NODE_ID,
            leader_epoch=LEADER_EPOCH,
            replica_nodes=[NODE_ID],
            isr_nodes=in_sync,
            eligible_leader_replicas=[],
            last_known_elr=[],
            offline_replicas=[] if in_sync else [NODE_ID],
        )
        for number in range(first, min(first + most, len(topic.partitions)))
        for in_sync in (_in_sync(broker, topic, number),)
    ]
    return DescribedTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


def find_coordinator(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, FindCoordinatorRequest)
    keys = asked.keys if request.version >= 4 else [asked.key]
    found = [_coordinator(broker, request, asked.key_type, key) for key in keys]
    if request.version >= 4:
        request.answer(FindCoordinatorResponse(coordinators=found))
        return
    one = found[0]
    request.answer(
        FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )
    )


def _coordinator(
    broker: Broker, request: ClientRequest, key_type: int, key: str
) -> FoundCoordinator:
    if key_type == _GROUP_KEY:
        kind, error = ResourceKind.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif key_type == _TRANSACTION_KEY:
        kind, error = ResourceKind.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    else:
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST)
    if not broker.may(request, Operation.DESCRIBE, kind, key):
        return _no_coordinator(key, error)
    host, port = broker.settings.address
    return FoundCoordinator(key=key, node_id=NODE_ID, host=host, port=port)


def _no_coordinator(key: str, code: ErrorCode) -> FoundCoordinator:
    return FoundCoordinator(
        key=key, node_id=-1, host="", port=-1, error_code=code, error_message=code.name
    )
