"""Transactions: seen as a whole or not at all, offsets inside, zombies fenced."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from holdfast import topics
from holdfast.topics import Connection, TopicPosition
from holdfast.wire.errors import Cancelled, Conflict, Fenced, HoldfastError, TooLarge, Usage
from tests.contract.topics.conftest import make_topic, take, values, write
from tests.waiting import eventually


def test_a_transaction_is_seen_as_a_whole_or_not_at_all(cluster: Connection, topic: str) -> None:
    with cluster.transaction("whole") as txn:
        txn.send(topic, b"0")
        txn.send(topic, b"1")
    with pytest.raises(ValueError, match="mine"), cluster.transaction("whole") as txn:
        txn.send(topic, b"bad").result(60)
        raise ValueError("mine")
    with cluster.transaction("whole", codec=topics.JSON) as txn:
        txn.send(topic, [2])
    assert values(take(cluster.consumer(topic), 3)) == [b"0", b"1", b"[2]"]
    everything = cluster.consumer(topic, committed=False)
    assert values(take(everything, 4)) == [b"0", b"1", b"bad", b"[2]"]


def test_an_open_transaction_is_not_read_and_holds_back_what_comes_after(
    cluster: Connection, topic: str
) -> None:
    reader = cluster.consumer(topic)
    with cluster.transaction("holding") as txn:
        txn.send(topic, b"0").result(60)
        write(cluster, topic, b"1")
        assert reader.poll(1.0) == []
    assert values(take(reader, 2)) == [b"0", b"1"]


def test_offsets_count_with_the_records_or_not_at_all(cluster: Connection, topic: str) -> None:
    target = make_topic(cluster)
    write(cluster, topic, b"0", b"1")
    with cluster.consumer(topic, group="chain") as consumer:
        for attempt in ("fails", "holds"):
            try:
                with cluster.transaction("chain") as txn:
                    for record in take(consumer, 2):
                        txn.send(target, record.value + b"!")
                    txn.commit_offsets(consumer)
                    if attempt == "fails":
                        raise ValueError("after all of it")
            except ValueError:
                assert cluster.admin.lag("chain") == []
        _wait_for_offset(cluster, 2)
        write(cluster, topic, b"2")
        with cluster.transaction("chain", consumer) as txn:
            (record,) = take(consumer, 1)
            txn.send(target, record.value + b"!")
    _wait_for_offset(cluster, 3)
    assert values(take(cluster.consumer(target), 3)) == [b"0!", b"1!", b"2!"]


def _wait_for_offset(cluster: Connection, offset: int) -> None:
    """Kafka writes its markers after it has answered."""
    eventually(
        lambda: [one.committed for one in cluster.admin.lag("chain")] == [offset],
        "the offsets of the transaction count",
    )


def test_a_writer_with_the_same_id_fences_the_one_before(
    cluster: Connection, address: str, topic: str
) -> None:
    with cluster.transaction("fencing") as txn:
        txn.send(topic, b"0")
    with topics.connect(address) as later:
        zombie = cluster.transaction("fencing")
        with pytest.raises(Fenced), zombie as txn:
            txn.send(topic, b"zombie").result(60)
            with later.transaction("fencing") as newer:
                newer.send(topic, b"1")
        assert values(take(later.consumer(topic), 2)) == [b"0", b"1"]


def test_a_group_that_was_dealt_anew_takes_no_offsets_of_an_old_member(
    cluster: Connection, topic: str
) -> None:
    target = make_topic(cluster)
    write(cluster, topic, b"0")
    old = cluster.consumer(topic, group="dealt", static_id="one")
    take(old, 1)
    with cluster.consumer(topic, group="dealt", static_id="one") as new:
        take(new, 1)
        with pytest.raises(HoldfastError) as found, cluster.transaction("dealt", old) as txn:
            txn.send(target, b"doubled")
        assert isinstance(found.value, Fenced | Conflict), found.value
        with cluster.transaction("dealt", new) as txn:
            txn.send(target, b"once")
    assert values(take(cluster.consumer(target), 1)) == [b"once"]


def test_a_record_that_fails_aborts_its_transaction_and_is_named(
    cluster: Connection, topic: str
) -> None:
    small = make_topic(cluster, max_message_bytes="2000")
    with pytest.raises(TooLarge, match=small), cluster.transaction("failing") as txn:
        txn.send(topic, b"with it")
        txn.send(small, bytes(10_000))
    with cluster.transaction("failing") as txn:
        future = txn.send(topic, b"after it")
    assert future.result(60).topic == topic
    assert values(take(cluster.consumer(topic), 1)) == [b"after it"]


def test_a_transaction_that_was_aborted_tells_the_futures_of_its_records(
    cluster: Connection, topic: str
) -> None:
    futures: list[Future[TopicPosition]] = []
    with pytest.raises(KeyboardInterrupt), cluster.transaction("interrupted") as txn:
        futures.extend(txn.send(topic, bytes(1000)) for _ in range(100))
        raise KeyboardInterrupt
    for future in futures:
        error = future.exception(60)
        assert error is None or isinstance(error, Cancelled)
    write(cluster, topic, b"0")
    assert values(take(cluster.consumer(topic), 1)) == [b"0"]


def test_a_transaction_is_used_while_it_is_open_and_one_at_a_time(
    cluster: Connection, topic: str
) -> None:
    with cluster.transaction("one-at-a-time") as txn:
        with pytest.raises(Conflict, match="is open in this process"):
            cluster.transaction("one-at-a-time").__enter__()
        txn.send(topic, b"0")
        with pytest.raises(Usage, match="without a group"):
            txn.commit_offsets(cluster.consumer(topic))
    with pytest.raises(Usage, match="not open"):
        txn.send(topic, b"1")
    assert values(take(cluster.consumer(topic), 1)) == [b"0"]
