"""Topics and groups: made, described, changed, reset, deleted; names below a prefix only."""

from __future__ import annotations

import pytest

from holdfast import topics
from holdfast.topics import Connection
from holdfast.wire.errors import Conflict, Missing, Usage
from tests.contract.topics.conftest import make_topic, take, values, write
from tests.waiting import eventually


def test_a_topic_is_made_described_changed_and_deleted(cluster: Connection) -> None:
    admin = cluster.admin
    brokers = 3 if "," in str(cluster.address) else 1
    made = admin.create("made", 2, configs={"retention.ms": "100000"})
    assert (made.partitions, made.copies) == (2, brokers)
    with pytest.raises(Conflict):
        admin.create("made")
    assert not admin.ensure("made", 7)
    assert admin.ensure("ensured")
    write(cluster, "made", b"0", b"1", partition=1)
    found = admin.describe("made")
    assert (found.partitions, found.copies) == (2, brokers)
    assert dict(found.configs) == {
        "retention.ms": "100000",
        "min.insync.replicas": "2" if brokers == 3 else "1",
    }
    assert dict(found.offsets) == {0: (0, 0), 1: (0, 2)}
    admin.alter("made", partitions=3, configs={"retention.ms": None, "max.message.bytes": "5000"})
    eventually(
        lambda: "retention.ms" not in admin.describe("made").configs, "the setting is as it was"
    )
    assert admin.describe("made").configs["max.message.bytes"] == "5000"
    assert admin.describe("made").partitions == 3
    assert {"made", "ensured"} <= set(admin.list_topics())
    admin.delete("made")
    assert "made" not in admin.list_topics()
    with pytest.raises(Missing, match="made"):
        admin.describe("made")
    with pytest.raises(Missing, match="made"):
        admin.delete("made")


def test_wrong_names_partitions_copies_and_settings_are_refused(cluster: Connection) -> None:
    for wrong in (
        {"name": "no/slash"},
        {"name": "x" * 250},
        {"name": "partless", "partitions": 0},
        {"name": "copied", "copies": 9},
        {"name": "set", "configs": {"retention.ms": "soon"}},
        {"name": "set", "configs": {"no.such.setting": "1"}},
    ):
        with pytest.raises(Usage):
            cluster.admin.create(**wrong)


def test_offsets_are_found_by_time(cluster: Connection, topic: str) -> None:
    with cluster.producer() as producer:
        for at in (1_000, 2_000, 3_000):
            producer.send(topic, b"v", at=1_700_000_000_000 + at)
    admin = cluster.admin
    assert admin.offsets(topic, "earliest") == {0: 0}
    assert admin.offsets(topic, "latest") == {0: 3}
    assert admin.offsets(topic, 1_700_000_001_500) == {0: 1}
    assert admin.offsets(topic, 1_700_000_009_000) == {0: 3}


def test_a_groups_lag_is_shown_and_its_offsets_are_reset(cluster: Connection, topic: str) -> None:
    admin = cluster.admin
    write(cluster, topic, b"0", b"1", b"2")
    with cluster.consumer(topic, group="lagging") as consumer:
        consumer.commit(take(consumer, 3)[0])
        (found,) = admin.lag("lagging")
        assert (found.topic, found.committed, found.end, found.lag) == (topic, 1, 3, 2)
        (group,) = [one for one in admin.groups() if one.name == "lagging"]
        assert (group.state, len(group.members)) == ("stable", 1)
        with pytest.raises(Conflict, match="lagging"):
            admin.reset("lagging", topic, "earliest")
        with pytest.raises(Conflict, match="lagging"):
            admin.delete_group("lagging")
    admin.reset("lagging", topic, {0: 2})
    with cluster.consumer(topic, group="lagging") as consumer:
        assert values(take(consumer, 1)) == [b"2"]
    admin.delete_group("lagging")
    assert "lagging" not in {one.name for one in admin.groups()}
    with pytest.raises(Missing, match="lagging"):
        admin.delete_group("lagging")


def test_names_below_another_prefix_are_not_seen(cluster: Connection, address: str) -> None:
    name = make_topic(cluster)
    write(cluster, name, b"ours")
    with topics.connect(address.partition("?")[0]) as everybody:
        assert f"{cluster.address.prefix}{name}" in everybody.admin.list_topics()
        assert name not in everybody.admin.list_topics()
        assert not [one for one in everybody.admin.list_topics() if one.startswith("__")]
    with topics.connect(f"{address}sub.") as below:
        assert below.admin.list_topics() == []
