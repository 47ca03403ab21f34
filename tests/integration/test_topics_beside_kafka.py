"""The same steps on our broker and on a real Kafka: answers, errors and offsets are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from holdfast.topics.broker.core import batch
from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.apis import Api
from holdfast.topics.broker.protocol.cluster import FindCoordinatorRequest
from holdfast.topics.broker.protocol.data import (
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
from tests.conftest import require_part
from tests.integration.test_topics_broker import creation, fetching, producing
from tests.servers.broker import BrokerServer, Wire
from tests.servers.kafka import KafkaServer, kafka_missing
from tests.unit.topics.made import make_batch
from tests.waiting import eventually

pytestmark = pytest.mark.engines

# What a coordinator says while it moves or loads, and what Kafka says before its metadata is
# everywhere: the same step again ends otherwise.
PASSING: Final = {14, 15, 16, 51}

SETTLE_S: Final = 60.0

Steps = Callable[["Bench"], None]


class Bench:
    """One of the two brokers, and a list of what it answered."""

    def __init__(self, hosts: str) -> None:
        self.wire = Wire(hosts)
        self.heard: list[object] = []
        for key_type in (0, 1):
            # Kafka makes the topics in which a coordinator keeps its state when it is looked for.
            asked = FindCoordinatorRequest(key="any", key_type=key_type)
            self.settled(
                lambda asked=asked: self.call(apis.FIND_COORDINATOR, 2, asked),  # type: ignore[misc]
                lambda one: int(one.error_code),
            )

    def note(self, what: object) -> None:
        self.heard.append(what)

    def call(self, api: Api, version: int, request: object) -> Any:
        return self.wire.call(api, version, request)

    def settled(self, ask: Callable[[], Any], code: Callable[[Any], int]) -> Any:
        """The first answer that is not a passing one."""

        def asked() -> Any:
            answer = ask()
            return None if code(answer) in PASSING else answer

        return eventually(asked, "an answer that stays", SETTLE_S)

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        self.note(creation(self.wire, name, partitions, **configs))
        # Kafka answers before every broker, also if it is one, knows of the topic.
        for number in range(partitions):
            wanted = ListOffsetsPartition(partition=number, timestamp=-1)
            topic = ListOffsetsTopic(name=name, partitions=[wanted])
            asked = ListOffsetsRequest(replica_id=-1, topics=[topic])
            eventually(
                lambda asked=asked: (  # type: ignore[misc]
                    self.call(apis.LIST_OFFSETS, 7, asked).topics[0].partitions[0].error_code == 0
                ),
                "the topic is there",
                SETTLE_S,
            )

    def produce(self, name: str, data: bytes, *, version: int = 9, partition: int = 0) -> None:
        asked = producing(name, data, -1, partition)
        if batch.read_header(data).is_transactional:
            asked.transactional_id = name
        part = self.call(apis.PRODUCE, version, asked).topics[0].partitions[0]
        self.note(("produced", part.error_code, part.base_offset, part.log_start_offset))

    def fetch(self, name: str, offset: int, *, committed: bool = False, epoch: int = -1) -> None:
        asked = fetching(name, offset, epoch=epoch)
        asked.isolation_level = int(committed)
        part = self.call(apis.FETCH, 11, asked).topics[0].partitions[0]
        raw, at, found = bytes(part.records or b""), 0, []
        while at < len(raw):
            header = batch.read_header(raw, at)
            found.append((header.base_offset, header.records_count, header.is_control))
            at += header.size
        aborted = [(one.first_offset) for one in part.aborted or ()]
        ends = part.high_watermark, part.last_stable_offset, part.log_start_offset
        self.note(("fetched", part.error_code, ends, found, aborted))

    def init(self, name: str | None, given: tuple[int, int] = (-1, -1), ms: int = 60_000) -> Any:
        asked = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=ms,
            producer_id=given[0],
            producer_epoch=given[1],
        )
        answer = self.settled(
            lambda: self.call(apis.INIT_PRODUCER_ID, 4, asked), lambda one: int(one.error_code)
        )
        self.note(("producer", answer.error_code, answer.producer_epoch))
        return answer.producer_id, answer.producer_epoch

    def add(self, name: str, producer: tuple[int, int], *partitions: int) -> None:
        asked = AddPartitionsToTxnRequest(
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            topics=[TxnTopic(name=name, partitions=list(partitions))],
        )
        answer = self.settled(
            lambda: self.call(apis.ADD_PARTITIONS_TO_TXN, 3, asked),
            lambda one: int(one.topics[0].partitions[0].error_code),
        )
        self.note(("added", [one.error_code for one in answer.topics[0].partitions]))

    def end(self, name: str, producer: tuple[int, int], *, commit: bool) -> None:
        asked = EndTxnRequest(
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        )
        answer = self.settled(
            lambda: self.call(apis.END_TXN, 3, asked), lambda one: int(one.error_code)
        )
        self.note(("ended", answer.error_code))

    def join(self, group: str, member: str = "", *, protocol: str = "range", **more: Any) -> Any:
        asked = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=more.get("session_ms", 10_000),
            rebalance_timeout_ms=5_000,
            member_id=member,
            group_instance_id=more.get("instance"),
            protocol_type="consumer",
            protocols=[JoinProtocol(name=protocol, metadata=b"\0\0\0\0\0\0\0\0\0\0")],
        )
        answer = self.settled(
            lambda: self.call(apis.JOIN_GROUP, 7, asked), lambda one: int(one.error_code)
        )
        leads = bool(answer.leader) and answer.leader == answer.member_id
        self.note(("joined", answer.error_code, answer.generation_id, leads, len(answer.members)))
        return answer.member_id

    def sync(self, group: str, member: str, generation: int, data: bytes | None) -> None:
        given = [] if data is None else [Assignment(member_id=member, assignment=data)]
        asked = SyncGroupRequest(
            group_id=group, generation_id=generation, member_id=member, assignments=given
        )
        answer = self.call(apis.SYNC_GROUP, 3, asked)
        self.note(("synced", answer.error_code, answer.assignment))

    def beat(self, group: str, member: str, generation: int) -> None:
        asked = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)
        self.note(("beat", self.call(apis.HEARTBEAT, 3, asked).error_code))

    def commit(self, group: str, member: str, generation: int, topic: str, at: int = 5) -> None:
        part = CommitPartition(partition=0, committed_offset=at, committed_metadata="note")
        asked = OffsetCommitRequest(
            group_id=group,
            generation_id=generation,
            member_id=member,
            topics=[CommitTopic(name=topic, partitions=[part])],
        )
        answer = self.settled(
            lambda: self.call(apis.OFFSET_COMMIT, 7, asked),
            lambda one: int(one.topics[0].partitions[0].error_code),
        )
        self.note(("committed", answer.topics[0].partitions[0].error_code))

    def committed(self, group: str, topic: str, *, stable: bool = False) -> None:
        asked = OffsetFetchRequest(
            group_id=group,
            topics=[OffsetsOfTopic(name=topic, partitions=[0])],
            require_stable=stable,
        )
        part = self.call(apis.OFFSET_FETCH, 7, asked).topics[0].partitions[0]
        self.note(("held", part.error_code, part.committed_offset, part.metadata))


def idempotence(bench: Bench) -> None:
    bench.create("sequences", 2)
    producer, epoch = bench.init(None)

    def send(sequence: int, count: int = 1, at: int = epoch) -> None:
        data = make_batch(count, producer=(producer, at), sequence=sequence)
        bench.produce("sequences", data)

    for sequence, count in ((0, 3), (3, 2), (0, 3), (3, 2), (6, 1), (4, 1), (5, 1), (0, 1)):
        send(sequence, count)
    for sequence in range(6, 12):
        send(sequence)
    send(5)
    send(6)
    send(7)
    send(1, at=epoch + 1)
    send(0, at=epoch + 1)
    send(12)
    bench.fetch("sequences", 0)


def bad_batches(bench: Bench) -> None:
    bench.create("bad", max_message_bytes="2000")
    good = make_batch()
    bench.produce("bad", good)
    bench.produce("bad", good[:-1] + b"!")
    bench.produce("bad", make_batch(value=bytes(3000)))
    bench.produce("bad", make_batch(), partition=7)
    bench.produce("missing-topic", good)
    bench.create("keyed", cleanup_policy="compact")
    bench.produce("keyed", make_batch(key=None))
    bench.produce("keyed", make_batch())
    for offset in (0, 1, 2, -1):
        bench.fetch("bad", offset)
    bench.fetch("bad", 0, epoch=5)


def transactions(bench: Bench) -> None:
    name = "txn"
    bench.create(name, 2)
    producer = bench.init(name)

    def send(sequence: int, *, partition: int = 0, who: Any = None) -> None:
        data = make_batch(1, producer=who or producer, sequence=sequence, transactional=True)
        bench.produce(name, data, partition=partition)

    bench.end(name, producer, commit=True)
    bench.add(name, producer, 0)
    send(0)
    bench.produce(name, make_batch())
    bench.fetch(name, 0, committed=True)
    bench.fetch(name, 0)
    bench.end(name, producer, commit=True)
    bench.end(name, producer, commit=True)
    bench.end(name, producer, commit=False)
    bench.add(name, producer, 0, 1)
    send(1)
    send(0, partition=1)
    bench.end(name, producer, commit=False)
    eventually(lambda: stable(bench, name) == 5, "the marker is there", SETTLE_S)
    bench.fetch(name, 0, committed=True)
    bench.fetch(name, 2, committed=True)
    newer = bench.init(name)
    bench.add(name, producer, 0)
    send(2)
    bench.end(name, producer, commit=True)
    bench.add(name, newer, 0)
    send(0, who=newer)
    bench.end(name, newer, commit=True)
    eventually(lambda: stable(bench, name) == 7, "the marker is there", SETTLE_S)
    bench.fetch(name, 0, committed=True)
    bench.add(name, newer, 9)
    bench.init(name, newer)
    bench.init(name, newer)
    bench.init(name, producer)
    bench.init("", ms=5)
    bench.init("other", ms=-5)
    bench.init("other", ms=2_000_000_000)


def stable(bench: Bench, name: str) -> int:
    part = bench.call(apis.FETCH, 11, fetching(name)).topics[0].partitions[0]
    return int(part.last_stable_offset)


def groups(bench: Bench) -> None:
    group = "members"
    bench.create("read-by-group")
    bench.beat("no-such-group", "m", 1)
    bench.commit(group, "", -1, "read-by-group", 3)
    bench.committed(group, "read-by-group")
    bench.commit("no-such-group", "m", 5, "read-by-group")
    bench.join(group, "unknown-member")
    bench.join(group, session_ms=5)
    member = bench.join(group)
    member = bench.join(group, member)
    bench.commit(group, member, 1, "read-by-group")
    bench.sync(group, member, 7, b"x")
    bench.sync(group, member, 1, b"mine")
    bench.sync(group, member, 1, None)
    for who, generation in ((member, 1), (member, 2), ("nobody", 1)):
        bench.beat(group, who, generation)
    bench.commit(group, member, 1, "read-by-group", 9)
    bench.commit(group, member, 0, "read-by-group")
    bench.commit(group, "", -1, "read-by-group")
    bench.commit(group, member, 1, "no-such-topic")
    bench.committed(group, "read-by-group")
    bench.join(group, protocol="sticky")
    described = bench.call(apis.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=[group, "none"]))
    for one in sorted(described.groups, key=lambda one: str(one.group_id)):
        assigned = [who.member_assignment for who in one.members]
        bench.note((one.error_code, one.group_state, one.protocol_data, assigned))
    gone = DeleteGroupsRequest(groups=[group, "none"])
    results = bench.call(apis.DELETE_GROUPS, 2, gone).results
    bench.note(sorted((one.group_id, one.error_code) for one in results))
    leaving = [
        LeavingMember(member_id="nobody", group_instance_id=None),
        LeavingMember(member_id=member, group_instance_id=None),
    ]
    answer = bench.call(apis.LEAVE_GROUP, 4, LeaveGroupRequest(group_id=group, members=leaving))
    bench.note((answer.error_code, [one.error_code for one in answer.members]))
    parts = [OffsetDeletePartition(partition=0)]
    forgotten = OffsetDeleteRequest(
        group_id=group, topics=[OffsetDeleteTopic(name="read-by-group", partitions=parts)]
    )
    answer = bench.call(apis.OFFSET_DELETE, 0, forgotten)
    bench.note((answer.error_code, answer.topics[0].partitions[0].error_code))
    bench.committed(group, "read-by-group")


def static_members(bench: Bench) -> None:
    group = "static"
    member = bench.join(group, instance="A")
    bench.sync(group, member, 1, b"all")
    back = bench.join(group, instance="A")
    bench.sync(group, back, 1, None)
    bench.beat(group, back, 1)
    asked = HeartbeatRequest(
        group_id=group, generation_id=1, member_id=member, group_instance_id="A"
    )
    bench.note(bench.call(apis.HEARTBEAT, 3, asked).error_code)


def offsets_in_transactions(bench: Bench) -> None:
    name, group = "txn-offsets", "txn-group"
    bench.create(name)
    producer = bench.init(name)

    def add() -> None:
        asked = AddOffsetsToTxnRequest(
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            group_id=group,
        )
        answer = bench.settled(
            lambda: bench.call(apis.ADD_OFFSETS_TO_TXN, 3, asked), lambda one: int(one.error_code)
        )
        bench.note(("added", answer.error_code))

    def put(at: int) -> None:
        part = TxnOffsetPartition(partition=0, committed_offset=at, committed_metadata="")
        asked = TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            producer_id=producer[0],
            producer_epoch=producer[1],
            topics=[TxnOffsetTopic(name=name, partitions=[part])],
        )
        answer = bench.settled(
            lambda: bench.call(apis.TXN_OFFSET_COMMIT, 3, asked),
            lambda one: int(one.topics[0].partitions[0].error_code),
        )
        bench.note(("put", answer.topics[0].partitions[0].error_code))

    for at, commit in ((4, False), (8, True)):
        add()
        put(at)
        bench.committed(group, name)
        bench.committed(group, name, stable=True)
        bench.end(name, producer, commit=commit)
        bench.settled(lambda: _held(bench, group, name), lambda code: 51 if code == 88 else code)
        bench.committed(group, name)


def _held(bench: Bench, group: str, name: str) -> Any:
    asked = OffsetFetchRequest(
        group_id=group,
        topics=[OffsetsOfTopic(name=name, partitions=[0])],
        require_stable=True,
    )
    return bench.call(apis.OFFSET_FETCH, 7, asked).topics[0].partitions[0].error_code or -9


def names_and_configs(bench: Bench) -> None:
    for name, partitions in (("fine", 2), ("fine", 2), ("no/slash", 1), ("x" * 250, 1), ("z", 0)):
        bench.note(creation(bench.wire, name, partitions))
    bench.note(creation(bench.wire, "dot.ted"))
    bench.note(creation(bench.wire, "dot_ted"))
    bench.note(creation(bench.wire, "copies", copies="3"))
    for config in (
        {"retention_ms": "soon"},
        {"no_such": "1"},
        {"cleanup_policy": "burn"},
        {"max_message_bytes": "-5"},
        {"message_timestamp_type": "Never"},
    ):
        bench.note(creation(bench.wire, "configured", 1, **config))


STEPS: Final[list[Steps]] = [
    idempotence,
    bad_batches,
    transactions,
    groups,
    static_members,
    offsets_in_transactions,
    names_and_configs,
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    require_part(kafka_missing())
    with (
        BrokerServer(tmp_path_factory.mktemp("ours"), options=("--no-auto-create",)) as ours,
        KafkaServer(tmp_path_factory.mktemp("kafka")) as theirs,
    ):
        yield ours.hosts, theirs.hosts


@pytest.mark.parametrize("steps", STEPS, ids=lambda steps: steps.__name__)
def test_the_same_steps_have_the_same_answers(both: tuple[str, str], steps: Steps) -> None:
    ours, theirs = (Bench(hosts) for hosts in both)
    steps(theirs)
    steps(ours)
    for step, (mine, real) in enumerate(zip(ours.heard, theirs.heard, strict=True)):
        assert mine == real, f"step {step}"
