"""The broker over its socket, message by message: answers, errors, order, bounds."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from holdfast.topics.broker.core import batch
from holdfast.topics.broker.core.records import read_records
from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.admin import (
    AlterConfigsRequest,
    ConfigResource,
    CreateConfig,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
    MorePartitions,
    TopicCreation,
)
from holdfast.topics.broker.protocol.cluster import (
    ApiVersionsRequest,
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataTopic,
)
from holdfast.topics.broker.protocol.codes import ErrorCode
from holdfast.topics.broker.protocol.data import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    EpochPartition,
    EpochTopic,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from tests.servers.broker import BrokerServer, Wire
from tests.unit.topics.made import make_batch

_names = iter(range(10_000))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture
def wire(broker: BrokerServer) -> Iterator[Wire]:
    with broker.wire() as client:
        yield client


def create(wire: Wire, partitions: int = 1, **configs: str) -> str:
    name = f"topic-{next(_names)}"
    assert creation(wire, name, partitions, **configs) is ErrorCode.NONE
    return name


def creation(
    wire: Wire, name: str, partitions: int = 1, *, copies: str = "1", **configs: str
) -> ErrorCode:
    own = [CreateConfig(name=key.replace("_", "."), value=one) for key, one in configs.items()]
    topic = TopicCreation(
        name=name,
        num_partitions=partitions,
        replication_factor=int(copies),
        assignments=[],
        configs=own,
    )
    asked = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
    return ErrorCode(wire.call(apis.CREATE_TOPICS, 5, asked).topics[0].error_code)


def producing(name: str, data: bytes, acks: int = -1, partition: int = 0) -> ProduceRequest:
    part = ProducePartition(index=partition, records=data)
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topics=[ProduceTopic(name=name, partitions=[part])]
    )


def produce(
    wire: Wire, name: str, data: bytes, version: int = 9, acks: int = -1
) -> ProducedPartition:
    answer = wire.call(apis.PRODUCE, version, producing(name, data, acks))
    part = answer.topics[0].partitions[0]
    assert isinstance(part, ProducedPartition)
    return part


def fetching(
    name: str,
    offset: int = 0,
    *,
    wait_ms: int = 0,
    bytes_max: int = 1_000_000,
    session: tuple[int, int] = (0, -1),
    epoch: int = -1,
    min_bytes: int = 1,
) -> FetchRequest:
    part = FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=bytes_max, current_leader_epoch=epoch
    )
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=50_000_000,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic=name, partitions=[part])],
    )


def fetch(wire: Wire, name: str, offset: int = 0, *, wait_ms: int = 0) -> FetchedPartition:
    answer = wire.call(apis.FETCH, 11, fetching(name, offset, wait_ms=wait_ms))
    part = answer.topics[0].partitions[0]
    assert isinstance(part, FetchedPartition)
    return part


def values(part: FetchedPartition) -> list[bytes | None]:
    data, at, found = bytes(part.records), 0, []
    while at < len(data):
        header = batch.read_header(data, at)
        found += [one.value for one in read_records(data[at:], header)]
        at += header.size
    return found


# --- the way of a frame ---------------------------------------------------------------------------


def test_it_offers_what_it_answers_and_nothing_else(wire: Wire) -> None:
    answer = wire.call(apis.API_VERSIONS, 3, ApiVersionsRequest())
    offered = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert offered == {api.key: (api.first, api.last) for api in apis.APIS.values()}


def test_a_client_from_the_future_is_told_which_versions_there_are(wire: Wire) -> None:
    wire.socket.sendall(b"\0\0\0\x0a" + struct.pack("!hhih", 18, 99, 7, -1))
    (size,) = struct.unpack("!i", wire.read(4))
    correlation, error, count, key = struct.unpack("!ihih", wire.read(size)[:12])
    assert (correlation, error, count, key) == (7, ErrorCode.UNSUPPORTED_VERSION, 1, 18)
    assert wire.call(apis.API_VERSIONS, 0, ApiVersionsRequest()).error_code == 0


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("!hhih", 99, 0, 1, -1),
        struct.pack("!hhih", 3, 77, 1, -1),
        struct.pack("!hhih", 0, 2, 1, -1),
        struct.pack("!hhih", 3, 4, 1, -1) + b"\x7f\xff\xff\xff",
        b"\0",
        b"",
    ],
)
def test_what_is_no_request_ends_the_connection(wire: Wire, frame: bytes) -> None:
    wire.socket.sendall(struct.pack("!i", len(frame)) + frame)
    assert wire.is_closed()


def test_a_frame_that_is_too_large_ends_the_connection(wire: Wire) -> None:
    wire.socket.sendall(struct.pack("!i", 200 * 1024 * 1024))
    assert wire.is_closed()


def test_answers_come_in_the_order_of_the_questions(wire: Wire) -> None:
    name = create(wire)
    for number in range(20):
        wire.send(apis.PRODUCE, 9, producing(name, make_batch(value=b"%d" % number)))
    wire.send(apis.FETCH, 11, fetching(name))
    offsets = [wire.receive(apis.PRODUCE, 9).topics[0].partitions[0].base_offset for _ in range(20)]
    assert offsets == list(range(20))
    part = wire.receive(apis.FETCH, 11).topics[0].partitions[0]
    assert values(part) == [b"%d" % number for number in range(20)]


def test_a_request_in_single_bytes_is_one(wire: Wire) -> None:
    raw = apis.encode_request(apis.API_VERSIONS, 0, 1, None, ApiVersionsRequest())
    for byte in raw:
        wire.socket.sendall(bytes((byte,)))
    wire._correlation = 1
    assert wire.receive(apis.API_VERSIONS, 0).api_keys


# --- topics ---------------------------------------------------------------------------------------


def test_topics_that_cannot_be_are_refused_with_kafkas_errors(wire: Wire) -> None:
    name = create(wire)
    assert creation(wire, name) is ErrorCode.TOPIC_ALREADY_EXISTS
    assert creation(wire, "no/slash") is ErrorCode.INVALID_TOPIC
    assert creation(wire, "..") is ErrorCode.INVALID_TOPIC
    assert creation(wire, "x" * 250) is ErrorCode.INVALID_TOPIC
    assert creation(wire, "zero", 0) is ErrorCode.INVALID_PARTITIONS
    assert creation(wire, "copies", copies="3") is ErrorCode.INVALID_REPLICATION_FACTOR
    assert creation(wire, "configs", no_such="1") is ErrorCode.INVALID_CONFIG
    assert creation(wire, "configs", retention_ms="soon") is ErrorCode.INVALID_CONFIG
    assert creation(wire, name.replace("-", ".") + "_x") is ErrorCode.NONE
    assert creation(wire, name.replace("-", ".") + ".x") is ErrorCode.INVALID_TOPIC


def test_metadata_names_this_broker_and_makes_topics_only_if_allowed(wire: Wire) -> None:
    def ask(name: str, *, allow: bool, version: int = 9) -> object:
        asked = MetadataRequest(topics=[MetadataTopic(name=name)], allow_auto_topic_creation=allow)
        return wire.call(apis.METADATA, version, asked)

    answer: object = ask("made-by-asking", allow=False)
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # type: ignore[attr-defined]
    answer = ask("made-by-asking", allow=True)
    assert answer.topics[0].error_code == 0  # type: ignore[attr-defined]
    assert answer.topics[0].partitions[0].leader_id == answer.brokers[0].node_id  # type: ignore[attr-defined]
    answer = ask("not/a name", allow=True)
    assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC  # type: ignore[attr-defined]
    nothing = wire.call(apis.METADATA, 9, MetadataRequest(topics=[]))
    everything = wire.call(apis.METADATA, 9, MetadataRequest(topics=None))
    assert nothing.topics == []
    assert "made-by-asking" in {one.name for one in everything.topics}


def test_a_topic_grows_and_goes(wire: Wire) -> None:
    name = create(wire, 2)

    def grow(count: int) -> ErrorCode:
        more = MorePartitions(name=name, count=count, assignments=None)
        asked = CreatePartitionsRequest(topics=[more], timeout_ms=1000, validate_only=False)
        return ErrorCode(wire.call(apis.CREATE_PARTITIONS, 3, asked).results[0].error_code)

    assert grow(2) is ErrorCode.INVALID_PARTITIONS
    assert grow(5) is ErrorCode.NONE
    asked = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=3, cursor=None)
    first = wire.call(apis.DESCRIBE_TOPIC_PARTITIONS, 0, asked)
    assert sum(len(topic.partitions) for topic in first.topics) == 3
    assert first.next_cursor is not None
    gone = DeleteTopicsRequest(topic_names=[name], timeout_ms=1000)
    assert wire.call(apis.DELETE_TOPICS, 4, gone).responses[0].error_code == 0
    assert wire.call(apis.DELETE_TOPICS, 4, gone).responses[0].error_code == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert produce(wire, name, make_batch()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_configs_are_shown_and_changed(wire: Wire) -> None:
    name = create(wire, retention_ms="5000")

    def shown() -> dict[str, tuple[str, int]]:
        resource = ConfigResource(resource_type=2, resource_name=name, configuration_keys=None)
        asked = DescribeConfigsRequest(resources=[resource])
        (result,) = wire.call(apis.DESCRIBE_CONFIGS, 4, asked).results
        return {one.name: (one.value, one.config_source) for one in result.configs}

    def change(*changes: tuple[str, int, str | None]) -> ErrorCode:
        made = [
            IncrementalConfig(name=key, operation=operation, value=value)
            for key, operation, value in changes
        ]
        resource = IncrementalResource(resource_type=2, resource_name=name, configs=made)
        asked = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        answer = wire.call(apis.INCREMENTAL_ALTER_CONFIGS, 1, asked)
        return ErrorCode(answer.responses[0].error_code)

    assert shown()["retention.ms"] == ("5000", 1)
    assert shown()["segment.bytes"] == ("1073741824", 5)
    assert change(("cleanup.policy", 2, "compact"), ("retention.ms", 1, None)) is ErrorCode.NONE
    assert shown()["cleanup.policy"] == ("delete,compact", 1)
    assert shown()["retention.ms"] == ("604800000", 5)
    assert change(("retention.ms", 2, "5")) is ErrorCode.INVALID_CONFIG
    assert change(("nothing", 0, "5")) is ErrorCode.INVALID_CONFIG
    empty = AlterConfigsRequest(resources=[], validate_only=False)
    assert wire.call(apis.ALTER_CONFIGS, 2, empty).responses == []


# --- records --------------------------------------------------------------------------------------


def test_a_record_that_is_acknowledged_can_be_read(wire: Wire) -> None:
    name = create(wire)
    assert produce(wire, name, make_batch(2, value=b"x")).base_offset == 0
    part = fetch(wire, name)
    assert values(part) == [b"x", b"x"]
    assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (2, 2, 0)


def test_batches_that_are_not_good_are_refused(wire: Wire) -> None:
    name = create(wire, max_message_bytes="500")
    good = make_batch()
    assert produce(wire, name, good[:-1] + b"!").error_code == ErrorCode.CORRUPT_MESSAGE
    assert (
        produce(wire, name, make_batch(value=bytes(500))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    )
    assert produce(wire, name, good, acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert produce(wire, "nowhere", good).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    future = make_batch(timestamp=2**62)
    assert produce(wire, name, future).error_code == ErrorCode.INVALID_TIMESTAMP
    keys = create(wire, cleanup_policy="compact")
    assert produce(wire, keys, make_batch(key=None)).error_code == ErrorCode.INVALID_RECORD
    pair = create(wire, min_insync_replicas="2")
    assert produce(wire, pair, good).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert produce(wire, pair, good, acks=1).error_code == ErrorCode.NONE


def test_who_wants_no_answer_gets_none_and_an_error_ends_the_connection(wire: Wire) -> None:
    name = create(wire)
    wire.send(apis.PRODUCE, 9, producing(name, make_batch(), acks=0))
    assert produce(wire, name, make_batch()).base_offset == 1
    wire.send(apis.PRODUCE, 9, producing("nowhere", make_batch(), acks=0))
    assert wire.is_closed()


def test_the_brokers_time_is_told_where_the_topic_has_it(wire: Wire) -> None:
    name = create(wire, message_timestamp_type="LogAppendTime")
    part = produce(wire, name, make_batch(timestamp=5))
    assert part.log_append_time_ms > 1_600_000_000_000
    header = batch.read_header(bytes(fetch(wire, name).records))
    assert header.max_timestamp == part.log_append_time_ms


def test_a_fetch_waits_for_records(broker: BrokerServer, wire: Wire) -> None:
    name = create(wire)
    wire.send(apis.FETCH, 11, fetching(name, wait_ms=30_000))
    with broker.wire() as other:
        produce(other, name, make_batch(value=b"late"))
    assert values(wire.receive(apis.FETCH, 11).topics[0].partitions[0]) == [b"late"]
    assert values(fetch(wire, name, 1, wait_ms=10)) == []


def test_a_fetch_out_of_range_or_of_another_leader_is_refused(wire: Wire) -> None:
    name = create(wire)
    produce(wire, name, make_batch())
    assert fetch(wire, name, 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch(wire, name, -5).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch(wire, "nowhere").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = wire.call(apis.FETCH, 11, fetching(name, epoch=7))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_the_first_batch_comes_whole_whatever_the_limit_is(wire: Wire) -> None:
    name = create(wire)
    produce(wire, name, make_batch(value=bytes(5000)))
    answer = wire.call(apis.FETCH, 11, fetching(name, bytes_max=10))
    assert values(answer.topics[0].partitions[0]) == [bytes(5000)]


def test_a_fetch_session_tells_only_what_is_new(wire: Wire) -> None:
    name = create(wire)
    produce(wire, name, make_batch(value=b"1"))
    first = wire.call(apis.FETCH, 11, fetching(name, session=(0, 0)))
    assert first.session_id > 0
    assert len(first.topics) == 1
    asked = fetching(name, 1, session=(first.session_id, 1))
    second = wire.call(apis.FETCH, 11, asked)
    assert second.topics == []
    produce(wire, name, make_batch(value=b"2"))
    asked = FetchRequest(
        max_wait_ms=0, min_bytes=1, session_id=first.session_id, session_epoch=2, topics=[]
    )
    third = wire.call(apis.FETCH, 11, asked)
    assert values(third.topics[0].partitions[0]) == [b"2"]
    wrong = wire.call(apis.FETCH, 11, asked)
    assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    asked.session_id = 1 if first.session_id != 1 else 2
    unknown = wire.call(apis.FETCH, 11, asked)
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_offsets_are_listed_by_time(wire: Wire) -> None:
    name = create(wire)
    for time in (1000, 3000, 2000):
        produce(wire, name, make_batch(2, timestamp=time))

    def listed(timestamp: int) -> tuple[int, int]:
        part = ListOffsetsPartition(partition=0, timestamp=timestamp)
        topic = ListOffsetsTopic(name=name, partitions=[part])
        asked = ListOffsetsRequest(replica_id=-1, topics=[topic])
        (found,) = wire.call(apis.LIST_OFFSETS, 7, asked).topics[0].partitions
        return found.offset, found.timestamp

    assert listed(-1) == (6, -1)
    assert listed(-2) == (0, -1)
    assert listed(-3) == (3, 3001)
    assert listed(0) == (0, 1000)
    assert listed(1001) == (1, 1001)
    assert listed(1500) == (2, 3000)
    assert listed(9999) == (-1, -1)


def test_records_are_deleted_up_to_an_offset(wire: Wire) -> None:
    name = create(wire)
    produce(wire, name, make_batch(5))

    def delete(offset: int) -> tuple[int, int]:
        part = DeleteRecordsPartition(partition=0, offset=offset)
        topic = DeleteRecordsTopic(name=name, partitions=[part])
        asked = DeleteRecordsRequest(topics=[topic], timeout_ms=1000)
        (found,) = wire.call(apis.DELETE_RECORDS, 2, asked).topics[0].partitions
        return found.error_code, found.low_watermark

    assert delete(3) == (0, 3)
    assert delete(9) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert fetch(wire, name, 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete(-1) == (0, 5)


def test_the_only_epoch_ends_with_the_log(wire: Wire) -> None:
    name = create(wire)
    produce(wire, name, make_batch(4))
    part = EpochPartition(partition=0, leader_epoch=0)
    asked = OffsetForLeaderEpochRequest(topics=[EpochTopic(topic=name, partitions=[part])])
    answer = wire.call(apis.OFFSET_FOR_LEADER_EPOCH, 4, asked)
    assert answer.topics[0].partitions[0].end_offset == 4


def test_this_broker_coordinates_every_group(broker: BrokerServer, wire: Wire) -> None:
    answer = wire.call(apis.FIND_COORDINATOR, 4, FindCoordinatorRequest(keys=["a", "b"]))
    assert [(one.key, one.port) for one in answer.coordinators] == [
        ("a", broker.port),
        ("b", broker.port),
    ]
    old = wire.call(apis.FIND_COORDINATOR, 1, FindCoordinatorRequest(key="a", key_type=9))
    assert old.error_code == ErrorCode.INVALID_REQUEST
