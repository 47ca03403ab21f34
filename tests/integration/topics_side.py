"""One of two brokers that are given the same steps: requests by our own codec, answers as values
that can be compared. What differs from broker to broker (ids of producers and members) is kept
here, under names that are the same on both sides."""

from __future__ import annotations

import time
from typing import Any, Final

from holdfast.topics.broker.core import batch, records
from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.admin import (
    ConfigResource,
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
    MorePartitions,
)
from holdfast.topics.broker.protocol.apis import Api
from holdfast.topics.broker.protocol.cluster import FindCoordinatorRequest
from holdfast.topics.broker.protocol.data import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from holdfast.topics.broker.protocol.groups import (
    Assignment,
    CommitPartition,
    CommitTopic,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinProtocol,
    LeaveGroupRequest,
    LeavingMember,
    OffsetCommitRequest,
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
    OffsetFetchRequest,
    OffsetsOfTopic,
    SyncGroupRequest,
)
from holdfast.topics.broker.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetPartition,
    TxnOffsetTopic,
    TxnTopic,
)
from tests.integration.test_topics_broker import creation, producing
from tests.servers.broker import Wire
from tests.unit.topics.made import make_batch
from tests.waiting import eventually

# What a coordinator says while it moves or loads, and Kafka before it has written its markers: the
# same step again ends otherwise.
PASSING: Final = {14, 15, 16, 51}
SETTLE_S: Final = 60.0
# How long a member that does not come back is waited for.
REBALANCE_MS: Final = 1_000
SESSION_MS: Final = 60_000
TOPIC_RESOURCE: Final = 2


class Side:
    """A broker. `epochs` are the ids that a producer was given, the latest last."""

    def __init__(self, hosts: str) -> None:
        self.hosts = hosts
        self.wire = Wire(hosts)
        self.epochs: dict[str, list[tuple[int, int]]] = {}
        self.members: dict[str, str] = {}
        self.leader = ""
        self.wires: dict[str, Wire] = {}
        for key_type in (0, 1):
            # Kafka makes the topics in which a coordinator keeps its state when it is looked for.
            asked = FindCoordinatorRequest(key="any", key_type=key_type)
            self._settled(apis.FIND_COORDINATOR, 2, asked, lambda one: int(one.error_code))

    def close(self) -> None:
        for wire in (self.wire, *self.wires.values()):
            wire.socket.close()

    def _settled(self, api: Api, version: int, asked: object, code: Any) -> Any:
        """The first answer that is not a passing one."""

        def answer() -> Any:
            found = self.wire.call(api, version, asked)
            return None if code(found) in PASSING else found

        return eventually(answer, "an answer that stays", SETTLE_S)

    # --- topics -----------------------------------------------------------------------------------

    def create(self, name: str, partitions: int, **configs: str) -> int:
        error = int(creation(self.wire, name, partitions, **configs))
        for number in range(partitions if not error else 0):
            eventually(
                lambda number=number: self.offset(name, number, -1)[0] == 0,  # type: ignore[misc]
                "the topic is there",
                SETTLE_S,
            )
        return error

    def delete(self, name: str) -> int:
        asked = DeleteTopicsRequest(topic_names=[name], timeout_ms=5_000)
        error = int(self.wire.call(apis.DELETE_TOPICS, 5, asked).responses[0].error_code)
        eventually(lambda: self.offset(name, 0, -1)[0] == 3, "the topic is gone", SETTLE_S)
        return error

    def grow(self, name: str, count: int) -> int:
        more = MorePartitions(name=name, count=count, assignments=None)
        asked = CreatePartitionsRequest(topics=[more], timeout_ms=5_000, validate_only=False)
        error = int(self.wire.call(apis.CREATE_PARTITIONS, 2, asked).results[0].error_code)
        if not error:
            eventually(lambda: self.offset(name, count - 1, -1)[0] == 0, "it has grown", SETTLE_S)
        return error

    def alter(self, name: str, key: str, operation: int, value: str | None) -> int:
        change = IncrementalConfig(name=key, operation=operation, value=value)
        resource = IncrementalResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configs=[change]
        )
        asked = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        found = self.wire.call(apis.INCREMENTAL_ALTER_CONFIGS, 1, asked)
        return int(found.responses[0].error_code)

    def configs(self, name: str, keys: list[str]) -> object:
        resource = ConfigResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=keys
        )
        asked = DescribeConfigsRequest(resources=[resource])
        found = self.wire.call(apis.DESCRIBE_CONFIGS, 2, asked).results[0]
        own = sorted((one.name, one.value, one.config_source == 1) for one in found.configs)
        return found.error_code, own

    # --- records ----------------------------------------------------------------------------------

    def produce(self, name: str, partition: int, data: bytes, transactional: str | None) -> object:
        asked = producing(name, data, -1, partition)
        asked.transactional_id = transactional
        part = self.wire.call(apis.PRODUCE, 9, asked).topics[0].partitions[0]
        return part.error_code, part.base_offset, part.log_start_offset

    def write(
        self,
        name: str,
        partition: int,
        *,
        producer: str | None = None,
        which: int = -1,
        shift: int = 0,
        sequence: int = -1,
        transactional: str | None = None,
        **made: Any,
    ) -> Any:
        """A batch, plain or of a producer: of its latest epoch, an earlier one, or a wrong one."""
        given = (-1, -1)
        if producer is not None:
            identity, epoch = self.epochs[producer][which]
            given = identity, epoch + shift
        data = make_batch(
            **made, producer=given, sequence=sequence, transactional=transactional is not None
        )
        return self.produce(name, partition, data, transactional)

    def fetch(self, name: str, partition: int, offset: int, *, committed: bool) -> Any:
        part = FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=1_000_000
        )
        asked = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=50_000_000,
            isolation_level=int(committed),
            topics=[FetchTopic(topic=name, partitions=[part])],
        )
        got = self.wire.call(apis.FETCH, 11, asked).topics[0].partitions[0]
        raw, at, found = bytes(got.records or b""), 0, []
        while at < len(raw):
            header = batch.read_header(raw, at)
            whole = raw[at : at + header.size]
            # A marker's value holds the coordinator's epoch, which is its own business.
            each = [
                (one.offset, one.key, None if header.is_control else one.value)
                for one in records.read_records(whole, header)
            ]
            found.append((header.base_offset, header.is_control, header.is_transactional, each))
            at += header.size
        ends = got.high_watermark, got.last_stable_offset, got.log_start_offset
        aborted = sorted(one.first_offset for one in got.aborted or ())
        return got.error_code, ends, found, aborted

    def offset(self, name: str, partition: int, at: int, *, committed: bool = False) -> Any:
        wanted = ListOffsetsPartition(partition=partition, timestamp=at)
        asked = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(committed),
            topics=[ListOffsetsTopic(name=name, partitions=[wanted])],
        )
        part = self.wire.call(apis.LIST_OFFSETS, 7, asked).topics[0].partitions[0]
        return part.error_code, part.offset, part.timestamp

    def trim(self, name: str, partition: int, before: int) -> object:
        part = DeleteRecordsPartition(partition=partition, offset=before)
        topic = DeleteRecordsTopic(name=name, partitions=[part])
        asked = DeleteRecordsRequest(topics=[topic], timeout_ms=5_000)
        got = self.wire.call(apis.DELETE_RECORDS, 2, asked).topics[0].partitions[0]
        return got.error_code, got.low_watermark

    # --- producers --------------------------------------------------------------------------------

    def begin(self, label: str, transactional: str | None, ms: int, which: int | None) -> object:
        given = (-1, -1) if which is None else self.epochs[label][which]
        asked = InitProducerIdRequest(
            transactional_id=transactional,
            transaction_timeout_ms=ms,
            producer_id=given[0],
            producer_epoch=given[1],
        )
        found = self._settled(apis.INIT_PRODUCER_ID, 4, asked, lambda one: int(one.error_code))
        if not found.error_code:
            held = self.epochs.setdefault(label, [])
            held.append((found.producer_id, found.producer_epoch))
        return found.error_code, found.producer_epoch

    def add(self, name: str, label: str, which: int, topic: str, partitions: list[int]) -> object:
        identity, epoch = self.epochs[label][which]
        asked = AddPartitionsToTxnRequest(
            transactional_id=name,
            producer_id=identity,
            producer_epoch=epoch,
            topics=[TxnTopic(name=topic, partitions=partitions)],
        )
        found = self._settled(
            apis.ADD_PARTITIONS_TO_TXN,
            3,
            asked,
            lambda one: int(one.topics[0].partitions[0].error_code),
        )
        parts = found.topics[0].partitions
        return sorted((one.partition, one.error_code) for one in parts)

    def add_offsets(
        self, name: str, label: str, which: int, group: str, topic: str, at: int
    ) -> object:
        identity, epoch = self.epochs[label][which]
        asked = AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=identity, producer_epoch=epoch, group_id=group
        )
        added = self._settled(apis.ADD_OFFSETS_TO_TXN, 3, asked, lambda one: int(one.error_code))
        if added.error_code:
            return (added.error_code,)
        part = TxnOffsetPartition(partition=0, committed_offset=at, committed_metadata="")
        put = TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            producer_id=identity,
            producer_epoch=epoch,
            topics=[TxnOffsetTopic(name=topic, partitions=[part])],
        )
        found = self._settled(
            apis.TXN_OFFSET_COMMIT, 3, put, lambda one: int(one.topics[0].partitions[0].error_code)
        )
        return added.error_code, found.topics[0].partitions[0].error_code

    def end(self, name: str, label: str, which: int, *, commit: bool) -> int:
        identity, epoch = self.epochs[label][which]
        asked = EndTxnRequest(
            transactional_id=name, producer_id=identity, producer_epoch=epoch, committed=commit
        )
        found = self._settled(apis.END_TXN, 3, asked, lambda one: int(one.error_code))
        return int(found.error_code)

    def ended(self, topic: str) -> bool:
        """Whether no transaction is open in the first partition."""
        _, ends, *_ = self.fetch(topic, 0, 0, committed=False)
        return bool(ends[0] == ends[1])

    # --- groups -----------------------------------------------------------------------------------

    def join(self, group: str, labels: list[str], protocol: str) -> dict[str, Any]:
        """These come, one after the other; those who are missing are waited for."""
        for label in labels:
            wire = self.wires.setdefault(label, Wire(self.hosts))
            if label not in self.members:
                wire.send(apis.JOIN_GROUP, 7, self._joining(group, label, protocol))
                self.members[label] = wire.receive(apis.JOIN_GROUP, 7).member_id
            wire.send(apis.JOIN_GROUP, 7, self._joining(group, label, protocol))
            time.sleep(0.03)  # pause: the next one comes after it
        found: dict[str, Any] = {}
        for label in labels:
            one = self.wires[label].receive(apis.JOIN_GROUP, 7)
            if not one.error_code:
                # Of those who came, Kafka takes one by the order of its hash table.
                self.leader = self._label(one.leader)
            listed = sorted(self._label(each.member_id) for each in one.members)
            # Who is refused is told null by Kafka, and nothing by ours.
            found[label] = (one.error_code, one.generation_id, one.protocol_name or "")
            found["list"] = listed or found.get("list")
        return found

    def _joining(self, group: str, label: str, protocol: str) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.members.get(label, ""),
            protocol_type="consumer",
            protocols=[JoinProtocol(name=protocol, metadata=b"\0" * 10)],
        )

    def _label(self, member: str) -> str:
        known = {each: label for label, each in self.members.items()}
        return known.get(member, "?" if member else "")

    def sync(self, group: str, labels: list[str], generation: int) -> object:
        given = [
            Assignment(member_id=self.members[label], assignment=label.encode()) for label in labels
        ]
        for label in labels:
            asked = SyncGroupRequest(
                group_id=group,
                generation_id=generation,
                member_id=self.members[label],
                assignments=given if label == self.leader else [],
            )
            self.wires[label].send(apis.SYNC_GROUP, 3, asked)
        answers = {label: self.wires[label].receive(apis.SYNC_GROUP, 3) for label in labels}
        return {label: (one.error_code, one.assignment) for label, one in answers.items()}

    def beat(self, group: str, label: str, generation: int) -> int:
        asked = HeartbeatRequest(
            group_id=group,
            generation_id=generation,
            member_id=self.members.get(label, "nobody"),
        )
        return int(self.wire.call(apis.HEARTBEAT, 3, asked).error_code)

    def commit(self, group: str, label: str, generation: int, name: str, at: int) -> int:
        part = CommitPartition(partition=0, committed_offset=at, committed_metadata="note")
        asked = OffsetCommitRequest(
            group_id=group,
            generation_id=generation,
            member_id=self.members.get(label, "") if label else "",
            topics=[CommitTopic(name=name, partitions=[part])],
        )
        found = self._settled(
            apis.OFFSET_COMMIT, 7, asked, lambda one: int(one.topics[0].partitions[0].error_code)
        )
        return int(found.topics[0].partitions[0].error_code)

    def committed(self, group: str, name: str) -> object:
        asked = OffsetFetchRequest(
            group_id=group, topics=[OffsetsOfTopic(name=name, partitions=[0])]
        )
        part = self.wire.call(apis.OFFSET_FETCH, 7, asked).topics[0].partitions[0]
        return part.error_code, part.committed_offset, part.metadata

    def leave(self, group: str, labels: list[str]) -> object:
        leaving = [
            LeavingMember(member_id=self.members.pop(label, "nobody"), group_instance_id=None)
            for label in labels
        ]
        asked = LeaveGroupRequest(group_id=group, members=leaving)
        found = self.wire.call(apis.LEAVE_GROUP, 4, asked)
        return found.error_code, [one.error_code for one in found.members]

    def describe(self, group: str) -> Any:
        found = self.wire.call(apis.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=[group]))
        (one,) = found.groups
        each = sorted((self._label(who.member_id), who.member_assignment) for who in one.members)
        return one.error_code, one.group_state, one.protocol_data, each

    def is_settled(self, group: str) -> bool:
        """Wait until nobody is waited for any more."""
        passing = ("PreparingRebalance", "CompletingRebalance")
        return eventually(
            lambda: self.describe(group)[1] not in passing, "the group has settled", SETTLE_S
        )

    def delete_group(self, group: str) -> int:
        found = self.wire.call(apis.DELETE_GROUPS, 2, DeleteGroupsRequest(groups=[group]))
        return int(found.results[0].error_code)

    def forget_offset(self, group: str, name: str) -> object:
        parts = [OffsetDeletePartition(partition=0)]
        topics = [OffsetDeleteTopic(name=name, partitions=parts)]
        asked = OffsetDeleteRequest(group_id=group, topics=topics)
        found = self.wire.call(apis.OFFSET_DELETE, 0, asked)
        each = [one.error_code for topic in found.topics for one in topic.partitions]
        return found.error_code, each
