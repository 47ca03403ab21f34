"""What is written is what is read: values, keys, headers, times, partitions, order."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import topics
from holdfast.topics import Connection, TopicPosition
from holdfast.wire.errors import Corrupt, Missing, TooLarge, Usage
from tests.contract.topics.conftest import make_topic, take, values, write


class Click(msgspec.Struct):
    """A record of a user."""

    user: str
    page: int


def test_a_record_is_read_with_all_that_it_was_written_with(
    cluster: Connection, topic: str
) -> None:
    producer = cluster.producer(codec=topics.JSON)
    headers = {"trace": b"\x00\xff", "empty": b"", "none": None, "text": "words"}
    place = producer.send(
        topic, {"page": 3}, key="usér", headers=headers, at=1_700_000_000_123
    ).result(60)
    assert place[:3] == (topic, 0, 0)
    (record,) = take(cluster.consumer(topic, codec=topics.JSON), 1)
    assert record.value == {"page": 3}
    assert record.key == "usér".encode()
    assert record.headers == {"trace": b"\x00\xff", "empty": b"", "none": None, "text": b"words"}
    assert (record.topic, record.partition, record.offset) == (topic, 0, 0)
    assert record.at == 1_700_000_000_123
    assert record.leader_epoch is not None


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (topics.BYTES, b"\x00\xff"),
        (topics.TEXT, "wörds"),
        (topics.JSON, [1, None, {"a": "b"}]),
        (topics.json_of(Click), Click("me", 7)),
        (topics.msgpack(Click), Click("you", 8)),
    ],
    ids=["bytes", "text", "json", "json of a type", "msgpack"],
)
def test_a_codec_gives_back_what_it_was_given(
    cluster: Connection, topic: str, codec: topics.RecordCodec, value: object
) -> None:
    producer = cluster.producer(codec=codec)
    producer.send(topic, value)
    producer.send(topic, None, key=b"gone")
    producer.flush()
    assert values(take(cluster.consumer(topic, codec=codec), 2)) == [value, None]


def test_a_record_that_its_codec_does_not_take_spoils_no_other(
    cluster: Connection, topic: str
) -> None:
    write(cluster, topic, b"{", b"1")
    bad, good = take(cluster.consumer(topic, codec=topics.JSON), 2)
    with pytest.raises(Corrupt, match=r"record 0 of .* cannot be decoded"):
        _ = bad.value
    assert bad.raw == b"{"
    assert good.value == 1


@pytest.mark.parametrize("compression", ["gzip", "lz4", "snappy", "zstd"])
def test_many_records_keep_their_order(cluster: Connection, topic: str, compression: str) -> None:
    producer = cluster.producer(compression=compression, linger_ms=20)
    sent = [b"%d" % number * 20 for number in range(2_000)]
    for value in sent:
        assert producer.try_send(topic, value)
    producer.flush()
    assert producer.failed == 0
    assert values(take(cluster.consumer(topic), 2_000)) == sent


def test_a_key_is_always_in_one_partition_and_a_named_partition_is_taken(
    cluster: Connection,
) -> None:
    topic = make_topic(cluster, 4)
    producer = cluster.producer()
    keyed = [producer.send(topic, b"v", key=f"k{number % 8}") for number in range(40)]
    places = [future.result(60) for future in keyed]
    by_key = {number: {place.partition for place in places[number::8]} for number in range(8)}
    assert all(len(found) == 1 for found in by_key.values())
    assert len(set.union(*by_key.values())) > 1
    assert producer.send(topic, b"v", partition=3).result(60).partition == 3


def test_reading_begins_where_it_is_asked_to(cluster: Connection, topic: str) -> None:
    write(cluster, topic, b"0", b"1", b"2", b"3")
    assert values(take(cluster.consumer(topic), 4)) == [b"0", b"1", b"2", b"3"]
    third = cluster.consumer(topic, start=[TopicPosition(topic, 0, 2)])
    assert values(take(third, 2)) == [b"2", b"3"]
    third.seek(TopicPosition(topic, 0, 1))
    again = take(third, 3)
    assert values(again) == [b"1", b"2", b"3"]
    third.seek(again[1])
    assert values(take(third, 2)) == [b"2", b"3"]
    late = cluster.consumer(topic, start="latest")
    assert late.poll(1.0) == []
    write(cluster, topic, b"4")
    assert values(take(late, 1)) == [b"4"]
    assert late.positions() == [TopicPosition(topic, 0, 5, late.positions()[0].leader_epoch)]


def test_iterating_gives_record_by_record_and_ends_when_it_is_closed(
    cluster: Connection, topic: str
) -> None:
    write(cluster, topic, b"0", b"1", b"2")
    consumer = cluster.consumer(topic)
    found = []
    for record in consumer:
        found.append(record.value)
        if len(found) == 3:
            consumer.close()
    assert found == [b"0", b"1", b"2"]
    with pytest.raises(Usage, match="closed"):
        consumer.poll()


def test_what_is_paused_is_not_read_until_it_is_resumed(cluster: Connection, topic: str) -> None:
    consumer = cluster.consumer(topic)
    consumer.poll(0.5)
    consumer.pause()
    write(cluster, topic, b"0")
    assert consumer.poll(0.7) == []
    consumer.resume()
    assert values(take(consumer, 1)) == [b"0"]


def test_a_topic_that_is_not_there_is_named(cluster: Connection) -> None:
    with pytest.raises(Missing, match="no-such-topic"):
        cluster.consumer("no-such-topic").poll(60)
    with pytest.raises(Missing, match="no-such-topic"):
        cluster.producer().send("no-such-topic", b"v").result(60)


def test_a_record_that_is_too_large_is_refused_and_the_next_one_is_not(
    cluster: Connection,
) -> None:
    topic = make_topic(cluster, max_message_bytes="2000")
    producer = cluster.producer()
    with pytest.raises(TooLarge, match=topic):
        producer.send(topic, bytes(10_000)).result(60)
    producer.flush()  # whoever has read the future knows
    producer.send(topic, b"small").result(60)
    producer.send(topic, bytes(10_000))
    with pytest.raises(TooLarge, match="1 records were not written"):
        producer.flush()
    producer.flush()
    assert producer.failed == 2


def test_a_wrong_value_or_partition_is_told_at_once(cluster: Connection, topic: str) -> None:
    producer = cluster.producer()
    with pytest.raises(Usage, match="bytes here, not dict"):
        producer.send(topic, {"a": 1})
    with pytest.raises(Missing):
        producer.send(topic, b"v", partition=77).result(60)
