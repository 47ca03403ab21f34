"""Groups share partitions, go on where they committed, and commit only what is theirs."""

from __future__ import annotations

import time

import pytest

from holdfast.topics import Connection, Consumer, Record, TopicPosition
from holdfast.wire.errors import Conflict, Fenced, Usage
from tests.contract.topics.conftest import make_topic, take, values, write
from tests.waiting import eventually


def test_a_group_goes_on_where_it_committed(cluster: Connection, topic: str) -> None:
    write(cluster, topic, b"0", b"1", b"2")
    with cluster.consumer(topic, group="going-on") as first:
        records = take(first, 3)
        assert first.commit(records[:2]) == []
    with cluster.consumer(topic, group="going-on") as second:
        assert values(take(second, 1)) == [b"2"]
        second.commit()
    with cluster.consumer(topic, group="going-on") as third:
        assert third.poll(2.0) == []
    with cluster.consumer(topic, group="another-group") as other:
        assert values(take(other, 3)) == [b"0", b"1", b"2"]


def test_what_was_read_and_not_committed_is_read_again_after_a_rewind(
    cluster: Connection, topic: str
) -> None:
    write(cluster, topic, b"0", b"1", b"2", b"3")
    with cluster.consumer(topic, group="rewinding") as consumer:
        records = take(consumer, 4)
        consumer.commit(records[0])
        consumer.rewind()
        assert values(take(consumer, 3)) == [b"1", b"2", b"3"]
        consumer.commit()
        consumer.rewind()
        assert consumer.poll(0.5) == []


def _share(members: list[Consumer], each: list[int]) -> list[Record]:
    """Wait until so many partitions are with each of them; what they read meanwhile."""
    found: list[Record] = []

    def shared() -> bool:
        for member in members:
            found.extend(member.poll(0.05))
        return sorted(len(member.partitions()) for member in members) == sorted(each)

    eventually(shared, f"partitions are shared as {each}")
    return found


def test_a_member_that_comes_takes_its_share_and_old_owners_commit_it_no_more(
    cluster: Connection,
) -> None:
    topic = make_topic(cluster, 2)
    for part in (0, 1):
        write(cluster, topic, b"0", b"1", partition=part)
    revoked: list[tuple[str, int]] = []
    first = cluster.consumer(topic, group="sharing", on_revoked=revoked.extend)
    records = take(first, 4)
    second = cluster.consumer(topic, group="sharing")
    _share([first, second], [1, 1])
    ((_, moved),) = revoked
    refused = first.commit(records)
    assert [(at.partition, at.offset) for at in refused] == [(moved, 2)]
    held = {one.partition: one.committed for one in cluster.admin.lag("sharing")}
    assert held == {moved: None, 1 - moved: 2}
    with pytest.raises(Conflict, match=rf"{topic}\[{moved}\] is not read by this consumer"):
        first.seek(TopicPosition(topic, moved, 0))
    second.close()
    found = _share([first], [2])
    found += take(first, 2 - len(found))
    assert {(one.partition, one.value) for one in found} == {(moved, b"0"), (moved, b"1")}


def test_what_is_committed_while_partitions_are_given_up_counts(cluster: Connection) -> None:
    topic = make_topic(cluster, 2)
    for part in (0, 1):
        write(cluster, topic, b"0", b"1", partition=part)
    first: Consumer

    def commit_all(_places: list[tuple[str, int]]) -> None:
        assert first.commit() == []

    first = cluster.consumer(topic, group="giving-up", on_revoked=commit_all)
    take(first, 4)
    second = cluster.consumer(topic, group="giving-up")
    assert _share([first, second], [1, 1]) == []
    assert {one.lag for one in cluster.admin.lag("giving-up")} == {0}
    assert second.poll(0.5) == []


def test_a_member_that_stalls_is_out_and_commits_nothing(cluster: Connection, topic: str) -> None:
    write(cluster, topic, b"0", b"1")
    stalled = cluster.consumer(topic, group="stalling", session_s=6.0, poll_every_s=6.0)
    (*_, last) = take(stalled, 2)
    time.sleep(7.0)  # pause: longer than a member may be silent
    second = cluster.consumer(topic, group="stalling")
    assert values(take(second, 2)) == [b"0", b"1"]
    second.commit()
    assert [at.offset for at in stalled.commit(last)] == [2]
    assert cluster.admin.lag("stalling")[0].committed == 2


def test_a_static_member_that_comes_twice_is_fenced(cluster: Connection, topic: str) -> None:
    write(cluster, topic, b"0")
    old = cluster.consumer(topic, group="static", static_id="one")
    take(old, 1)
    new = cluster.consumer(topic, group="static", static_id="one")
    take(new, 1)

    def fenced() -> bool:
        try:
            old.poll(0.2)
        except Fenced as error:
            return "FENCED_INSTANCE_ID" in error.why
        return False

    eventually(fenced, "the old one hears that it is fenced")
    assert new.commit() == []


def test_one_without_a_group_reads_all_and_commits_nothing(cluster: Connection) -> None:
    topic = make_topic(cluster, 2)
    for part in (0, 1):
        write(cluster, topic, b"0", partition=part)
    for _ in range(2):
        with cluster.consumer(topic) as consumer:
            take(consumer, 2)
            assert consumer.partitions() == [(topic, 0), (topic, 1)]
            with pytest.raises(Usage, match="without a group"):
                consumer.commit()


def test_a_subscriber_is_called_for_each_record_and_goes_on_after_its_end(
    cluster: Connection, topic: str
) -> None:
    write(cluster, topic, b"0", b"1")
    found: list[object] = []

    def handle(record: Record) -> None:
        if record.value == b"1" and len(found) == 1:
            found.append("tried")
            raise ValueError("not yet")
        found.append(record.value)

    with cluster.subscribe(topic, handle, group="subscribed"):
        eventually(lambda: len(found) == 3, "both records")
    assert found == [b"0", "tried", b"1"]
    write(cluster, topic, b"2")
    with cluster.subscribe(topic, handle, group="subscribed"):
        eventually(lambda: len(found) == 4, "the third record")
    assert found[3:] == [b"2"]


def test_a_subscriber_that_fails_says_so_and_its_record_comes_again(
    cluster: Connection, topic: str
) -> None:
    write(cluster, topic, b"0", b"1")
    told: list[BaseException] = []

    def handle(record: Record) -> None:
        if record.value == b"1":
            raise ValueError("never")

    failing = cluster.subscribe(topic, handle, group="failing", retries=1, on_failed=told.append)
    eventually(lambda: not failing.is_alive(), "it has ended")
    assert [str(error) for error in told] == ["never"]
    with pytest.raises(ValueError, match="never"):
        failing.close()
    with cluster.consumer(topic, group="failing") as consumer:
        assert values(take(consumer, 1)) == [b"1"]
