"""Connections that break while something is asked: what is read is asked again, what is changed is
changed once, and is no error because its answer was lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from holdfast import topics
from holdfast.topics import Connection
from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.apis import Api
from holdfast.wire.errors import Conflict, Missing, Usage
from tests.contract.topics.conftest import make_topic, take, write
from tests.contract.topics.cutting import CuttingBroker

Lose = Callable[[Api], None]


@pytest.fixture(params=["our_broker", "one_kafka"])
def cutter(request: pytest.FixtureRequest) -> CuttingBroker:
    request.getfixturevalue(request.param)
    found: CuttingBroker = request.getfixturevalue(f"before_{request.param}")
    return found


@pytest.fixture
def cluster(cutter: CuttingBroker) -> Iterator[Connection]:
    with topics.connect(f"kafka://{cutter.hosts}?prefix=cut.{os.getpid()}.") as made:
        yield made


@pytest.fixture
def others(cluster: Connection) -> Iterator[Connection]:
    """Somebody else, with a client of their own."""
    with topics.connect(str(cluster.address)) as made:
        made.admin.list_topics()
        yield made


@pytest.fixture(params=["lose_answer", "lose_request"])
def lose(request: pytest.FixtureRequest, cutter: CuttingBroker) -> Iterator[Lose]:
    """A change has happened and nobody knows, or has not, and not at the second try either."""

    def lose(api: Api) -> None:
        if request.param == "lose_answer":
            cutter.lose_answer(api)
        else:
            cutter.lose_request(api, times=2)

    yield lose
    cutter.await_cuts()


def grouped(cluster: Connection, topic: str, group: str) -> None:
    """A group without members that has read the first of two records."""
    write(cluster, topic, b"0", b"1")
    with cluster.consumer(topic, group=group) as consumer:
        consumer.commit(take(consumer, 2)[0])


def test_a_topic_is_made_though_the_connection_breaks(cluster: Connection, lose: Lose) -> None:
    lose(apis.CREATE_TOPICS)
    made = cluster.admin.create("made-cut", 2, configs={"retention.ms": "100000"})
    assert made.partitions == 2
    assert cluster.admin.describe("made-cut").configs["retention.ms"] == "100000"
    with pytest.raises(Conflict):
        cluster.admin.create("made-cut", 2, configs={"retention.ms": "100000"})
    cluster.admin.delete("made-cut")


def test_a_topic_that_was_there_or_is_another_is_a_conflict_though_the_connection_breaks(
    cluster: Connection, others: Connection, lose: Lose
) -> None:
    topic = make_topic(cluster)
    lose(apis.CREATE_TOPICS)
    with pytest.raises(Conflict):
        cluster.admin.create(topic)
    lose(apis.CREATE_TOPICS)
    assert not cluster.admin.ensure(topic)


def test_a_topic_that_others_make_otherwise_meanwhile_is_a_conflict(
    cutter: CuttingBroker, cluster: Connection, others: Connection
) -> None:
    cutter.lose_request(apis.CREATE_TOPICS, then=lambda: others.admin.create("theirs", 3))
    with pytest.raises(Conflict):
        cluster.admin.create("theirs")
    assert cluster.admin.describe("theirs").partitions == 3


def test_a_topic_is_deleted_once_though_the_connection_breaks(
    cutter: CuttingBroker, cluster: Connection, others: Connection, lose: Lose
) -> None:
    topic = make_topic(cluster)
    lose(apis.DELETE_TOPICS)
    cluster.admin.delete(topic)
    assert topic not in cluster.admin.list_topics()
    with pytest.raises(Missing):
        cluster.admin.delete(topic)
    # What others make anew before we hear that it is gone, is theirs.
    again = make_topic(cluster)

    def made_anew() -> None:
        while again in others.admin.list_topics():
            pass
        others.admin.ensure(again, 3)

    cutter.lose_answer(apis.DELETE_TOPICS, then=made_anew)
    cluster.admin.delete(again)
    assert cluster.admin.describe(again).partitions == 3


def test_a_topic_is_changed_though_the_connection_breaks(cluster: Connection, lose: Lose) -> None:
    topic = make_topic(cluster)
    lose(apis.CREATE_PARTITIONS)
    cluster.admin.alter(topic, partitions=4)
    assert cluster.admin.describe(topic).partitions == 4
    lose(apis.INCREMENTAL_ALTER_CONFIGS)
    cluster.admin.alter(topic, configs={"retention.ms": "100000"})
    assert cluster.admin.describe(topic).configs["retention.ms"] == "100000"


def test_fewer_partitions_than_others_gave_meanwhile_are_refused(
    cutter: CuttingBroker, cluster: Connection, others: Connection
) -> None:
    topic = make_topic(cluster)
    cutter.lose_request(
        apis.CREATE_PARTITIONS, then=lambda: others.admin.alter(topic, partitions=5)
    )
    with pytest.raises(Usage):
        cluster.admin.alter(topic, partitions=4)


def test_a_group_is_reset_and_forgotten_though_the_connection_breaks(
    cluster: Connection, lose: Lose
) -> None:
    topic = make_topic(cluster)
    grouped(cluster, topic, group := f"group-{topic}")
    lose(apis.OFFSET_COMMIT)
    (at,) = cluster.admin.reset(group, topic, {0: 2})
    (lag,) = cluster.admin.lag(group)
    assert at.offset == lag.committed == 2
    lose(apis.DELETE_GROUPS)
    cluster.admin.delete_group(group)
    assert group not in {one.name for one in cluster.admin.groups()}
    with pytest.raises(Missing):
        cluster.admin.delete_group(group)


@pytest.mark.parametrize(
    ("api", "ask"),
    [
        (apis.METADATA, lambda cluster, topic, group: topic in cluster.admin.list_topics()),
        (apis.DESCRIBE_CONFIGS, lambda cluster, topic, group: cluster.admin.describe(topic)),
        (
            apis.LIST_OFFSETS,
            lambda cluster, topic, group: cluster.admin.offsets(topic) == {0: 2},
        ),
        (
            apis.LIST_GROUPS,
            lambda cluster, topic, group: group in {one.name for one in cluster.admin.groups()},
        ),
        (
            apis.DESCRIBE_GROUPS,
            lambda cluster, topic, group: group in {one.name for one in cluster.admin.groups()},
        ),
        (
            apis.OFFSET_FETCH,
            lambda cluster, topic, group: cluster.admin.lag(group)[0].committed == 1,
        ),
        (apis.METADATA, lambda cluster, topic, group: cluster.admin.incarnation(topic)),
    ],
    ids=["topics", "topic", "offsets", "list of groups", "groups", "lag", "incarnation"],
)
def test_what_is_read_is_asked_again_when_the_connection_breaks(
    cutter: CuttingBroker,
    cluster: Connection,
    api: Api,
    ask: Callable[[Connection, str, str], object],
) -> None:
    topic = make_topic(cluster)
    grouped(cluster, topic, group := f"group-{topic}")
    cutter.lose_answer(api, times=3)
    assert ask(cluster, topic, group)
    cutter.await_cuts()
